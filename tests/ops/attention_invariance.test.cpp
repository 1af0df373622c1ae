// The same bits always: for a row, a chunk, a batch element or a group of heads alone, at any
// address, with any number of threads, time after time. Nothing here has a tolerance.
#include <cmath>
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_attention_invariance {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{1, 1, 1, 1, 1, 1, 1},
                                   {2, 2, 1, 7, 11, 3, 5},
                                   {2, 4, 2, 49, 67, 5, 3},
                                   {1, 2, 2, 97, 131, 17, 8},
                                   {1, 2, 1, 47, 193, 8, 4},
                                   {1, 1, 1, 131, 131, 64, 64},
                                   beyond_tiles};

/// Which masks take part; each can be cut to a range of queries and the first keys.
struct Terms {
  const char* name;
  bool causal;
  Index window, first;
  bool lengths, keys, pairs, bias;
  Index documents = 0;
};
const std::vector<Terms> all_terms = {
    {"plain", false, 0, 0, false, false, false, false},
    {"key lengths", false, 0, 0, true, false, false, false},
    {"keys", false, 0, 0, false, true, false, false},
    {"pairs", false, 0, 0, false, false, true, false},
    {"bias", false, 0, 0, false, false, false, true},
    {"causal", true, 0, 0, false, false, false, false},
    {"causal window", true, 13, 0, false, false, false, false},
    {"causal window 80", true, 80, 0, false, false, false, false},
    {"causal sinks", true, 9, 4, false, false, false, false},
    {"causal documents", true, 0, 0, false, false, false, false, 50},
    {"causal documents, sinks", true, 9, 4, false, true, false, false, 33},
    {"causal all", true, 80, 3, true, true, true, true}};

template <class T>
struct Sequence {
  Case<T> x;
  Terms terms;
  Tensor<bool, 2> keys;   // [B, S]
  Tensor<bool, 4> pairs;  // [1, H, L, S]
  Tensor4<T> bias;        // [1, H, L, S]
  Tensor2<Index> ids;     // [B, S]
  std::vector<Index> lengths = {};

  Sequence(const Sizes& s, const Terms& which, std::uint64_t seed)
      : x(s, seed),
        terms(which),
        keys({s.B, s.S}),
        pairs({1, s.H, s.L, s.S}),
        bias(x.numbers.template tensor<T>(Shape{Index{1}, s.H, s.L, s.S})),
        ids({s.B, s.S}) {
    for_each_index(ids.shape(), [&](const Shape<2>& at) {
      ids(at) = (at[1] + 7 * at[0]) / std::max<Index>(1, which.documents);
    });
    for (bool& bit : keys) bit = x.numbers.coin(0.7);
    for (bool& bit : pairs) bit = x.numbers.coin(0.7);
    for (T& value : bias) {
      if (x.numbers.coin(0.1)) value = -std::numeric_limits<T>::infinity();
    }
  }

  /// Elements [b, b + nb), queries [i, i + n), all query heads, keys [0, S).
  Outputs<T> part(Path path, Index b, Index nb, Index i, Index n, Index S,
                  const Context& context = {}) {
    lengths.clear();
    for (Index e = b; e < b + nb; ++e) lengths.push_back(std::min(S, (e * 29 + x.sizes.S - 2) / 2));
    const auto batch = [&](auto& t) { return slice(t, 0, b, nb); };
    const auto square = [&](auto& t) { return slice(slice(t, 2, i, n), 3, 0, S); };
    AttentionOptions<T> options;
    if (terms.causal) options.mask.add(causal);
    if (terms.window != 0) options.mask.add(Mask::window(terms.window).keeping_first(terms.first));
    if (terms.lengths) options.mask.add(Mask::key_lengths(lengths));
    if (terms.keys) options.mask.add(Mask::keep_keys(slice(batch(keys), 1, 0, S)));
    const In<Index, 2> documents = slice(batch(ids), 1, 0, S);
    if (terms.documents != 0) options.mask.add(Mask::documents(documents));
    if (terms.pairs) options.mask.add(Mask::keep(square(pairs)));
    if (terms.bias) options.mask.add(Mask::bias(square(bias)));
    return run<T>(path, slice(batch(x.q), 2, i, n), slice(batch(x.k), 2, 0, S),
                  slice(batch(x.v), 2, 0, S), slice(batch(x.d_o), 2, i, n), options, context);
  }
  Outputs<T> whole(Path path, const Context& context = {}) {
    return part(path, 0, x.sizes.B, 0, x.sizes.L, x.sizes.S, context);
  }
};

