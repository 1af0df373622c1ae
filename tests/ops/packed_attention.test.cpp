// Packed sequences against each of them alone and against a padded batch: to the bit.
#include "headwise/ops/packed_attention.hpp"

#include "headwise/runtime/tally.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/packed_sequence.hpp"

namespace ops_packed_attention {

using namespace headwise_tests;

namespace {

struct Lengths {
  Index queries, keys;
};
// 0, 1, primes, one below and above tiles and blocks of both, L != S.
const std::vector<Lengths> all_lengths = {{5, 5},     {0, 7},     {1, 1},   {131, 131}, {7, 0},
                                          {600, 530}, {1, 300},   {47, 67}, {0, 0},     {67, 47},
                                          {127, 255}, {129, 257}, {1, 2},   {521, 521}, {128, 256},
                                          {13, 13},   {0, 0}};

template <class T>
struct Results {
  Tensor3<T> o, lse, dq, dk, dv;
};

/// Sequences, their starts, and heads that the tensors hold dense or between others.
template <class T>
struct Packed {
  static constexpr Index H = 4, G = 2, d = 5, dv = 3;
  std::vector<Index> query_starts = {0}, key_starts = {0};
  Tensor3<T> q, k, v, d_o;

  explicit Packed(const std::vector<Lengths>& lengths, std::uint64_t seed = 31) {
    for (const auto& [L, S] : lengths) {
      query_starts.push_back(query_starts.back() + L);
      key_starts.push_back(key_starts.back() + S);
    }
    Numbers numbers(seed);
    const Index N = query_starts.back(), M = key_starts.back();
    q = numbers.tensor<T>(Shape{N, H, d}), k = numbers.tensor<T>(Shape{M, G, d});
    v = numbers.tensor<T>(Shape{M, G, dv}), d_o = numbers.tensor<T>(Shape{N, H, dv});
  }

  Index count() const { return static_cast<Index>(query_starts.size()) - 1; }
  PackedSequences<T> inputs() const { return {q, k, v, query_starts, key_starts}; }

  Results<T> run(const AttentionOptions<T>& options, const Context& context = {}) const {
    Results<T> y{Tensor3<T>(d_o.shape()), Tensor3<T>(Shape{q.extent(0), H, Index{2}}),
                 Tensor3<T>(q.shape()), Tensor3<T>(k.shape()), Tensor3<T>(v.shape())};
    for (Tensor3<T>* x : {&y.o, &y.lse, &y.dq, &y.dk, &y.dv}) std::fill(x->begin(), x->end(), T(7));
    packed_attention_forward(inputs(), options, y.o, y.lse, context);
    packed_attention_backward(d_o, inputs(), y.o, y.lse, options, {y.dq, y.dk, y.dv}, context);
    return y;
  }
};

/// Whether all elements are the same; by their bits, where all of them count (of long double not).
template <class T, int R>
bool same(const In<T, R>& a, const In<T, R>& b) {
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) return same_bits<T, R>(a, b);
  bool equal = a.shape() == b.shape();
  if (equal) for_each_index(a.shape(), [&](const Shape<R>& i) { equal = equal && a(i) == b(i); });
  return equal;
}

/// What of sequence b is not, to the bit, what a call for it alone gives.
template <class T>
std::string difference_from_alone(const Packed<T>& x, const Results<T>& y, Index b,
                                  const AttentionOptions<T>& options) {
  const auto of_queries = [&](const Tensor3<T>& t) { return sequence(t, x.query_starts, b); };
  const auto of_keys = [&](const Tensor3<T>& t) { return sequence(t, x.key_starts, b); };
  const Outputs<T> alone =
      run<T>(Path::flash, of_queries(x.q), of_keys(x.k), of_keys(x.v), of_queries(x.d_o), options);
  std::string names;
  if (!same<T, 4>(of_queries(y.o), alone.o)) names += "o ";
  if (!same<T, 4>(of_queries(y.lse), alone.lse)) names += "lse ";
  if (!same<T, 4>(of_queries(y.dq), alone.dq)) names += "dq ";
  if (!same<T, 4>(of_keys(y.dk), alone.dk)) names += "dk ";
  if (!same<T, 4>(of_keys(y.dv), alone.dv)) names += "dv ";
  return names;
}

template <class T>
struct Kind {
  const char* name;
  AttentionMask<T> mask;
};
template <class T>
std::vector<Kind<T>> kinds() {
  return {{"plain", {}},
          {"causal", {causal}},
          {"window 9", {Mask::window(9)}},
          {"causal window 70", {causal, Mask::window(70)}},
          {"causal window 5, first 3", {causal, Mask::window(5).keeping_first(3)}}};
}

}  // namespace

