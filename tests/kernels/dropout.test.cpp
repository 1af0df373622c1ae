// Dropout drawn by lanes, by the kernels of every instruction set of this processor: the mask is
// that of score/dropout_mask.hpp, element by element.
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/all_kernels.hpp"
#include "support/catch.hpp"

namespace kernels_dropout {

using namespace headwise;
using headwise_tests::for_all_kernels;
using kernels::Matrix;

namespace {

template <class T>
Matrix<T> whole(std::vector<T>& x, Index columns, Index step = 1) {
  return {x.data(), columns * step, step};
}

const DropoutMask masks[] = {
    DropoutMask({.rate = 0.1, .seed = 0x123456789ABCDEF, .step = 7}, DropoutStream::weights),
    DropoutMask({.rate = 0.5, .seed = 3}, DropoutStream::weights),
    DropoutMask({.rate = 1.0, .seed = 3}, DropoutStream::weights),
    DropoutMask({.rate = 0x1p-16, .seed = 3}, DropoutStream::weights)};

/// One head of L queries over S keys, all of whose scores are 0, at place (b, h).
template <class T>
kernels::AttentionHead<T> head_of(Matrix<const T> zeros, Matrix<const T> v, Index L, Index S,
                                  Index dv, const DropoutMask& mask,
                                  const AttentionMask<T>& rules) {
  return {zeros, zeros, v, L, S, 1, dv, T(1), HeadVisibility<T>(rules, 0, 0, L, S),
          mask,  70000, 11};
}

}  // namespace

TEST_CASE("rows dropped by lanes are those of the mask, through any strides", "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const DropoutMask& mask : masks) {
      for (const Index N : {1, 7, 8, 9, 31, 64, 65, 200}) {
        for (const Index step : {1, 2}) {
          std::vector<T> x(static_cast<std::size_t>(5 * N * step), T(3)), y(x.size(), T(-7));
          run.drop_rows(mask, whole(x, N, step), whole(y, N, step), N, 2, 5);
          bool right = true;
          for (Index i = 0; i < 5; ++i) {
            for (Index j = 0; j < N; ++j) {
              const T wanted = i < 2                   ? T(-7)
                               : mask.kept(0, 0, i, j) ? T(3) * T(mask.keep_factor())
                                                       : T(0);
              right = right && whole(y, N, step)(i, j) == wanted;
            }
          }
          CAPTURE(sizeof(T), N, step, mask.threshold());
          CHECK(right);
        }
      }
    }
  });
}

// With scores of 0 and a row of the identity for each key, o is the dropped weights themselves.
TEST_CASE("flash attention drops the pairs that the mask names, whatever the key ranges",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    constexpr Index L = 37, S = 215;
    std::vector<T> zeros(static_cast<std::size_t>(S), T(0)), identity(S * S, T(0)), o(L * S);
    for (std::size_t j = 0; j < S; ++j) identity[j * S + j] = T(1);
    std::vector<T> memory(static_cast<std::size_t>(run.flash_forward_scratch(1, S)) + 16);
    for (const AttentionMask<T>& rules :
         {AttentionMask<T>{}, AttentionMask<T>{causal}, AttentionMask<T>{Mask::window(11)}}) {
      for (const DropoutMask& mask : masks) {
        const auto head =
            head_of<T>({zeros.data(), 1, 1}, whole(identity, S), L, S, S, mask, rules);
        run.flash_forward(head, 0, L, whole(o, S), {nullptr, 0, 0}, Scratch<T>(memory.data()));
        bool right = true;
        for (Index i = 0; i < L; ++i) {
          for (Index j = 0; j < S; ++j) {
            const bool kept = head.visibility.visible(i, j) && mask.kept(head.b, head.h, i, j);
            right = right && (whole(o, S)(i, j) != T(0)) == (kept && mask.keep_factor() != 0);
          }
        }
        CAPTURE(sizeof(T), mask.threshold());
        CHECK(right);
      }
    }
  });
}

TEST_CASE("both paths drop the same weights", "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    constexpr Index L = 21, S = 70;
    std::vector<T> zeros(static_cast<std::size_t>(S), T(0)), identity(S * S, T(0)), o(L * S),
        weights(L * S);
    for (std::size_t j = 0; j < S; ++j) identity[j * S + j] = T(1);
    const auto head = head_of<T>({zeros.data(), 1, 1}, whole(identity, S), L, S, S, masks[0], {});
    std::vector<T> memory(
        static_cast<std::size_t>(run.attention_forward_scratch(L, S, 1, S, true)) + 16);
    run.attention_head_forward(head, whole(weights, S), whole(o, S), Scratch<T>(memory.data()));
    bool right = true;
    for (Index i = 0; i < L; ++i) {
      for (Index j = 0; j < S; ++j) {
        right = right && (whole(o, S)(i, j) != T(0)) == masks[0].kept(head.b, head.h, i, j);
      }
    }
    CHECK(right);
  });
}

}  // namespace kernels_dropout