/// What of queries [i, i + n) with the first S keys is not the same as in the whole.
template <class T>
std::string row_difference(Outputs<T>& all, const Outputs<T>& part, Index i, Index n, Index S) {
  const auto rows = [&](auto& t) { return slice(t, 2, i, n); };
  std::string names;
  if (!same_bits<T, 4>(rows(all.o), part.o)) names += "o ";
  if (!same_bits<T, 4>(rows(all.dq), part.dq)) names += "dq ";
  if (!all.lse.absent() && !same_bits<T, 4>(rows(all.lse), part.lse)) names += "lse ";
  if (!all.weights.absent() && !same_bits<T, 4>(slice(rows(all.weights), 3, 0, S), part.weights)) {
    names += "weights ";
  }
  return names;
}

/// Calls f(sequence) for every shape and mask, with what a failure needs to be repeated.
template <class T, class F>
void for_each_sequence(F&& f) {
  std::uint64_t seed = 2000;
  for (const Sizes& sizes : shapes) {
    for (const Terms& terms : all_terms) {
      ++seed;
      CAPTURE(sizes.format(), terms.name, seed);
      Sequence<T> sequence(sizes, terms, seed);
      f(sequence);
    }
  }
}

/// The same elements `offset` elements behind a 64-byte boundary.
template <class T>
struct Shifted {
  Tensor1<T> storage;
  View4<T> view;

  Shifted(const Tensor4<T>& x, Index offset)
      : storage(Shape{x.size() + offset}), view(storage.data() + offset, x.shape()) {
    copy(In<T, 4>(x), view);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a query alone has the bits that it has among others", "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for_each_sequence<TestType>([&](Sequence<TestType>& sequence) {
    const auto [B, H, G, L, S, d, dv] = sequence.x.sizes;
    Outputs<TestType> all = sequence.whole(path);
    std::string differences;
    for (Index i = 0; i < L; ++i) {
      // A causal query alone is the last one of its keys.
      const Index keys = sequence.terms.causal ? i + 1 + S - L : S;
      differences += row_difference(all, sequence.part(path, 0, B, i, 1, keys), i, 1, keys);
    }
    CHECK(differences == "");
  });
}

TEMPLATE_TEST_CASE("a sequence in chunks has the bits that it has whole", "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for_each_sequence<TestType>([&](Sequence<TestType>& sequence) {
    const auto [B, H, G, L, S, d, dv] = sequence.x.sizes;
    Outputs<TestType> all = sequence.whole(path);
    for (int round = 0; round < 4; ++round) {
      std::string differences, cuts;
      for (Index i = 0, n = 0; i < L; i += n) {
        n = 1 + sequence.x.numbers.below(std::min(L - i, Index{1} << (2 * round + 1)));
        cuts += " " + std::to_string(i);
        const Index keys = sequence.terms.causal ? i + n + S - L : S;
        differences += row_difference(all, sequence.part(path, 0, B, i, n, keys), i, n, keys);
      }
      CAPTURE(cuts);
      CHECK(differences == "");
    }
  });
}

TEST_CASE("the comparison of rows refuses other rows and other bits", "[ops]") {
  Sequence<double> sequence(Sizes{1, 2, 1, 7, 11, 3, 5}, all_terms[0], 2050);
  for (Path path : {Path::materialized, Path::flash}) {
    const bool tiled = path == Path::flash;
    Outputs<double> all = sequence.whole(path), part = sequence.part(path, 0, 1, 2, 3, 11);
    CHECK(row_difference(all, part, 2, 3, 11) == "");
    CHECK(row_difference(all, part, 1, 3, 11) == (tiled ? "o dq lse " : "o dq weights "));
    CHECK(row_difference(all, part, 2, 2, 11) == (tiled ? "o dq lse " : "o dq weights "));
    part.dq(0, 1, 2, 2) = std::nextafter(part.dq(0, 1, 2, 2), 9.0);
    CHECK(row_difference(all, part, 2, 3, 11) == "dq ");
  }
}

TEMPLATE_TEST_CASE("a causal query ignores the future to the bit", "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Sizes s = beyond_tiles;
  Case<TestType> x(s, 2100);
  x.causal();
  Outputs<TestType> before = run(path, x);
  const Index now = GENERATE(0, 1, 13, 47, 63, 95, 129);
  for (auto* of_keys : {&x.k, &x.v}) {
    for_each_index(of_keys->shape(), [&](const Shape<4>& i) {
      if (i[2] > now + s.S - s.L) (*of_keys)(i) = TestType(1e5) - TestType(3e4) * (*of_keys)(i);
    });
  }
  const Outputs<TestType> after = run(path, x);
  Outputs<TestType> past = after;
  const auto upto = [&](auto& t) { return contiguous(In<TestType, 4>(slice(t, 2, 0, now + 1))); };
  past.o = upto(past.o);
  past.dq = upto(past.dq);
  if (path == Path::materialized) past.weights = upto(past.weights);
  if (path == Path::flash) past.lse = upto(past.lse);
  CAPTURE(now);
  CHECK(row_difference(before, past, 0, now + 1, s.S) == "");
  CHECK(bit_difference(before, after) != "");
}