TEMPLATE_TEST_CASE("a packed sequence has the bits that it has alone, forward and backward",
                   "[ops]", float, double) {
  const Index threads = GENERATE(1, 2, 3);
  ThreadPool pool(threads);
  const Packed<TestType> x(all_lengths);
  for (const Kind<TestType>& kind : kinds<TestType>()) {
    const AttentionOptions<TestType> options{.mask = kind.mask, .scale = TestType(0.3)};
    const auto y = x.run(options, {.executor = pool});
    for (Index b = 0; b < x.count(); ++b) {
      CAPTURE(threads, kind.name, b);
      CHECK(difference_from_alone(x, y, b, options) == "");
    }
  }
}

TEMPLATE_TEST_CASE("packed sequences of any other type have the bits that they have alone", "[ops]",
                   long double) {
  const Packed<TestType> x({{5, 5}, {0, 3}, {1, 1}, {13, 17}, {4, 0}});
  const AttentionOptions<TestType> options{.mask = {causal}};
  const auto y = x.run(options);
  for (Index b = 0; b < x.count(); ++b) {
    CAPTURE(b);
    CHECK(difference_from_alone(x, y, b, options) == "");
  }
}

TEMPLATE_TEST_CASE("the comparison with a sequence alone refuses other bits", "[ops]", double) {
  const Packed<TestType> x({{3, 4}, {5, 6}});
  auto y = x.run({});
  CHECK(difference_from_alone(x, y, 1, {}) == "");
  y.dk(4, 1, 2) = std::nextafter(y.dk(4, 1, 2), 9.0);
  y.o(3, 0, 0) = std::nextafter(y.o(3, 0, 0), 9.0);
  CHECK(difference_from_alone(x, y, 0, {}) == "");
  CHECK(difference_from_alone(x, y, 1, {}) == "o dk ");
}

