// The four attention functions: every argument wrong in every way that has a rule.
#include "headwise/runtime/thread_pool.hpp"
#include "support/refusal.hpp"

using namespace headwise_tests;

namespace {

/// What the four functions take, all of it right.
struct Call {
  explicit Call(Witness& m) : memory(m) {}
  Witness& memory;
  View4<double> q = memory.tensor(2, 4, 5, 3), k = memory.tensor(2, 2, 7, 3),
                v = memory.tensor(2, 2, 7, 6), d_o = memory.tensor(2, 4, 5, 6),
                weights = memory.tensor(2, 4, 5, 7), o = memory.tensor(2, 4, 5, 6),
                lse = memory.tensor(2, 4, 5, 2), dq = memory.tensor(2, 4, 5, 3),
                dk = memory.tensor(2, 2, 7, 3), dv = memory.tensor(2, 2, 7, 6);
  AttentionOptions<double> options = {};
  Context context = memory.context();
};

struct Function {
  std::string name;
  void (*call)(Call&);
};
const Function forward = {"attention_forward", [](Call& c) {
                            attention_forward(c.q, c.k, c.v, c.options, c.weights, c.o, c.context);
                          }};
const Function backward = {"attention_backward", [](Call& c) {
                             attention_backward(c.d_o, {c.q, c.k, c.v}, c.weights, c.options,
                                                {c.dq, c.dk, c.dv}, c.context);
                           }};
const Function flash_forward = {
    "flash_attention_forward",
    [](Call& c) { flash_attention_forward(c.q, c.k, c.v, c.options, c.o, c.lse, c.context); }};
const Function flash_backward = {"flash_attention_backward", [](Call& c) {
                                   flash_attention_backward(c.d_o, {c.q, c.k, c.v}, c.o, c.lse,
                                                            c.options, {c.dq, c.dk, c.dv},
                                                            c.context);
                                 }};
const std::vector<Function> all = {forward, backward, flash_forward, flash_backward};

struct Rule {
  std::string message;
  std::function<void(Call&)> spoil;
  bool of_shape = true;
};

/// Each rule for each function.
std::vector<Refusal> table(const std::vector<Function>& functions, const std::vector<Rule>& rules) {
  std::vector<Refusal> refusals;
  for (const Function& function : functions) {
    for (const Rule& rule : rules) {
      refusals.push_back({function.name + ": " + rule.message,
                          rule.of_shape ? "ShapeError" : "ArgumentError",
                          [function, spoil = rule.spoil](Witness& memory) {
                            Call call(memory);
                            spoil(call);
                            function.call(call);
                          }});
    }
  }
  return refusals;
}

using Member = View4<double> Call::*;

/// A tensor that must have one shape: each axis one too long, gone, and at a null address.
std::vector<Rule> shaped(const std::string& name, Member member, const Shape<4>& right,
                         const std::string& whence) {
  std::vector<Rule> rules;
  const auto wrong = [&](const Shape<4>& got) {
    return name + " is " + got.format() + ", expected " + right.format() + " (" + whence + ")";
  };
  for (int axis = 0; axis < 4; ++axis) {
    Shape<4> got = right;
    ++got[axis];
    rules.push_back({wrong(got), [=](Call& c) { c.*member = c.memory.tensor(got); }});
  }
  if (name != "lse") {
    rules.push_back({wrong(Shape<4>()), [=](Call& c) { c.*member = {}; }});
  }
  rules.push_back({name + " is " + right.format() + " at a null address, expected its elements",
                   [=](Call& c) { c.*member = View4<double>(nullptr, right); }});
  return rules;
}

/// An output laid over each of the tensors that it must not share an element with.
std::vector<Rule> own_memory(const std::string& name, Member member,
                             const std::vector<std::pair<std::string, Member>>& others) {
  std::vector<Rule> rules;
  for (const auto& [other_name, other_member] : others) {
    rules.push_back({name + " overlaps " + other_name + ", expected memory of its own",
                     [member, other = other_member](Call& c) {
                       // The last element of the one is the first of the other.
                       const auto a = c.*member, b = c.*other;
                       const auto block = c.memory.tensor(a.size() + b.size() - 1);
                       c.*other = {block.data(), b.shape()};
                       c.*member = {block.data() + b.size() - 1, a.shape()};
                     }});
  }
  rules.push_back(
      {name + " holds one element at two indices, expected elements of their own", [=](Call& c) {
         Shape<4> strides = (c.*member).strides();
         strides[2] = strides[3];
         c.*member = {(c.*member).data(), (c.*member).shape(), strides};
       }});
  return rules;
}

std::vector<Rule> masks() {
  std::vector<Rule> rules;
  for (const Shape<4>& shape : {Shape{3, 4, 5, 7}, Shape{2, 2, 5, 7}, Shape{2, 4, 4, 7},
                                Shape{2, 4, 5, 8}, Shape{1, 1, 7, 5}, Shape{1, 1, 0, 7}}) {
    const std::string is = " is " + shape.format() +
                           ", expected [2, 4, 5, 7] or 1 on an axis (scores are [B, H, L, S])";
    rules.push_back({"Mask::keep" + is,
                     [=](Call& c) { c.options.mask.add(Mask::keep(c.memory.bools(shape))); }});
    rules.push_back({"Mask::drop" + is,
                     [=](Call& c) { c.options.mask.add(Mask::drop(c.memory.bools(shape))); }});
    rules.push_back({"Mask::bias" + is,
                     [=](Call& c) { c.options.mask.add(Mask::bias(c.memory.tensor(shape))); }});
  }
  const auto is = [](const std::string& mask, const char* got) {
    return mask + " is " + got +
           ", expected [2, 4, 5, 7] or 1 on an axis (scores are [B, H, L, S])";
  };
  rules.push_back({is("Mask::keep", "[3, 1, 1, 7]"), [](Call& c) {
                     c.options.mask.add(Mask::keep_keys(c.memory.bools(Shape{3, 7})));
                   }});
  rules.push_back({is("Mask::drop", "[3, 1, 1, 7]"), [](Call& c) {
                     c.options.mask.add(Mask::drop_keys(c.memory.bools(Shape{3, 7})));
                   }});
  rules.push_back({is("Mask::keep", "[1, 1, 7, 5]"), [](Call& c) {
                     c.options.mask.add(Mask::keep(c.memory.bools(Shape{7, 5})));
                   }});
  const char* null = " is [1, 1, 5, 7] at a null address, expected its elements";
  rules.push_back({std::string("Mask::keep") + null, [](Call& c) {
                     c.options.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{5, 7})));
                   }});
  rules.push_back({std::string("Mask::drop") + null, [](Call& c) {
                     c.options.mask.add(Mask::drop(In<bool, 2>(nullptr, Shape{5, 7})));
                   }});
  rules.push_back({std::string("Mask::bias") + null,
                   [](Call& c) { c.options.mask.add(Mask::bias(c.memory.null(5, 7))); }});
  rules.push_back({"Mask::keep is [1, 1, -1, 7], expected extents of 0 or more", [](Call& c) {
                     c.options.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{-1, 7})));
                   }});
  rules.push_back(
      {"Mask::bias is [1, 1, 1, 562949953421312], expected extents whose product is at "
       "most 2^48",
       [](Call& c) { c.options.mask.add(Mask::bias(c.memory.unfounded(1, Index{1} << 49))); }});
  return rules;
}

