// Calls that are refused: each with its whole message, made over memory that holds a pattern, which
// has to be there bit for bit afterwards. All tables of a program form one catalogue, so that a
// test can ask whether a rule of the headers has a call in it.
#pragma once

#include <bit>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "headwise/headwise.hpp"
#include "support/action.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

/// Numbers between 1 and 2, no two alike: nothing that a call computes from them is what an output
/// held before. (NaN would not do: a NaN that is computed from is handed on bit for bit.)
inline double pattern(std::uint64_t n) {
  return std::bit_cast<double>(std::uint64_t{0x3FFu} << 52 | (n * 0x9E3779B97F4A7C15u) >> 12);
}

template <class T, int R>
std::string state_of(const Tensor<T, R>& x) {
  const auto bytes = static_cast<std::size_t>(x.size()) * sizeof(T);
  std::string state =
      x.shape().format() + std::to_string(reinterpret_cast<std::uintptr_t>(x.data()));
  if (bytes != 0) state.append(reinterpret_cast<const char*>(x.data()), bytes);
  return state;
}
template <class T, int R>
std::string state_of(const In<T, R>& x) {
  return x.shape().format() + x.strides().format() +
         std::to_string(reinterpret_cast<std::uintptr_t>(x.data()));
}
inline std::string state_of(const MultiHeadAttentionParameters<double>& p) {
  return state_of(p.w_qkv) + state_of(p.w_q) + state_of(p.w_k) + state_of(p.w_v) + state_of(p.w_o) +
         state_of(p.b_q) + state_of(p.b_k) + state_of(p.b_v) + state_of(p.b_o) + state_of(p.gamma) +
         state_of(p.beta) + state_of(p.gamma_q) + state_of(p.gamma_k) + state_of(p.sinks) +
         state_of(p.alibi_slopes) + state_of(p.relative_bias);
}
inline std::string state_of(const MultiHeadAttention<double>& module) {
  return state_of(module.parameters());
}
inline std::string state_of(const MultiHeadAttentionCache<double>& c) {
  return std::to_string(c.filled) + std::to_string(c.self_attention) +
         std::to_string(c.module.d_model) + std::to_string(c.module.num_heads) +
         std::to_string(c.call.path == Path::flash) + state_of(c.query) + state_of(c.key) +
         state_of(c.value) + state_of(c.query_copy) + state_of(c.key_copy) +
         state_of(c.value_copy) + state_of(c.x_norm) + state_of(c.mean) + state_of(c.rstd) +
         state_of(c.qkv) + state_of(c.q) + state_of(c.k) + state_of(c.v) + state_of(c.context) +
         state_of(c.weights) + state_of(c.lse) + state_of(c.q_normed) + state_of(c.k_normed) +
         state_of(c.q_rstd) + state_of(c.k_rstd);
}
template <class T>
std::string state_of(const LinearParameters<T>& p) {
  return state_of(p.w) + state_of(p.b);
}
inline std::string state_of(const LayerNormParameters<double>& p) {
  return state_of(p.gamma) + state_of(p.beta);
}
template <class T>
std::string state_of(const Linear<T>& layer) {
  return state_of(layer.parameters());
}
inline std::string state_of(const LayerNorm<double>& layer) { return state_of(layer.parameters()); }
inline std::string state_of(const Linear<double>::Cache& c) {
  return state_of(c.x) + std::to_string(c.filled);
}
inline std::string state_of(const LayerNorm<double>::Cache& c) {
  return state_of(c.x) + state_of(c.mean) + state_of(c.rstd) + std::to_string(c.filled);
}
inline std::string state_of(const RMSNormParameters<double>& p) { return state_of(p.gamma); }
inline std::string state_of(const RMSNorm<double>::Cache& c) {
  return state_of(c.x) + state_of(c.rstd) + std::to_string(c.filled);
}
inline std::string state_of(const FeedForwardParameters<double>& p) {
  return state_of(p.w_in) + state_of(p.b_in) + state_of(p.w_out) + state_of(p.b_out);
}
inline std::string state_of(const FeedForwardCache<double>& c) {
  return state_of(c.x) + state_of(c.hidden) + state_of(c.activated) + std::to_string(c.filled);
}
template <class Attention>
std::string state_of(const TransformerBlockParameters<double, double, Attention>& p) {
  return state_of(p.norm1) + state_of(p.attention) + state_of(p.norm2) + state_of(p.feed_forward);
}
inline std::string state_of(const TransformerHalfCache<double>& c) {
  return state_of(c.norm_input) + state_of(c.normed) + state_of(c.sum) + state_of(c.mean) +
         state_of(c.rstd);
}
inline std::string state_of(const TransformerBlockCache<double>& c) {
  return state_of(c.x) + state_of(c.x_copy) + state_of(c.first) + state_of(c.attention) +
         state_of(c.h) + state_of(c.second) + state_of(c.feed_forward) + std::to_string(c.filled);
}
template <class Block>
std::string state_of(const TransformerDecoderParameters<double, double, Block>& p) {
  std::string state = state_of(p.token) + state_of(p.position) + state_of(p.norm);
  for (const Block& block : p.blocks) state += state_of(block);
  return state;
}
inline std::string state_of(const TransformerDecoderCache<double>& c) {
  std::string state = state_of(c.tokens) + state_of(c.h) + state_of(c.normed) + state_of(c.norm) +
                      std::to_string(c.filled);
  for (const auto& input : c.inputs) state += state_of(input);
  for (const auto& block : c.blocks) state += state_of(block);
  return state;
}
inline std::string state_of(const TransformerDecoderState<double>& s) {
  return std::to_string(s.length()) + " of " + std::to_string(s.length() + s.room());
}
/// What is held, number by number, and how much more fits.
inline std::string state_of(const KeyValueCache<double>& c) {
  std::string state;
  const auto append = [&](const In<double, 4>& x) {
    for_each_index(x.shape(), [&](const Shape<4>& at) {
      state.append(reinterpret_cast<const char*>(&x(at)), sizeof(double));
    });
  };
  for (Index b = 0; b < c.options().batch_size && c.options().capacity != 0; ++b) {
    state += std::to_string(c.length(b)) + " and " + std::to_string(c.room(b)) + ", without " +
             std::to_string(c.gap(b).size) + ": ";
    append(c.k(b).rows());
    append(c.v(b));
  }
  return state;
}
inline std::string state_of(const AttentionMask<double>& m) {
  std::string state = std::to_string(m.is_causal()) + std::to_string(m.window()) +
                      std::to_string(m.first_keys()) + std::to_string(m.has_key_lengths()) +
                      std::to_string(m.key_lengths().size());
  for (const PairMask& mask : m.pair_masks()) state += state_of(mask.pairs);
  for (const BiasMask<double>& mask : m.biases()) state += state_of(mask.values);
  state += state_of(m.documents().ids) + state_of(m.documents().narrow_ids);
  state += std::to_string(m.functions().size());
  return state;
}