TEMPLATE_TEST_CASE("packed sequences have the bits of a padded batch, dropout and biases too",
                   "[ops]", float, double) {
  using T = TestType;
  const std::vector<Index> lengths = {131, 1, 0, 67, 300, 13};
  std::vector<Lengths> both;
  for (const Index n : lengths) both.push_back({n, n});
  const Packed<T> x(both);
  constexpr Index H = Packed<T>::H, G = Packed<T>::G;
  const Index B = x.count(), L = 300;
  const auto padded = [&](const Tensor3<T>& t, T behind) {
    Tensor4<T> all(Shape{B, t.extent(1), L, t.extent(2)});
    std::fill(all.begin(), all.end(), behind);
    for (Index b = 0; b < B; ++b) {
      const In<T, 4> one = sequence(t, x.query_starts, b);
      copy(one, slice(slice(all, 0, b, 1), 2, 0, one.extent(2)));
    }
    return all;
  };
  // What stands in padding is hidden from the rest; nothing flows out of its queries.
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const Tensor4<T> q = padded(x.q, T(1)), k = padded(x.k, nan), v = padded(x.v, nan),
                   d_o = padded(x.d_o, T(0));
  Numbers numbers(5);
  const Tensor4<T> bias = numbers.tensor<T>(Shape{B, H, Index{1}, Index{1}});
  Tensor<bool, 4> keep(Shape{B, Index{1}, Index{1}, Index{1}});
  for (Index b = 0; b < B; ++b) keep(b, 0, 0, 0) = b != 3;
  for (const Index threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const Kind<T>& kind : kinds<T>()) {
      AttentionOptions<T> options{.mask = {kind.mask, Mask::bias(bias), Mask::keep(keep)},
                                  .dropout = {.rate = 0.3, .seed = 4, .step = 2}};
      const auto y = x.run(options, {.executor = pool});
      options.mask.add(Mask::key_lengths(lengths));
      const Outputs<T> batch = run<T>(Path::flash, q, k, v, d_o, options);
      for (Index b = 0; b < B; ++b) {
        CAPTURE(threads, kind.name, b);
        const auto same = [&](const Tensor3<T>& packed, const Tensor4<T>& all) {
          const In<T, 4> one = sequence(packed, x.query_starts, b);
          const In<T, 4> whole = slice(In<T, 4>(all), 0, b, 1);
          return same_bits<T, 4>(one, slice(whole, 2, 0, one.extent(2)));
        };
        CHECK(same(y.o, batch.o));
        CHECK(same(y.lse, batch.lse));
        CHECK(same(y.dq, batch.dq));
        CHECK(same(y.dk, batch.dk));
        CHECK(same(y.dv, batch.dv));
      }
    }
  }
  CHECK(G < H);
}

TEMPLATE_TEST_CASE("key lengths end the keys of each packed sequence", "[ops]", float, double) {
  const Packed<TestType> x({{9, 9}, {3, 0}, {130, 260}});
  const std::vector<Index> lengths = {4, 0, 133};
  const auto y = x.run({.mask = {causal, Mask::key_lengths(lengths)}});
  for (Index b = 0; b < x.count(); ++b) {
    CAPTURE(b);
    const std::vector<Index> own = {lengths[static_cast<std::size_t>(b)]};
    CHECK(difference_from_alone(x, y, b, {.mask = {causal, Mask::key_lengths(own)}}) == "");
  }
}

TEMPLATE_TEST_CASE("packed sequences in wider rows have the bits of dense ones", "[ops]", float,
                   double) {
  using T = TestType;
  using P = Packed<T>;
  const P x({{131, 131}, {1, 1}, {0, 0}, {300, 300}});
  const AttentionOptions<T> options{.mask = {causal}};
  const auto y = x.run(options);
  const Index N = x.q.extent(0), width = P::H * P::d + P::G * (P::d + P::dv);
  const auto heads = [&](Tensor2<T>& rows, Index first, Index count, Index w) {
    return View3<T>(rows.data() + first, Shape{N, count, w}, Shape{width, w, Index{1}});
  };
  Tensor2<T> qkv(Shape{N, width}), d_qkv(Shape{N, width});
  const Index at_k = P::H * P::d, at_v = at_k + P::G * P::d;
  copy(In<T, 3>(x.q), heads(qkv, 0, P::H, P::d));
  copy(In<T, 3>(x.k), heads(qkv, at_k, P::G, P::d));
  copy(In<T, 3>(x.v), heads(qkv, at_v, P::G, P::dv));
  const PackedSequences<T> inputs{heads(qkv, 0, P::H, P::d), heads(qkv, at_k, P::G, P::d),
                                  heads(qkv, at_v, P::G, P::dv), x.query_starts, x.key_starts};
  Tensor3<T> o(y.o.shape());
  packed_attention_forward(inputs, options, o, {});
  const auto dq = heads(d_qkv, 0, P::H, P::d), dk = heads(d_qkv, at_k, P::G, P::d),
             dv = heads(d_qkv, at_v, P::G, P::dv);
  packed_attention_backward<T>(x.d_o, inputs, o, y.lse, options, {dq, dk, dv});
  CHECK(same_bits<T, 3>(o, y.o));
  CHECK(same_bits<T, 3>(dq, y.dq));
  CHECK(same_bits<T, 3>(dk, y.dk));
  CHECK(same_bits<T, 3>(dv, y.dv));
}