std::vector<Rule> options() {
  static const std::vector<Index> none, three{1, 2, 3}, negative{3, -1}, longer{8, 2};
  const auto lengths = [](const std::vector<Index>& given) {
    return [&given](Call& c) { c.options.mask.add(Mask::key_lengths(given)); };
  };
  const auto rate = [](double given) {
    return [given](Call& c) { c.options.dropout.rate = given; };
  };
  const auto scale = [](double given) { return [given](Call& c) { c.options.scale = given; }; };
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string no_scale = "scale is not finite, expected a number, or none for 1 / sqrt(d)";
  return {
      {"Mask::key_lengths has 0 lengths, expected 2 (the batch size)", lengths(none), false},
      {"Mask::key_lengths has 3 lengths, expected 2 (the batch size)", lengths(three), false},
      {"Mask::key_lengths holds -1, expected 0 to 7 (the number of keys)", lengths(negative),
       false},
      {"Mask::key_lengths holds 8, expected 0 to 7 (the number of keys)", lengths(longer), false},
      {"dropout rate is -0.100000, expected 0 to 1", rate(-0.1), false},
      {"dropout rate is 1.500000, expected 0 to 1", rate(1.5), false},
      {"dropout rate is nan, expected 0 to 1", rate(std::numeric_limits<double>::quiet_NaN()),
       false},
      {no_scale, scale(infinity), false},
      {no_scale, scale(-infinity), false},
      {no_scale, scale(std::numeric_limits<double>::quiet_NaN()), false},
  };
}

