// What the compiler is and how it was called. The only header that asks.
//
// Data types live in `headwise::v0_1`, whose layout no flag changes. Functions and modules live one
// namespace deeper, in one that is named after the flags that change what a function compiles to,
// so that two translation units with different -m or fast-math flags do not share their bodies.
// Flags below -mavx (-msse4.2, -mbmi2) are not among them: all files of a program want the same.
// (What is shared in any case: the small members of data types.)
#pragma once

#if defined(_MSC_VER)
#error "headwise needs g++ >= 12 or clang >= 14: its kernels are written in their vector extensions"
#elif defined(__clang__)
#if __clang_major__ < 14
#error "headwise needs clang >= 14"
#endif
#elif !defined(__GNUC__) || __GNUC__ < 12
#error "headwise needs g++ >= 12 or clang >= 14"
#endif

#if __cplusplus < 202002L
#error "headwise needs C++20: add -std=c++20"
#endif

#if defined(__AVX512F__)
#define HEADWISE_CONFIG_VECTORS avx512
#elif defined(__AVX2__)
#define HEADWISE_CONFIG_VECTORS avx2
#elif defined(__AVX__)
#define HEADWISE_CONFIG_VECTORS avx
#else
#define HEADWISE_CONFIG_VECTORS base
#endif

#if defined(__FMA__)
#define HEADWISE_CONFIG_FMA fma
#else
#define HEADWISE_CONFIG_FMA nofma
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#define HEADWISE_CONFIG_MATH fast
#else
#define HEADWISE_CONFIG_MATH strict
#endif

// Without exceptions, errors go to a handler (tensor/error.hpp).
#if defined(__cpp_exceptions)
#define HEADWISE_HAS_EXCEPTIONS 1
#define HEADWISE_CONFIG_ERRORS throws
#else
#define HEADWISE_HAS_EXCEPTIONS 0
#define HEADWISE_CONFIG_ERRORS handler
#endif

// HEADWISE_VECTOR_BYTES, defined as 64, 32 or 16, leaves a file the kernels for vectors of so many
// bytes alone (AVX-512, AVX2, generic), for float and double: of a program for machines that are
// known, two thirds of the compiler's time and of the text.
#if !defined(HEADWISE_VECTOR_BYTES)
#define HEADWISE_CONFIG_SETS
#elif HEADWISE_VECTOR_BYTES == 64
#define HEADWISE_CONFIG_SETS _only64
#elif HEADWISE_VECTOR_BYTES == 32
#define HEADWISE_CONFIG_SETS _only32
#elif HEADWISE_VECTOR_BYTES == 16
#define HEADWISE_CONFIG_SETS _only16
#else
#error "HEADWISE_VECTOR_BYTES is 64 (AVX-512), 32 (AVX2) or 16"
#endif

// Compiled as most programs are: what headwise::compiled was compiled for.
#if defined(__AVX__) || defined(__FMA__) || defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || \
    !HEADWISE_HAS_EXCEPTIONS || defined(HEADWISE_VECTOR_BYTES)
#define HEADWISE_CONFIG_PLAIN 0
#else
#define HEADWISE_CONFIG_PLAIN 1
#endif

// Compilers lay out what a generic lambda captures in orders of their own: each has its own code.
#if defined(__clang__)
#define HEADWISE_COMPILER "clang++"
#define HEADWISE_CONFIG_COMPILER clang
#define HEADWISE_CONFIG_COMPILER_NUMBER 2
#else
#define HEADWISE_COMPILER "g++"
#define HEADWISE_CONFIG_COMPILER gnu
#define HEADWISE_CONFIG_COMPILER_NUMBER 1
#endif

// HEADWISE_COMPILED is the number of the compiler that made headwise::compiled.
#if defined(HEADWISE_COMPILED) && HEADWISE_COMPILED == HEADWISE_CONFIG_COMPILER_NUMBER
#define HEADWISE_USES_COMPILED HEADWISE_CONFIG_PLAIN
#else
#define HEADWISE_USES_COMPILED 0
#endif

