# shellcheck shell=bash disable=SC2154
# How a test and the kernels that it calls are compiled, apart, and linked. Read by tests/faults/run,
# which has chosen compiler, flags, includes and isa.

# compile source include_folder object option ...
compile() {
  local source=$1 folder=$2 object=$3 standard=$work/standard.hpp
  shift 3
  [[ $source == *.test.cpp ]] && standard=$work/standard_and_catch.hpp
  "$compiler" -std=c++20 "${flags[@]}" -w -include "$standard" "$@" -I "$folder" "${includes[@]}" \
    -c "$root/tests/$source" -MMD -o "$object"
}
compile_test() {  # source include_folder object
  compile "$@" -DHEADWISE_EXTERN_KERNELS
}
compile_kernels() {  # float, double or bf16, include_folder object
  local of=(-DHEADWISE_FAULT_SCALAR="$1" -DHEADWISE_FAULT_ISA="$isa")
  [[ $1 == bf16 ]] && of=(-DHEADWISE_FAULT_BF16)
  compile faults/kernels.cpp "$2" "$3" "${of[@]}"
}
link() {  # source program object ...
  local program=$2 others=()
  [[ $1 == *.test.cpp ]] && others=("$work/main.o" ${catch_library[@]+"${catch_library[@]}"})
  shift 2
  "$compiler" "${flags[@]}" "$@" ${others[@]+"${others[@]}"} -pthread -o "$program"
}

# The kernels that an object calls: of float, of double, of products in bf16 or its pieces (which
# call those of float), or none.
scalars_of() {
  nm -u "$1" | sed -n '/bf16_kernels_ofIfE\|split_kernelsIfLi/ { s/.*/bf16\nfloat/p; d }
    s/.*\(kernels\|functions\)_ofIfE.*/float/p; s/.*\(kernels\|functions\)_ofIdE.*/double/p' | sort -u
}
# Whether an object that was compiled without a fault has to be compiled again for one in $file: if
# it read that file. All read the kernels' fragments, but at -O0 there is nothing of them in an
# object that defines none of their functions; what calls them is told by a pointer where they are.
reads_fault() {
  tr ' ' '\n' <"${1%.o}.d" | grep -qFx "$root/include/headwise/$file" || return 1
  [[ $file != *.inc || ${flags[*]} != -O0 ]] && return 0
  nm -C --defined-only "$1" | grep -qE '::(generic|avx2|avx512|amx)(_bf16|_two_pieces|_three_pieces)?::'
}
object_of() { echo "$work/unpatched/${1//\//_}.o"; }  # source or scalar