/// The memory and the objects of one call, and what they have to be after it.
class Witness {
 public:
  Witness() {
    trace_.record("before", In<double, 1>(Tensor1<double>(Shape{1}, {1.0})));
    flops_.add(777, 778);
  }

  /// A tensor that holds the pattern.
  template <std::integral... I>
  TensorView<double, static_cast<int>(sizeof...(I))> tensor(I... extents) {
    return tensor(Shape{extents...});
  }
  template <int R>
  TensorView<double, R> tensor(const Shape<R>& shape) {
    return {block(shape.size() + 1), shape};
  }
  /// A view of this shape, whatever it is, of memory that holds the pattern; or of none.
  template <class... I>
  TensorView<double, static_cast<int>(sizeof...(I))> unfounded(I... extents) {
    return {block(1), Shape{extents...}};
  }
  template <class... I>
  static TensorView<double, static_cast<int>(sizeof...(I))> null(I... extents) {
    return {nullptr, Shape{extents...}};
  }
  /// A tensor whose every index is one element.
  template <class... I>
  TensorView<double, static_cast<int>(sizeof...(I))> repeated(I... extents) {
    return {block(1), Shape{extents...}, Shape<static_cast<int>(sizeof...(I))>()};
  }
  template <int R>
  In<bool, R> bools(const Shape<R>& shape) {
    bools_.push_back(std::make_unique<Tensor<bool, 1>>(shape.size() + 1));
    return {bools_.back()->data(), shape};
  }