#if defined(__x86_64__)
#define HEADWISE_X86 1
#else
#define HEADWISE_X86 0
#endif

#define HEADWISE_CONFIG_JOIN(a, b, c, d, e, f) code_##a##_##b##_##c##_##d##_##e##f
#define HEADWISE_CONFIG_EXPAND(a, b, c, d, e, f) HEADWISE_CONFIG_JOIN(a, b, c, d, e, f)
#define HEADWISE_CODE                                                                        \
  HEADWISE_CONFIG_EXPAND(HEADWISE_CONFIG_VECTORS, HEADWISE_CONFIG_FMA, HEADWISE_CONFIG_MATH, \
                         HEADWISE_CONFIG_ERRORS, HEADWISE_CONFIG_COMPILER, HEADWISE_CONFIG_SETS)
#define HEADWISE_CONFIG_QUOTE(name) #name
#define HEADWISE_CONFIG_STRING(name) HEADWISE_CONFIG_QUOTE(name)
#define HEADWISE_CODE_NAME HEADWISE_CONFIG_STRING(HEADWISE_CODE)

#define HEADWISE_INLINE [[gnu::always_inline]] inline
#define HEADWISE_ALWAYS_INLINE __attribute__((always_inline))  // behind a lambda's parameters

// Code between HEADWISE_REGION and its END is compiled for an instruction set, whatever the user's
// -m flags; who calls it has asked the processor. In there neither compiler defines __AVX512F__ and
// its like, and a standard header that is first included in there would be compiled for it, too.
// (g++ 12, clang 14 and 19.)
#define HEADWISE_AVX2 "avx2,fma"
#define HEADWISE_AVX512 "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#define HEADWISE_AMX "amx-tile,amx-bf16,avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#define HEADWISE_AVX512_BF16 "avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#define HEADWISE_CONFIG_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HEADWISE_REGION(features) \
  HEADWISE_CONFIG_PRAGMA(         \
      clang attribute push(__attribute__((target(features))), apply_to = function))
#define HEADWISE_REGION_END _Pragma("clang attribute pop")
#else
#define HEADWISE_REGION(features)                                          \
  _Pragma("GCC push_options") HEADWISE_CONFIG_PRAGMA(GCC target(features)) \
      _Pragma("GCC target(\"prefer-vector-width=512\")")
#define HEADWISE_REGION_END _Pragma("GCC pop_options")
#endif

// Arithmetic stands between these two: whatever the user's flags, no reassociation, no assumption
// that numbers are finite, and no fusing of a product and a sum where it was not written, which
// would make bits depend on which of two loops the compiler fused. (Each compiler honours its own
// form: g++ 12, clang 14 and 19. But clang with -ffast-math and FMA fuses all the same unless
// -ffp-contract=on stands beside it: results stay right, bits differ from a build without. And its
// intrinsics stay loose: of a comparison by one, clang 14 made another that says no to NaN.)
#if defined(__clang__)
#define HEADWISE_STRICT_BUILTINS 0
#if defined(__FAST_MATH__)
#define HEADWISE_FUSES_ALL_THE_SAME 1
#else
#define HEADWISE_FUSES_ALL_THE_SAME 0
#endif
#define HEADWISE_STRICT_MATH_BEGIN                                     \
  _Pragma("float_control(push)") _Pragma("float_control(precise, on)") \
      _Pragma("clang fp contract(off)")
#define HEADWISE_STRICT_MATH_END _Pragma("float_control(pop)")
#else
#define HEADWISE_STRICT_BUILTINS 1
#define HEADWISE_FUSES_ALL_THE_SAME 0
#define HEADWISE_STRICT_MATH_BEGIN \
  _Pragma("GCC push_options") _Pragma("GCC optimize(\"no-fast-math\", \"fp-contract=off\")")
#define HEADWISE_STRICT_MATH_END _Pragma("GCC pop_options")
#endif
