// Calls that do not compile, as far as overload resolution can be asked. What the library refuses
// by a static_assert, with a sentence, is in must_not_compile.
#include "headwise/tensor/eigen.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/refusal.hpp"

namespace bad_calls_compile_time {

using namespace headwise_tests;

namespace {

template <class O>
concept TakenAsOutput = requires(In<float, 2> x, O& y) {
  softmax_forward(x, y);
};
template <class A>
concept TakenAsAddedTo = requires(In<float, 2> dy, A& db) {
  bias_backward(dy, db);
};
template <class... X>
concept Multiplied = requires(X... x, In<float, 1> b, Out<float, 2> y) {
  linear_forward(x..., b, y);
};
template <class X>
concept TrainedOn = requires(const MultiHeadAttention<float>& module, X&& x,
                             MultiHeadAttention<float>::Cache& cache) {
  module.forward(static_cast<X&&>(x), MultiHeadAttention<float>::Call(), cache);
};
template <class Q, class K, class V>
concept CrossTrainedOn = requires(const MultiHeadAttention<float>& module, Q&& q, K&& k, V&& v,
                                  MultiHeadAttention<float>::Cache& cache) {
  module.forward(static_cast<Q&&>(q), static_cast<K&&>(k), static_cast<V&&>(v),
                 MultiHeadAttention<float>::Call(), cache);
};
template <class Layer, class X>
concept LayerTrainedOn = requires(const Layer& layer, X&& x, typename Layer::Cache& cache) {
  layer.forward(static_cast<X&&>(x), cache);
};
template <class X>
concept LengthsIn = requires(X&& lengths) {
  { Mask::key_lengths(static_cast<X&&>(lengths)) } -> std::same_as<KeyLengths>;
};
template <class X>
concept MaskedBy = requires(X&& pairs) {
  Mask::keep(static_cast<X&&>(pairs));
};
template <class X>
concept PackedBy = requires(X&& starts) {
  MultiHeadAttentionCall<float>{.query_starts = static_cast<X&&>(starts)};
};
template <class X>
concept CutBy = requires(X&& starts, In<float, 3> x) {
  PackedSequences<float>{x, x, x, static_cast<X&&>(starts), static_cast<X&&>(starts)};
};
template <class X>
concept CountedBy = requires(X&& counts) {
  MultiHeadAttentionStepCall<float>{.counts = static_cast<X&&>(counts)};
};
template <class Module>
concept StepsWithoutACall = requires(const Module& module, In<float, 3> x,
                                     KeyValueCache<float>& cache) {
  multi_head_attention_step(module, x, {}, cache);
}
|| requires(const Module& module, In<float, 3> x, KeyValueCache<float>& cache) {
  transformer_block_step(module, x, {}, cache);
};
template <class X>
concept TurnedBy = requires(X&& x) {
  RotaryOptions{.frequencies = static_cast<X&&>(x)};
};
template <class X>
concept SunkInto = requires(X&& x) {
  ScoreOptions<float>{.sinks = static_cast<X&&>(x)};
};
template <class X>
concept BiasedBy = requires(X&& values) {
  Mask::bias(static_cast<X&&>(values));
};
template <class X>
concept AskedOf = requires(X&& x) {
  Mask::function(static_cast<X&&>(x));
};
template <class X>
concept Sliced = requires(X&& x) {
  slice(static_cast<X&&>(x), 0, 0, 1);
};
template <class M>
concept SetFromEigen = requires(M& m, In<float, 2> x) {
  softmax_forward(x, Out<float, 2>(from_eigen(m)));
};

}  // namespace

TEST_CASE("what is const, or of another type or rank, is no output", "[bad_calls]") {
  STATIC_REQUIRE(TakenAsOutput<Tensor2<float>>);
  STATIC_REQUIRE(TakenAsOutput<const View2<float>>);
  STATIC_REQUIRE_FALSE(TakenAsOutput<const Tensor2<float>>);
  STATIC_REQUIRE_FALSE(TakenAsOutput<View2<const float>>);
  STATIC_REQUIRE_FALSE(TakenAsOutput<In<float, 2>>);
  STATIC_REQUIRE_FALSE(TakenAsOutput<Tensor2<double>>);
  STATIC_REQUIRE_FALSE(TakenAsOutput<Tensor3<float>>);
  STATIC_REQUIRE_FALSE(TakenAsOutput<std::vector<float>>);
  STATIC_REQUIRE(TakenAsAddedTo<Tensor1<float>>);
  STATIC_REQUIRE_FALSE(TakenAsAddedTo<const Tensor1<float>>);
  STATIC_REQUIRE_FALSE(TakenAsAddedTo<Out<float, 1>>);
  STATIC_REQUIRE(Multiplied<In<float, 2>, In<float, 2>>);
  STATIC_REQUIRE_FALSE(Multiplied<In<float, 2>, In<double, 2>>);
  STATIC_REQUIRE_FALSE(Multiplied<In<int, 3>, In<float, 2>>);
}

TEST_CASE("integers are no scalars", "[bad_calls]") {
  STATIC_REQUIRE((Scalar<float> && Scalar<long double> && Scalar<Dual<double>>));
  STATIC_REQUIRE_FALSE((Scalar<int> || Scalar<Index> || Scalar<unsigned char> || Scalar<bool>));
}

TEST_CASE("a bare array of bool, or numbers of another type, is no mask", "[bad_calls]") {
  using M = AttentionMask<float>;
  STATIC_REQUIRE(std::is_constructible_v<M, Causal, PairMask, BiasMask<float>, Window, KeyLengths>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, bool>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, bool*>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, const bool(&)[4]>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, std::vector<bool>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, std::vector<char>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, Tensor<bool, 4>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, Tensor<bool, 2>&>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, In<bool, 4>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, Tensor4<float>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, std::vector<Index>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, int>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, BiasMask<double>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, AttentionMask<double>>);
}

TEST_CASE("what would be gone before it is read is not viewed", "[bad_calls]") {
  STATIC_REQUIRE(MaskedBy<Tensor2<bool>&>);
  STATIC_REQUIRE(MaskedBy<const Tensor2<bool>&>);
  STATIC_REQUIRE_FALSE(MaskedBy<Tensor2<bool>>);
  STATIC_REQUIRE(BiasedBy<Tensor2<float>&>);
  STATIC_REQUIRE_FALSE(BiasedBy<Tensor2<float>>);
  STATIC_REQUIRE((TurnedBy<Tensor1<double>&> && TurnedBy<In<double, 1>>));
  STATIC_REQUIRE((TurnedBy<std::vector<double>> && TurnedBy<const std::vector<double>&>));
  STATIC_REQUIRE_FALSE((TurnedBy<Tensor1<double>> || TurnedBy<const Tensor1<double>>));
  STATIC_REQUIRE((SunkInto<Tensor1<float>&> && SunkInto<const Tensor1<float>&>));
  STATIC_REQUIRE((SunkInto<In<float, 1>> && SunkInto<View1<const float>>));
  STATIC_REQUIRE_FALSE((SunkInto<Tensor1<float>> || SunkInto<const Tensor1<float>>));
  using Function = MaskFunction<bool (*)(const Position&), AllKeys>;
  STATIC_REQUIRE(AskedOf<Function&>);
  STATIC_REQUIRE(AskedOf<const Function&>);
  STATIC_REQUIRE_FALSE(AskedOf<Function>);
  STATIC_REQUIRE(Sliced<Tensor2<float>&>);
  STATIC_REQUIRE_FALSE(Sliced<Tensor2<float>>);
  STATIC_REQUIRE(TrainedOn<Tensor3<float>&>);
  STATIC_REQUIRE(TrainedOn<In<float, 3>>);
  STATIC_REQUIRE_FALSE(TrainedOn<Tensor3<float>>);
  using X = Tensor3<float>;
  STATIC_REQUIRE(CrossTrainedOn<X&, X&, X&>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<X, X&, X&>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<X&, X, X&>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<X&, X&, X>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<X, X, X>);
  using N = Tensor<BFloat16, 3>;
  STATIC_REQUIRE(TrainedOn<N&>);
  STATIC_REQUIRE(TrainedOn<In<BFloat16, 3>>);
  STATIC_REQUIRE_FALSE(TrainedOn<N>);
  STATIC_REQUIRE(CrossTrainedOn<N&, N&, N&>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<N&, N&, X&>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<N, N&, N&>);
  STATIC_REQUIRE_FALSE(CrossTrainedOn<N&, N&, N>);
  STATIC_REQUIRE(LayerTrainedOn<Linear<float>, Tensor<Float16, 2>&>);
  STATIC_REQUIRE_FALSE(LayerTrainedOn<Linear<float>, Tensor<Float16, 2>>);
  STATIC_REQUIRE_FALSE(LayerTrainedOn<Linear<double>, Tensor<Float16, 2>&>);
  STATIC_REQUIRE_FALSE(LayerTrainedOn<LayerNorm<float>, Tensor<Float16, 2>>);
  STATIC_REQUIRE_FALSE(LayerTrainedOn<RMSNorm<float>, Tensor<Float16, 2>>);
  STATIC_REQUIRE(LayerTrainedOn<Linear<float>, Tensor2<float>&>);
  STATIC_REQUIRE_FALSE(LayerTrainedOn<Linear<float>, Tensor2<float>>);
  STATIC_REQUIRE(LayerTrainedOn<LayerNorm<float>, Tensor2<float>&>);
  STATIC_REQUIRE_FALSE(LayerTrainedOn<LayerNorm<float>, Tensor2<float>>);
  STATIC_REQUIRE(LengthsIn<std::vector<Index>&>);
  STATIC_REQUIRE((LengthsIn<std::array<Index, 2>&> && LengthsIn<std::span<const Index>>));
  STATIC_REQUIRE_FALSE((LengthsIn<std::vector<Index>> || LengthsIn<std::array<Index, 2>>));
  STATIC_REQUIRE((PackedBy<std::vector<Index>&> && PackedBy<const std::array<Index, 3>&>));
  STATIC_REQUIRE((PackedBy<std::span<const Index>> && PackedBy<std::span<Index>>));
  STATIC_REQUIRE_FALSE((PackedBy<std::vector<Index>> || PackedBy<const std::array<Index, 3>>));
  STATIC_REQUIRE((CutBy<std::vector<Index>&> && CutBy<std::span<const Index>>));
  STATIC_REQUIRE_FALSE((CutBy<std::vector<Index>> || CutBy<const std::array<Index, 3>>));
  STATIC_REQUIRE((CountedBy<std::vector<Index>&> && CountedBy<std::span<Index>>));
  STATIC_REQUIRE_FALSE((CountedBy<std::vector<Index>> || CountedBy<std::array<Index, 2>>));
}

TEST_CASE("a step may leave its call out by braces", "[bad_calls]") {
  STATIC_REQUIRE(StepsWithoutACall<MultiHeadAttention<float>>);
  STATIC_REQUIRE(StepsWithoutACall<TransformerBlock<float>>);
}

TEST_CASE("a const Eigen matrix is not written to, and a cache is not copied", "[bad_calls]") {
  STATIC_REQUIRE(SetFromEigen<EigenMatrix<float>>);
  STATIC_REQUIRE_FALSE(SetFromEigen<const EigenMatrix<float>>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<MultiHeadAttention<float>::Cache>);
  STATIC_REQUIRE_FALSE(std::is_copy_assignable_v<MultiHeadAttention<float>::Cache>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<Tensor2<float>, In<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<Shape<2>, int, int, int>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<Shape<2>, double, double>);
  STATIC_REQUIRE_FALSE(Scalar<bool>);
  STATIC_REQUIRE_FALSE(Scalar<std::string>);
}

}  // namespace bad_calls_compile_time
