// The same bits in 50 runs: on 1 to 16 threads, every tensor at another address with NaN around it,
// in a larger batch, in chunks of a causal sequence. Nothing here has a tolerance.
//
// Parameters' gradients are sums over the batch, so they are compared where the batch is the same.
#include <cstring>
#include <map>
#include <string>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace nn_determinism {

using namespace headwise_tests;

namespace {

constexpr int runs = 50;

/// A tensor at a random multiple of the element size from a boundary, with random gaps between its
/// rows and sequences. NaN lies in front, between and behind.
template <class T, int R>
struct Placed {
  Tensor<T, 1> storage;
  TensorView<T, R> view;

  Placed(Draw& draw, const Shape<R>& shape) {
    Shape<R> room = shape;
    std::array<Index, 2> first{};  // of the last two axes
    for (int axis = R - 2; axis < R; ++axis) {
      const Index gap = draw.between(0, 7);
      room[axis] += gap;
      first[static_cast<std::size_t>(axis - R + 2)] = draw.between(0, gap);
    }
    const Index offset = draw.between(0, 15);
    storage = Tensor<T, 1>(Shape{room.size() + offset});
    std::fill(storage.begin(), storage.end(), std::numeric_limits<T>::quiet_NaN());
    view = TensorView<T, R>(storage.data() + offset, room);
    view = slice(view, R - 2, first[0], shape[R - 2]);
    view = slice(view, R - 1, first[1], shape[R - 1]);
  }
  Placed(Draw& draw, const In<T, R>& values) : Placed(draw, values.shape()) { copy(values, view); }
};

/// Results by name, as dense copies.
template <class T>
struct Results {
  std::map<std::string, std::vector<T>> values = {};

  template <int R>
  void add(const std::string& name, const In<T, R>& x) {
    std::vector<T>& copied = values[name];
    for_each_index(x.shape(), [&](const Shape<R>& at) { copied.push_back(x(at)); });
  }
};

/// The names of what is not the same in every bit; what only one of them holds counts too.
template <class T>
std::string difference(const Results<T>& a, const Results<T>& b) {
  std::string names;
  for (const auto& [name, x] : a.values) {
    const auto found = b.values.find(name);
    const bool same = found != b.values.end() && found->second.size() == x.size() &&
                      std::memcmp(found->second.data(), x.data(), x.size() * sizeof(T)) == 0;
    if (!same) names += name + " ";
  }
  return names + (a.values.size() == b.values.size() ? "" : "(another number of results)");
}

template <class T>
struct Sequence {
  MultiHeadAttention<T> module{{.d_model = 20,
                                .num_heads = 4,
                                .num_kv_heads = 2,
                                .d_head = 7,
                                .d_value = 5,
                                .q_bias = true,
                                .v_bias = true,
                                .layer_norm = true,
                                .seed = 3}};
  Tensor<T, 3> x, key, value, dy;  // [2, 131, 20], [2, 263, 20] twice, [2, 131, 20]