TEST_CASE("packed sequences without a row, a key, a head or anything at all are taken", "[ops]") {
  for (const auto& lengths : std::vector<std::vector<Lengths>>{
           {}, {{0, 0}}, {{0, 0}, {0, 0}}, {{3, 0}, {2, 0}}, {{0, 3}, {0, 300}}}) {
    const Packed<double> x(lengths);
    CAPTURE(lengths.size());
    const auto y = x.run({.mask = {causal}});
    for (const double value : y.o) CHECK(value == 0);
    for (const auto* gradient : {&y.dq, &y.dk, &y.dv}) {
      for (const double value : *gradient) CHECK(value == 0);
    }
    for (Index n = 0; n < y.lse.extent(0); ++n) {
      CHECK(y.lse(n, 0, 0) == -std::numeric_limits<double>::infinity());
    }
  }
  const std::vector<Index> starts = {0, 2, 5};
  const Tensor3<double> q(Shape{5, 0, 3}), k(Shape{5, 2, 3});
  Tensor3<double> o(q.shape()), lse(Shape{5, 0, 2}), dq(q.shape()), dk(k.shape()), dv(k.shape());
  std::fill(dk.begin(), dk.end(), 7.0);
  const PackedSequences<double> no_heads{q, k, k, starts, starts};
  packed_attention_forward(no_heads, {}, o, lse);
  packed_attention_backward(o, no_heads, o, lse, {}, {dq, dk, dv});
  for (const double value : dk) CHECK(value == 0);
}

/// Counts calls for each sequence alone.
void run_alone(const Packed<float>& x, const AttentionOptions<float>& options, FlopTally& flops) {
  for (Index b = 0; b < x.count(); ++b) {
    const auto of_queries = [&](const Tensor3<float>& t) { return sequence(t, x.query_starts, b); };
    const auto of_keys = [&](const Tensor3<float>& t) { return sequence(t, x.key_starts, b); };
    run<float>(Path::flash, of_queries(x.q), of_keys(x.k), of_keys(x.v), of_queries(x.d_o), options,
               {.flops = &flops});
  }
}

TEST_CASE(
    "useful FLOPs of packed sequences are the sum of theirs, and memory is asked for as often",
    "[ops]") {
  const Packed<float> x(all_lengths);
  for (const Kind<float>& kind : kinds<float>()) {
    CAPTURE(kind.name);
    FlopTally together, each;
    MemoryTally memory;
    x.run({.mask = kind.mask}, {.memory = &memory, .flops = &together});
    CHECK(memory.allocations() == 1 + 3);  // scratch, deltas and turns
    CHECK(memory.live() == 0);
    run_alone(x, {.mask = kind.mask}, each);
    CHECK(together.useful == each.useful);
    CHECK(together.executed >= together.useful);
  }
}

TEST_CASE("executed FLOPs of packed sequences are the sum of theirs", "[ops]") {
  std::vector<Lengths> lengths;  // few queries alone have kernels of their own
  for (const Lengths& one : all_lengths) {
    const bool few = one.queries <= kernels::kernels_here<float>().decode.queries;
    if (one.queries == 0 || !few) lengths.push_back(one);
  }
  CHECK(lengths.size() >= 12);
  const Packed<float> x(lengths);
  for (const Kind<float>& kind : kinds<float>()) {
    CAPTURE(kind.name);
    FlopTally together, each;
    x.run({.mask = kind.mask}, {.flops = &together});
    run_alone(x, {.mask = kind.mask}, each);
    CHECK(together.executed == each.executed);
  }
}

}  // namespace ops_packed_attention