  /// An object that may not change from here on.
  template <class X>
  X& keep(X& x) {
    kept_.push_back({state_of(x), [&x] { return state_of(x); }});
    return x;
  }
  /// An object of the call's, which lives until it is looked at.
  template <class X, class... Arguments>
  X& make(Arguments&&... arguments) {
    auto object = std::make_shared<X>(std::forward<Arguments>(arguments)...);
    objects_.push_back(object);
    return *object;
  }

  Context context() { return {.flops = &flops_, .trace = &trace_}; }

  /// What was written, or an empty text.
  std::string written() const {
    std::uint64_t n = 0;
    for (const auto& values : blocks_) {
      for (const double& value : values) {
        if (std::bit_cast<std::uint64_t>(value) != std::bit_cast<std::uint64_t>(pattern(n++))) {
          return "a tensor";
        }
      }
    }
    for (const auto& kept : kept_) {
      if (kept.before != kept.now()) return "an object";
    }
    if (flops_.useful != 777 || flops_.executed != 778) return "the tally";
    return trace_.entries().size() == 1 ? "" : "the trace";
  }

 private:
  struct Kept {
    std::string before;
    std::function<std::string()> now;
  };
  double* block(Index size) {
    auto& values = blocks_.emplace_back();
    for (Index i = 0; i < size; ++i) values.push_back(pattern(count_++));
    return values.data();
  }

  std::list<std::vector<double>> blocks_;
  std::uint64_t count_ = 0;
  std::vector<std::unique_ptr<Tensor<bool, 1>>> bools_;
  std::vector<Kept> kept_;
  std::vector<std::shared_ptr<void>> objects_;
  FlopTally flops_;
  Trace trace_;
};

/// A call that throws an error of this kind with this message.
struct Refusal {
  std::string message;
  std::string error;  // ShapeError, ArgumentError
  Action<Witness&> call;
};

inline Refusal shape_error(std::string message, Action<Witness&> call) {
  return {std::move(message), "ShapeError", std::move(call)};
}
inline Refusal argument_error(std::string message, Action<Witness&> call) {
  return {std::move(message), "ArgumentError", std::move(call)};
}

/// The messages of every table of this program.
inline std::vector<std::string>& catalogued_messages() {
  static std::vector<std::string> messages;
  return messages;
}

/// A table, part of the catalogue.
class Refusals {
 public:
  Refusals(std::vector<Refusal> table) : table_(std::move(table)) {
    for (const Refusal& refusal : table_) catalogued_messages().push_back(refusal.message);
  }

  void check() const {
    for (const Refusal& refusal : table_) {
      Witness witness;
      std::string error = "nothing", message;
      try {
        refusal.call(witness);
      } catch (const ShapeError& thrown) {
        error = "ShapeError", message = thrown.what();
      } catch (const ArgumentError& thrown) {
        error = "ArgumentError", message = thrown.what();
      } catch (const std::exception& thrown) {
        error = "another error", message = thrown.what();
      }
      CAPTURE(refusal.message);
      CHECK(message == refusal.message);
      CHECK(error == refusal.error);
      CHECK(witness.written() == "");
    }
  }

 private:
  std::vector<Refusal> table_;
};

}  // namespace headwise_tests
