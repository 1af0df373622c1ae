// The four attention functions: outputs, and what forward keeps, of a wrong shape or in memory of
// something else; and no memory at all.
#include "bad_calls/attention_calls.hpp"
#include "headwise/runtime/thread_pool.hpp"

namespace bad_calls_attention_outputs {

using namespace headwise_tests;
using namespace headwise_tests::attention_calls;

namespace {

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

const std::string of_context = "q, head width of v", of_weights = "q by keys of k",
                  of_lse = "two numbers a query of q";
const std::pair<std::string, Member> q{"q", &Call::q}, k{"k", &Call::k}, v{"v", &Call::v},
    d_o{"d_o", &Call::d_o}, weights{"weights", &Call::weights}, o{"o", &Call::o},
    lse{"lse", &Call::lse}, dq{"dq", &Call::dq}, dk{"dk", &Call::dk};

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
  return {
      {overlaps("Mask::bias"),
       [=](Call& c) {
         const View4<double> out = c.*member;
         c.options.mask.add(Mask::bias(View4<double>(out.data() + 1, Shape{1, 1, 5, 7})));
       }},
      {overlaps("Mask::keep"),
       [=](Call& c) { c.options.mask.add(Mask::keep(first_bytes(c.*member))); }},
      {overlaps("Mask::drop"),
       [=](Call& c) { c.options.mask.add(Mask::drop(first_bytes(c.*member))); }},
      {overlaps("Mask::documents"),
       [=](Call& c) {
         const auto* ids = reinterpret_cast<const Index*>((c.*member).data());
         c.options.mask.add(Mask::documents(In<Index, 2>(ids, Shape{1, 7}, Shape{0, 0})));
       }},
      {overlaps("Mask::documents"),
       [=](Call& c) {
         const auto* ids = reinterpret_cast<const std::int32_t*>((c.*member).data());
         c.options.mask.add(Mask::documents(In<std::int32_t, 2>(ids, Shape{1, 7}, Shape{0, 0})));
       }},
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

}  // namespace bad_calls_attention_outputs
