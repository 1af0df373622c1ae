// A caller's mistake throws before anything is written, and says which argument of which function
// it is.
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/catch.hpp"

using namespace headwise_tests;

namespace {

/// All that the four functions take, with outputs that hold 777.
struct Call {
  Tensor4<double> q, k, v, d_o, weights, o, dq, dk, dv;
  Tensor4<double> lse;
  AttentionOptions<double> options;

  Call()
      : q({2, 4, 5, 3}),
        k({2, 2, 7, 3}),
        v({2, 2, 7, 6}),
        d_o({2, 4, 5, 6}),
        weights({2, 4, 5, 7}),
        o({2, 4, 5, 6}),
        dq({2, 4, 5, 3}),
        dk({2, 2, 7, 3}),
        dv({2, 2, 7, 6}),
        lse({2, 4, 5, 2}) {
    mark();
  }
  void mark() {
    for (Tensor4<double>* x : {&weights, &o, &dq, &dk, &dv}) std::fill(x->begin(), x->end(), 777);
    std::fill(lse.begin(), lse.end(), 777);
  }
  bool untouched() const {
    const auto is_mark = [](double x) { return x == 777; };
    bool all = std::all_of(lse.begin(), lse.end(), is_mark);
    for (const auto* x : {&weights, &o, &dq, &dk, &dv}) {
      all = all && std::all_of(x->begin(), x->end(), is_mark);
    }
    return all;
  }
};

struct Function {
  const char* name;
  void (*call)(Call&, const Context&);
};
const Function functions[] = {
    {"attention_forward",
     [](Call& c, const Context& context) {
       attention_forward(c.q, c.k, c.v, c.options, c.weights, c.o, context);
     }},
    {"attention_backward",
     [](Call& c, const Context& context) {
       attention_backward(c.d_o, {c.q, c.k, c.v}, c.weights, c.options, {c.dq, c.dk, c.dv},
                          context);
     }},
    {"flash_attention_forward",
     [](Call& c, const Context& context) {
       flash_attention_forward(c.q, c.k, c.v, c.options, c.o, c.lse, context);
     }},
    {"flash_attention_backward",
     [](Call& c, const Context& context) {
       flash_attention_backward(c.d_o, {c.q, c.k, c.v}, c.o, c.lse, c.options, {c.dq, c.dk, c.dv},
                                context);
     }},
};
const Function& forward = functions[0];
const Function& backward = functions[1];
const Function& flash_forward = functions[2];
const Function& flash_backward = functions[3];

template <class Error>
std::string message(const Function& function, Call& call) {
  call.mark();
  try {
    function.call(call, {});
  } catch (const Error& error) {
    CHECK(call.untouched());
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

/// A function refuses the call after `spoil`, naming itself and the argument.
template <class Error = ShapeError, class Spoil>
void refuses(const Function& function, const std::string& what, Spoil spoil) {
  Call call;
  spoil(call);
  CAPTURE(function.name, what);
  CHECK_THAT(message<Error>(function, call),
             ContainsSubstring(std::string(function.name) + ": " + what));
}
template <class Error = ShapeError, class Spoil>
void all_refuse(const std::string& what, Spoil spoil) {
  for (const Function& function : functions) refuses<Error>(function, what, spoil);
}

using Tensor4d = Tensor4<double>;

}  // namespace

TEST_CASE("a call that is right is taken, and shows when it writes", "[ops]") {
  for (const Function& function : functions) {
    Call call;
    CAPTURE(function.name);
    CHECK(message<ShapeError>(function, call) == "no error");
    CHECK_FALSE(call.untouched());
  }
}

TEST_CASE("an error says function, argument, both shapes and where the wanted one is from",
          "[ops]") {
  Call call;
  call.k = Tensor4d(Shape{2, 2, 7, 4});
  CHECK(message<ShapeError>(forward, call) ==
        "attention_forward: k is [2, 2, 7, 4], expected [2, 2, 7, 3] "
        "(batch and head width of q [2, 4, 5, 3])");
  call = Call();
  call.v = Tensor4d(Shape{2, 2, 8, 6});
  CHECK(message<ShapeError>(flash_backward, call) ==
        "flash_attention_backward: v is [2, 2, 8, 6], expected [2, 2, 7, 6] "
        "(batch, heads and length of k [2, 2, 7, 3])");
  call = Call();
  call.options.dropout.rate = 1.5;
  CHECK(message<ArgumentError>(flash_forward, call) ==
        "flash_attention_forward: dropout rate is 1.500000, expected 0 to 1");
}

TEST_CASE("both attentions refuse inputs that do not fit together", "[ops]") {
  all_refuse("k is [3, 2, 7, 3]", [](Call& c) { c.k = Tensor4d(Shape{3, 2, 7, 3}); });
  all_refuse("k is [2, 2, 7, 2]", [](Call& c) { c.k = Tensor4d(Shape{2, 2, 7, 2}); });
  all_refuse("k is [2, 2, 7, 0]", [](Call& c) { c.k = Tensor4d(Shape{2, 2, 7, 0}); });
  all_refuse("k is", [](Call& c) { c.k = Tensor4d(); });
  all_refuse("v is [1, 2, 7, 6]", [](Call& c) { c.v = Tensor4d(Shape{1, 2, 7, 6}); });
  all_refuse("v is [2, 4, 7, 6]", [](Call& c) { c.v = Tensor4d(Shape{2, 4, 7, 6}); });
  all_refuse("v is [2, 2, 6, 6]", [](Call& c) { c.v = Tensor4d(Shape{2, 2, 6, 6}); });
  all_refuse("q has 4 heads, k has 3", [](Call& c) {
    c.k = Tensor4d(Shape{2, 3, 7, 3}), c.v = Tensor4d(Shape{2, 3, 7, 6});
  });
  all_refuse("q has 4 heads, k has 8", [](Call& c) {
    c.k = Tensor4d(Shape{2, 8, 7, 3}), c.v = Tensor4d(Shape{2, 8, 7, 6});
  });
  all_refuse("q has 4 heads, k has 0", [](Call& c) {
    c.k = Tensor4d(Shape{2, 0, 7, 3}), c.v = Tensor4d(Shape{2, 0, 7, 6});
  });
}

TEST_CASE("both attentions refuse outputs and kept results of another shape", "[ops]") {
  const auto spoil4 = [](Tensor4d Call::*member, int axis) {
    return [=](Call& c) {
      Shape<4> shape = (c.*member).shape();
      ++shape[axis];
      c.*member = Tensor4d(shape);
    };
  };
  for (int axis = 0; axis < 4; ++axis) {
    CAPTURE(axis);
    refuses(forward, "weights is", spoil4(&Call::weights, axis));
    refuses(backward, "weights is", spoil4(&Call::weights, axis));
    for (const Function& function : {forward, flash_forward, flash_backward}) {
      refuses(function, "o is", spoil4(&Call::o, axis));
    }
    for (const Function& function : {backward, flash_backward}) {
      refuses(function, "d_o is", spoil4(&Call::d_o, axis));
      refuses(function, "dq is", spoil4(&Call::dq, axis));
      refuses(function, "dk is", spoil4(&Call::dk, axis));
      refuses(function, "dv is", spoil4(&Call::dv, axis));
    }
    refuses(flash_forward, "lse is", spoil4(&Call::lse, axis));
    refuses(flash_backward, "lse is", spoil4(&Call::lse, axis));
  }
  refuses(flash_backward, "lse is", [](Call& c) { c.lse = {}; });
  refuses(backward, "weights is", [](Call& c) { c.weights = {}; });
}

TEST_CASE("both attentions refuse masks that do not fit the scores", "[ops]") {
  for (const Shape<4>& shape : {Shape{3, 4, 5, 7}, Shape{2, 2, 5, 7}, Shape{2, 4, 4, 7},
                                Shape{2, 4, 5, 8}, Shape{1, 1, 7, 5}, Shape{1, 1, 0, 7}}) {
    const Tensor<bool, 4> pairs(shape);
    const Tensor4d values(shape);
    CAPTURE(shape.format());
    all_refuse("Mask::keep is " + shape.format(),
               [&](Call& c) { c.options.mask.add(Mask::keep(pairs)); });
    all_refuse("Mask::drop is " + shape.format(),
               [&](Call& c) { c.options.mask.add(Mask::drop(pairs)); });
    all_refuse("Mask::bias is " + shape.format(),
               [&](Call& c) { c.options.mask.add(Mask::bias(values)); });
  }
  const Tensor<bool, 2> keys(Shape{3, 7}), square(Shape{7, 5});
  all_refuse("Mask::keep is [3, 1, 1, 7]",
             [&](Call& c) { c.options.mask.add(Mask::keep_keys(keys)); });
  all_refuse("Mask::drop is [3, 1, 1, 7]",
             [&](Call& c) { c.options.mask.add(Mask::drop_keys(keys)); });
  all_refuse("Mask::keep is [1, 1, 7, 5]",
             [&](Call& c) { c.options.mask.add(Mask::keep(square)); });
}

TEST_CASE("both attentions refuse key lengths and dropout rates out of range", "[ops]") {
  const std::vector<Index> none, three{1, 2, 3}, negative{3, -1}, long_one{8, 2};
  const auto with = [](const std::vector<Index>& lengths) {
    return [&lengths](Call& c) { c.options.mask.add(Mask::key_lengths(lengths)); };
  };
  all_refuse<ArgumentError>("Mask::key_lengths has 0 lengths, expected 2", with(none));
  all_refuse<ArgumentError>("Mask::key_lengths has 3 lengths, expected 2", with(three));
  all_refuse<ArgumentError>("Mask::key_lengths holds -1, expected 0 to 7", with(negative));
  all_refuse<ArgumentError>("Mask::key_lengths holds 8, expected 0 to 7", with(long_one));
  for (double rate : {-0.1, 1.0000001, std::numeric_limits<double>::quiet_NaN()}) {
    all_refuse<ArgumentError>("dropout rate is", [&](Call& c) { c.options.dropout.rate = rate; });
  }
}

TEST_CASE("a mask takes windows of at least 1, key lengths once and four terms of a kind",
          "[ops]") {
  AttentionMask<float> mask;
  CHECK_THROWS_WITH(mask.add(Mask::window(0)), "Mask::window: size is 0, expected >= 1");
  CHECK_THROWS_AS(mask.add(Mask::window(-3)), ArgumentError);
  CHECK(mask.window() == 0);
  const std::vector<Index> lengths{1};
  mask.add(Mask::key_lengths(lengths));
  CHECK_THROWS_WITH(mask.add(Mask::key_lengths(lengths)),
                    ContainsSubstring("key lengths are given twice"));
  const Tensor<bool, 4> pairs(Shape{1, 1, 1, 1});
  const Tensor4<float> values(Shape{1, 1, 1, 1});
  for (int n = 0; n < 4; ++n) mask.add(Mask::drop(pairs)), mask.add(Mask::bias(values));
  CHECK_THROWS_AS(mask.add(Mask::keep(pairs)), ArgumentError);
  CHECK_THROWS_AS(mask.add(Mask::bias(values)), ArgumentError);
  CHECK(mask.pair_masks().size() == 4);
  CHECK(mask.biases().size() == 4);
}

TEST_CASE("a bare array of bool, or numbers of another type, is no mask", "[ops]") {
  using M = AttentionMask<float>;
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
  STATIC_REQUIRE(std::is_constructible_v<M, Causal, PairMask, BiasMask<float>, Window, KeyLengths>);
}

TEST_CASE("memory that runs out leaves the outputs as they were", "[ops]") {
  ThreadPool pool(3);
  const Context context{.executor = pool, .memory = std::pmr::null_memory_resource()};
  for (const Function& function : functions) {
    Call call;
    CAPTURE(function.name);
    bool thrown = false;
    try {
      function.call(call, context);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    CHECK(thrown == call.untouched());  // what needs no memory succeeds
  }
}