  explicit Sequence(Draw& draw)
      : x(draw.tensor<T>(Shape{2, 131, 20})),
        key(draw.tensor<T>(Shape{2, 263, 20})),
        value(draw.tensor<T>(Shape{2, 263, 20})),
        dy(draw.tensor<T>(Shape{2, 131, 20})) {}
};

template <class T>
MultiHeadAttentionCall<T> causal_call(Path path) {
  MultiHeadAttentionCall<T> call;
  call.path = path;
  call.mask.add(causal);
  return call;
}

/// A causal self-attention, forward and backward.
template <class T>
Results<T> run_self(const MultiHeadAttention<T>& module, Path path, In<T, 3> x, In<T, 3> dy,
                    const Context& context = {}) {
  Results<T> results;
  MultiHeadAttentionCall<T> call = causal_call<T>(path);
  call.weight_dropout = {.rate = 0.2, .seed = 5};
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  results.add("y", In<T, 3>(module.forward(x, call, cache, context)));
  results.add("dx", In<T, 3>(module.backward(dy, cache, gradients, context)));
  gradients.for_each([&](const std::string& name, auto view) {
    results.add(name, In<T, decltype(view)::rank>(view));
  });
  return results;
}

/// A causal cross-attention: query i of L sees keys up to i + S - L.
template <class T>
Results<T> run_cross(const MultiHeadAttention<T>& module, Path path,
                     const std::array<In<T, 3>, 4>& inputs, const Context& context = {}) {
  const auto& [query, key, value, dy] = inputs;
  Results<T> results;
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  const auto call = causal_call<T>(path);
  results.add("y", In<T, 3>(module.forward(query, key, value, call, cache, context)));
  const auto d = module.backward_cross(dy, cache, gradients, context);
  results.add("d query", In<T, 3>(d.query));
  results.add("d key", In<T, 3>(d.key));
  results.add("d value", In<T, 3>(d.value));
  gradients.for_each([&](const std::string& name, auto view) {
    results.add(name, In<T, decltype(view)::rank>(view));
  });
  return results;
}

/// The attention alone, its outputs at random places too.
template <class T>
Results<T> run_attention(Draw& draw, Path path, const std::array<In<T, 4>, 4>& inputs,
                         const Context& context = {}) {
  const auto& [q, k, v, d_o] = inputs;
  const AttentionOptions<T> options{.mask = causal, .dropout = {.rate = 0.2, .seed = 5}};
  const Placed<T, 4> o(draw, d_o.shape()), dq(draw, q.shape()), dk(draw, k.shape()),
      dv(draw, v.shape());
  Results<T> results;
  if (path == Path::materialized) {
    const Placed<T, 4> p(draw, Shape{q.extent(0), q.extent(1), q.extent(2), k.extent(2)});
    attention_forward<T>(q, k, v, options, p.view, o.view, context);
    attention_backward<T>(d_o, {q, k, v}, p.view, options, {dq.view, dk.view, dv.view}, context);
    results.add("weights", In<T, 4>(p.view));
  } else {
    const Placed<T, 4> lse(draw, Shape{q.extent(0), q.extent(1), q.extent(2), Index{2}});
    flash_attention_forward<T>(q, k, v, options, o.view, lse.view, context);
    flash_attention_backward<T>(d_o, {q, k, v}, o.view, lse.view, options,
                                {dq.view, dk.view, dv.view}, context);
    results.add("lse", In<T, 4>(lse.view));
  }
  results.add("o", In<T, 4>(o.view));
  results.add("dq", In<T, 4>(dq.view));
  results.add("dk", In<T, 4>(dk.view));
  results.add("dv", In<T, 4>(dv.view));
  return results;
}

/// `inner` as elements at, at + 1 ... of a batch of `size` whose others are random.
template <class T>
Tensor<T, 3> among_others(Draw& draw, const Tensor<T, 3>& inner, Index at, Index size) {
  auto batch = draw.tensor<T>(Shape{size, inner.extent(1), inner.extent(2)});
  copy(In<T, 3>(inner), slice(as_view(batch), 0, at, inner.extent(0)));
  return batch;
}

}  // namespace

TEMPLATE_TEST_CASE("a module gives the same bits in 50 runs, on any threads, at any address",
                   "[nn]", float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  Draw draw(71);
  const Sequence<TestType> s(draw);
  const auto self = run_self<TestType>(s.module, path, s.x, s.dy);
  const auto cross = run_cross<TestType>(s.module, path, {s.x, s.key, s.value, s.dy});
  for (int run = 0; run < runs; ++run) {
    ThreadPool pool(1 + run % 16);
    const Context context{.executor = pool};
    const Placed<TestType, 3> x(draw, s.x), key(draw, s.key), value(draw, s.value), dy(draw, s.dy);
    CAPTURE(run);
    CHECK(difference(run_self<TestType>(s.module, path, x.view, dy.view, context), self) == "");
    CHECK(difference(
              run_cross<TestType>(s.module, path, {x.view, key.view, value.view, dy.view}, context),
              cross) == "");
  }
}