std::vector<Rule> inputs() {
  const auto k = [](auto... extents) {
    return [=](Call& c) { c.k = c.memory.tensor(extents...); };
  };
  const auto v = [](auto... extents) {
    return [=](Call& c) { c.v = c.memory.tensor(extents...); };
  };
  const auto k_and_v = [](Index heads) {
    return [=](Call& c) {
      c.k = c.memory.tensor(2, heads, 7, 3), c.v = c.memory.tensor(2, heads, 7, 6);
    };
  };
  const std::string of_q = " (batch and head width of q [2, 4, 5, 3])",
                    of_k = " (batch, heads and length of k [2, 2, 7, 3])",
                    divisor = ", expected a divisor of the former",
                    huge =
                        " is [2, 1, 1, 281474976710656], expected extents whose product is at "
                        "most 2^48",
                    null = " at a null address, expected its elements";
  const Index far = Index{1} << 48;
  return {
      {"k is [3, 2, 7, 3], expected [2, 2, 7, 3]" + of_q, k(3, 2, 7, 3)},
      {"k is [2, 2, 7, 2], expected [2, 2, 7, 3]" + of_q, k(2, 2, 7, 2)},
      {"k is [2, 2, 7, 0], expected [2, 2, 7, 3]" + of_q, k(2, 2, 7, 0)},
      {"k is [0, 0, 0, 0], expected [2, 0, 0, 3]" + of_q, [](Call& c) { c.k = {}; }},
      {"v is [1, 2, 7, 6], expected [2, 2, 7, 6]" + of_k, v(1, 2, 7, 6)},
      {"v is [2, 4, 7, 6], expected [2, 2, 7, 6]" + of_k, v(2, 4, 7, 6)},
      {"v is [2, 2, 8, 6], expected [2, 2, 7, 6]" + of_k, v(2, 2, 8, 6)},
      {"q has 4 heads, k has 3" + divisor, k_and_v(3)},
      {"q has 4 heads, k has 8" + divisor, k_and_v(8)},
      {"q has 4 heads, k has 0" + divisor, k_and_v(0)},
      {"q is [2, 4, 5, 3]" + null, [](Call& c) { c.q = c.memory.null(2, 4, 5, 3); }},
      {"k is [2, 2, 7, 3]" + null, [](Call& c) { c.k = c.memory.null(2, 2, 7, 3); }},
      {"v is [2, 2, 7, 6]" + null, [](Call& c) { c.v = c.memory.null(2, 2, 7, 6); }},
      {"q is [2, 4, -5, 3], expected extents of 0 or more",
       [](Call& c) { c.q = c.memory.null(2, 4, -5, 3); }},
      {"k is [2, 2, -7, 3], expected extents of 0 or more",
       [](Call& c) { c.k = c.memory.null(2, 2, -7, 3); }},
      {"v is [2, 2, 7, -6], expected extents of 0 or more",
       [](Call& c) { c.v = c.memory.null(2, 2, 7, -6); }},
      {"q" + huge, [=](Call& c) { c.q = c.memory.unfounded(2, 1, 1, far); }},
      {"k" + huge, [=](Call& c) { c.k = c.memory.unfounded(2, 1, 1, far); }},
      {"v" + huge, [=](Call& c) { c.v = c.memory.unfounded(2, 1, 1, far); }},
  };
}