TEMPLATE_TEST_CASE("a batch element alone has the bits that it has in its batch", "[ops]", float,
                   double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for_each_sequence<TestType>([&](Sequence<TestType>& sequence) {
    const auto [B, H, G, L, S, d, dv] = sequence.x.sizes;
    Outputs<TestType> all = sequence.whole(path);
    for (Index b = 0; b < B; ++b) {
      const Outputs<TestType> one = sequence.part(path, b, 1, 0, L, S);
      const auto same = [&](auto& whole, const auto& alone) {
        return whole.absent() || same_bits<TestType, 4>(slice(whole, 0, b, 1), alone);
      };
      CHECK(same(all.o, one.o));
      CHECK(same(all.weights, one.weights));
      CHECK(same(all.dq, one.dq));
      CHECK(same(all.dk, one.dk));
      CHECK(same(all.dv, one.dv));
    }
  });
}

TEMPLATE_TEST_CASE("a group of heads alone has the bits that it has among others", "[ops]", float,
                   double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Sizes s{2, 6, 3, 49, 67, 5, 4};
  Case<TestType> x(s, 2200);
  x.causal();
  Outputs<TestType> all = run(path, x);
  const Index share = s.H / s.G;
  for (Index g = 0; g < s.G; ++g) {
    const auto part = [&](auto& t, Index heads) { return slice(t, 1, g * heads, heads); };
    const Outputs<TestType> one = run<TestType>(path, part(x.q, share), part(x.k, 1), part(x.v, 1),
                                                part(x.d_o, share), x.options);
    CAPTURE(g);
    CHECK(same_bits<TestType, 4>(part(all.o, share), one.o));
    CHECK(same_bits<TestType, 4>(part(all.dq, share), one.dq));
    CHECK(same_bits<TestType, 4>(part(all.dk, 1), one.dk));
    CHECK(same_bits<TestType, 4>(part(all.dv, 1), one.dv));
  }
}

TEMPLATE_TEST_CASE("an odd address changes no bit", "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Index offset = GENERATE(1, 3, 5, 7);
  for (const Sizes& s : shapes) {
    Case<TestType> x(s, 2300);
    x.causal(), x.keys(true);
    const Outputs<TestType> aligned = run(path, x);
    Shifted<TestType> q(x.q, offset), k(x.k, offset + 2), v(x.v, offset + 1), d_o(x.d_o, offset);
    CAPTURE(s.format(), offset);
    CHECK(bit_difference(run<TestType>(path, q.view, k.view, v.view, d_o.view, x.options),
                         aligned) == "");
    // The outputs too: over a copy of the inputs' storage, which has their shapes.
    Shifted<TestType> o(x.d_o, offset + 2), dq(x.q, offset), dk(x.k, offset), dv(x.v, offset + 4);
    if (path == Path::materialized) {
      Shifted<TestType> p(aligned.weights, offset);
      attention_forward(q.view, k.view, v.view, x.options, p.view, o.view);
      attention_backward(d_o.view, {q.view, k.view, v.view}, p.view, x.options,
                         {dq.view, dk.view, dv.view});
    } else {
      flash_attention_forward(q.view, k.view, v.view, x.options, o.view, {});
      flash_attention_backward(d_o.view, {q.view, k.view, v.view}, o.view, aligned.lse, x.options,
                               {dq.view, dk.view, dv.view});
    }
    CHECK(same_bits<TestType, 4>(o.view, aligned.o));
    CHECK(same_bits<TestType, 4>(dq.view, aligned.dq));
    CHECK(same_bits<TestType, 4>(dk.view, aligned.dk));
    CHECK(same_bits<TestType, 4>(dv.view, aligned.dv));
  }
}

TEMPLATE_TEST_CASE("any number of threads gives the same bits, time after time", "[ops]", float,
                   double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Index threads = GENERATE(1, 2, 3, 4);
  ThreadPool pool(threads);
  const Context context{.executor = pool};
  for_each_sequence<TestType>([&](Sequence<TestType>& sequence) {
    const Outputs<TestType> serial = sequence.whole(path);
    sequence.x.dropout(0.3);
    const Outputs<TestType> dropped = run(path, sequence.x);
    for (int time = 0; time < 3; ++time) {
      CAPTURE(threads, time);
      CHECK(bit_difference(sequence.whole(path, context), serial) == "");
      CHECK(bit_difference(run(path, sequence.x, context), dropped) == "");
    }
  });
}

}  // namespace ops_attention_invariance