TEMPLATE_TEST_CASE("attention gives the same bits in 50 runs, on any threads, at any address",
                   "[nn]", float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  Draw draw(72);
  const auto q = draw.tensor<TestType>(Shape{2, 4, 131, 7}),
             k = draw.tensor<TestType>(Shape{2, 2, 263, 7});
  const auto v = draw.tensor<TestType>(Shape{2, 2, 263, 5}),
             d_o = draw.tensor<TestType>(Shape{2, 4, 131, 5});
  const auto expected = run_attention<TestType>(draw, path, {q, k, v, d_o});
  for (int run = 0; run < runs; ++run) {
    ThreadPool pool(1 + run % 16);
    const Placed<TestType, 4> a(draw, q), b(draw, k), c(draw, v), d(draw, d_o);
    CAPTURE(run);
    CHECK(difference(run_attention<TestType>(draw, path, {a.view, b.view, c.view, d.view},
                                             {.executor = pool}),
                     expected) == "");
  }
}

TEMPLATE_TEST_CASE("an element of a batch has the same bits among any others, in 50 runs", "[nn]",
                   float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  Draw draw(73);
  const Sequence<TestType> s(draw);
  auto expected = run_cross<TestType>(s.module, path, {s.x, s.key, s.value, s.dy});
  for (int run = 0; run < runs; ++run) {
    ThreadPool pool(1 + run % 16);
    const Index size = draw.between(3, 6), at = draw.between(0, size - 2);
    const auto x = among_others(draw, s.x, at, size), key = among_others(draw, s.key, at, size);
    const auto value = among_others(draw, s.value, at, size),
               dy = among_others(draw, s.dy, at, size);
    const auto all = run_cross<TestType>(s.module, path, {x, key, value, dy}, {.executor = pool});
    CAPTURE(run, size, at);
    for (const char* name : {"y", "d query", "d key", "d value"}) {
      const std::vector<TestType>& whole = all.values.at(name);
      const std::vector<TestType>& alone = expected.values.at(name);
      const std::size_t element = alone.size() / 2;  // two of them are embedded
      CAPTURE(name);
      CHECK(whole.size() == element * static_cast<std::size_t>(size));
      CHECK(std::memcmp(whole.data() + element * static_cast<std::size_t>(at), alone.data(),
                        alone.size() * sizeof(TestType)) == 0);
    }
  }
}

TEMPLATE_TEST_CASE("a causal sequence has the same bits in any chunks, in 50 runs", "[nn]", float,
                   double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  Draw draw(74);
  const Sequence<TestType> s(draw);
  const Index L = s.x.extent(1), past = s.key.extent(1) - L;
  const auto part = [](const Tensor<TestType, 3>& t, Index begin, Index count) {
    return slice(In<TestType, 3>(t), 1, begin, count);
  };
  MultiHeadAttentionCache<TestType> cache;
  auto gradients = s.module.zero_gradients();
  const auto call = causal_call<TestType>(path);
  const auto y = s.module.forward(s.x, s.key, s.value, call, cache);
  const auto d_query = s.module.backward_cross(s.dy, cache, gradients).query;
  for (int run = 0; run < runs; ++run) {
    ThreadPool pool(1 + run % 16);
    const Context context{.executor = pool};
    for (Index i = 0, n = 0; i < L; i += n) {
      n = draw.between(1, std::min(L - i, Index{1} << draw.between(1, 6)));
      const Placed<TestType, 3> x(draw, part(s.x, i, n)), dy(draw, part(s.dy, i, n));
      const Index keys = past + i + n;
      const auto chunk = run_cross<TestType>(
          s.module, path, {x.view, part(s.key, 0, keys), part(s.value, 0, keys), dy.view}, context);
      Results<TestType> expected = chunk;
      expected.values["y"].clear(), expected.values["d query"].clear();
      expected.add("y", part(y, i, n));
      expected.add("d query", part(d_query, i, n));
      CAPTURE(run, i, n);
      CHECK(difference(chunk, expected) == "");
    }
  }
}

TEST_CASE("a difference in one bit is named", "[nn]") {
  Results<float> a{{{"y", {1.0f, 2.0f}}, {"dx", {3.0f}}}}, b = a;
  CHECK(difference(a, b) == "");
  b.values["y"][1] = std::nextafter(2.0f, 3.0f);
  CHECK(difference(a, b) == "y ");
  b.values["z"] = {};
  CHECK(difference(a, b) == "y (another number of results)");
  a.values["dx"][0] = 0.0f, b.values["dx"][0] = -0.0f;
  CHECK(difference(a, b) == "dx y (another number of results)");
}

}  // namespace nn_determinism