const std::string of_context = "q, head width of v", of_weights = "q by keys of k",
                  of_lse = "two numbers a query of q";
const std::pair<std::string, Member> q{"q", &Call::q}, k{"k", &Call::k}, v{"v", &Call::v},
    d_o{"d_o", &Call::d_o}, weights{"weights", &Call::weights}, o{"o", &Call::o},
    lse{"lse", &Call::lse}, dq{"dq", &Call::dq}, dk{"dk", &Call::dk};

const Refusals of_inputs(table(all, inputs())), of_masks(table(all, masks())),
    of_options(table(all, options()));

const std::vector<Refusals> of_shapes = {
    table({forward, backward}, shaped("weights", &Call::weights, {2, 4, 5, 7}, of_weights)),
    table({forward, flash_forward, flash_backward},
          shaped("o", &Call::o, {2, 4, 5, 6}, of_context)),
    table({flash_forward, flash_backward}, shaped("lse", &Call::lse, {2, 4, 5, 2}, of_lse)),
    table({backward, flash_backward}, shaped("d_o", &Call::d_o, {2, 4, 5, 6}, of_context)),
    table({backward, flash_backward}, shaped("dq", &Call::dq, {2, 4, 5, 3}, "the shape of q")),
    table({backward, flash_backward}, shaped("dk", &Call::dk, {2, 2, 7, 3}, "the shape of k")),
    table({backward, flash_backward}, shaped("dv", &Call::dv, {2, 2, 7, 6}, "the shape of v")),
    table({flash_backward},
          {{"lse is [0, 0, 0, 0], expected [2, 4, 5, 2] (two numbers a query of q)",
            [](Call& c) { c.lse = {}; }}}),
};

/// An output that lies in the storage of a mask.
std::vector<Rule> apart_from_masks(const std::string& name, Member member) {
  const auto overlaps = [&](const std::string& mask) {
    return name + " overlaps " + mask + ", expected memory of its own";
  };
  const auto first_bytes = [](const View4<double>& x) {
    return View4<bool>(reinterpret_cast<bool*>(x.data()), Shape{1, 1, 1, 7});
  };
  return {{overlaps("Mask::bias"),
           [=](Call& c) {
             const View4<double> out = c.*member;
             c.options.mask.add(Mask::bias(View4<double>(out.data() + 1, Shape{1, 1, 5, 7})));
           }},
          {overlaps("Mask::keep"),
           [=](Call& c) { c.options.mask.add(Mask::keep(first_bytes(c.*member))); }},
          {overlaps("Mask::drop"),
           [=](Call& c) { c.options.mask.add(Mask::drop(first_bytes(c.*member))); }},
          {overlaps("Mask::key_lengths"), [=](Call& c) {
             static std::vector<Index> storage(1000);  // two lengths of 0, and the output behind
             c.options.mask.add(Mask::key_lengths(std::span<const Index>(storage.data(), 2)));
             c.*member = {reinterpret_cast<double*>(storage.data() + 1), (c.*member).shape()};
           }}};
}

const std::vector<Refusals> of_overlaps = {
    table({forward}, apart_from_masks("weights", &Call::weights)),
    table({forward, flash_forward}, apart_from_masks("o", &Call::o)),
    table({flash_forward}, apart_from_masks("lse", &Call::lse)),
    table({backward, flash_backward}, apart_from_masks("dq", &Call::dq)),
    table({backward, flash_backward}, apart_from_masks("dk", &Call::dk)),
    table({backward, flash_backward}, apart_from_masks("dv", &Call::dv)),
    table({forward}, own_memory("weights", &Call::weights, {q, k, v})),
    table({forward}, own_memory("o", &Call::o, {q, k, v, weights})),
    table({flash_forward}, own_memory("o", &Call::o, {q, k, v})),
    table({flash_forward}, own_memory("lse", &Call::lse, {q, k, v, o})),
    table({backward}, own_memory("dq", &Call::dq, {d_o, q, k, v, weights})),
    table({backward}, own_memory("dk", &Call::dk, {d_o, q, k, v, weights, dq})),
    table({backward}, own_memory("dv", &Call::dv, {d_o, q, k, v, weights, dq, dk})),
    table({flash_backward}, own_memory("dq", &Call::dq, {d_o, q, k, v, o, lse})),
    table({flash_backward}, own_memory("dk", &Call::dk, {d_o, q, k, v, o, lse, dq})),
    table({flash_backward}, own_memory("dv", &Call::dv, {d_o, q, k, v, o, lse, dq, dk})),
};

}  // namespace

TEST_CASE("a call of an attention that is right is taken, and shows when it writes",
          "[bad_calls]") {
  for (const Function& function : all) {
    Witness memory;
    Call call(memory);
    CAPTURE(function.name);
    function.call(call);
    CHECK(memory.written() == "a tensor");
  }
}

TEST_CASE("attentions refuse inputs that do not fit together", "[bad_calls]") { of_inputs.check(); }

TEST_CASE("attentions refuse masks that do not fit the scores", "[bad_calls]") { of_masks.check(); }

TEST_CASE("attentions refuse key lengths, rates and scales out of range", "[bad_calls]") {
  of_options.check();
}

TEST_CASE("attentions refuse outputs and kept results of another shape", "[bad_calls]") {
  for (const Refusals& refusals : of_shapes) refusals.check();
}

TEST_CASE("attentions refuse outputs that overlap inputs, each other or themselves",
          "[bad_calls]") {
  for (const Refusals& refusals : of_overlaps) refusals.check();
}

TEST_CASE("heads that lie between each other in one storage do not overlap", "[bad_calls]") {
  Tensor3<double> qkv({2, 6, 20}), d_qkv({2, 6, 20});  // 2 heads each, widths 3, 3 and 4
  Tensor4<double> context({2, 2, 6, 4}), kept({2, 2, 6, 2});
  const auto heads = [](Tensor3<double>& x, Index first, Index width) {
    return split_heads(slice(x, 2, first, 2 * width), 2);
  };
  const auto q_heads = heads(qkv, 0, 3), k_heads = heads(qkv, 6, 3), v_heads = heads(qkv, 12, 4);
  flash_attention_forward(q_heads, k_heads, v_heads, {}, context, kept);
  CHECK_NOTHROW(
      flash_attention_backward(context, {q_heads, k_heads, v_heads}, context, kept, {},
                               {heads(d_qkv, 0, 3), heads(d_qkv, 6, 3), heads(d_qkv, 12, 4)}));
  CHECK_THROWS_AS(
      flash_attention_backward(context, {q_heads, k_heads, v_heads}, context, kept, {},
                               {heads(d_qkv, 0, 3), heads(d_qkv, 5, 3), heads(d_qkv, 12, 4)}),
      ShapeError);
}

TEST_CASE("an attention that gets no memory throws bad_alloc and writes nothing", "[bad_calls]") {
  ThreadPool pool(3);
  for (const Function& function : all) {
    Witness memory;
    Call call(memory);
    call.context.executor = pool;
    call.context.memory = std::pmr::null_memory_resource();
    CAPTURE(function.name);
    CHECK_THROWS_AS(function.call(call), std::bad_alloc);
    CHECK(memory.written() == "");
  }
}
