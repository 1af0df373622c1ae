// A language model: vectors of tokens and positions, blocks one after the other, a norm, and the
// table of tokens once more as head; and decoding from the keys and values of the tokens so far.
#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/nn/transformer_decoder_state.hpp"
#include "headwise/nn/transformer_decoder_steps.hpp"
#include "headwise/runtime/viewed_input.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// logits = norm(blocks(token_t + position_l)) token^T, causal and within options.window, where
/// there is one. Where options.block.rotary turns queries and keys by their positions,
/// options.position_vectors = false leaves position_l out.
///
/// Parameters are plain data; forward, backward and step are const and keep what they need in a
/// cache or a state of the caller's. A call that throws, std::bad_alloc included, leaves cache,
/// state and gradients as they were; only an executor of the caller's that throws while it runs may
/// leave gradients of token, position and norm that are added to in part.
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; post-LN:
/// Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018.
///
/// Matrices may be kept as BFloat16 or Float16 (store_weights_as); gradients are floats, then.
template <Scalar T, KeptAs<T> W>
class TransformerDecoder {
 public:
  /// What it learns.
  using Parameters = TransformerDecoderParameters<T, W>;
  /// What one call is asked for: path, dropouts.
  using Call = TransformerDecoderCall;
  /// What forward leaves for backward.
  using Cache = TransformerDecoderCache<T>;
  /// What backward adds to.
  using Gradients = TransformerDecoderGradients<T>;
  /// What step has seen.
  using State = TransformerDecoderState<T>;

  /// Vectors of tokens and positions as normal numbers of options.embedding_deviation, block n as
  /// TransformerBlock(options.block_options(n)) starts, gamma 1, beta 0. Throws ArgumentError for
  /// options that make no decoder.
  explicit TransformerDecoder(const TransformerDecoderOptions& options)
      : options_(options.resolved<T>()), parameters_(options_) {
    const double deviation = options_.embedding_deviation;
    init_normal<W>(parameters_.token, deviation, options_.block.seed, 0);
    init_normal<T>(parameters_.position, deviation, options_.block.seed, 1);
    for (Index n = 0; n < options_.num_blocks; ++n) {
      TransformerBlock<T, W> block(options_.block_options(n));
      parameters_.blocks[static_cast<std::size_t>(n)] = std::move(block.parameters());
    }
    fill(Out<T, 1>(parameters_.norm.gamma), T(1));
  }
  /// Of parameters that are taken as they are.
  TransformerDecoder(TransformerDecoderOptions options,
                     TransformerDecoderParameters<T, W> parameters, detail::Unchecked)
      : options_(std::move(options)), parameters_(std::move(parameters)) {}
  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  TransformerDecoder(const TransformerDecoder&) = default;
  TransformerDecoder(TransformerDecoder&&) noexcept = default;
  TransformerDecoder& operator=(const TransformerDecoder& other) {
    return *this = TransformerDecoder(other);
  }
  TransformerDecoder& operator=(TransformerDecoder&&) noexcept = default;
  ///@}

  /// Logits [B L, V] of the token behind each of tokens [B, L]: inference.
  ///
  /// Throws ShapeError or ArgumentError for what does not fit, in the words of the module within
  /// where it is that one's rule, before anything is counted; and std::bad_alloc.
  template <TokenId Id>
  Tensor<T, 2> forward(In<Id, 2> tokens, const Call& call = {}, const Context& context = {}) const {
    Cache scratch;  // of this call alone
    return run(tokens, call, scratch, false, context);
  }
  /// The same, and what backward needs into the cache, once all has gone well. The cache keeps a
  /// copy of the tokens.
  template <TokenId Id>
  Tensor<T, 2> forward(In<Id, 2> tokens, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    Cache fresh;
    Tensor<T, 2> logits = run(tokens, call, fresh, true, context);
    cache = std::move(fresh);
    return logits;
  }

  /// Adds the gradients of the parameters to `gradients`, for d_logits [B L, V].
  ///
  /// Takes, while it runs, memory for a copy of the blocks' gradients.
  /// Throws ArgumentError for a cache that is empty or of a decoder of another shape, ShapeError,
  /// std::bad_alloc; nothing is changed then.
  void backward(In<T, 2> d_logits, const Cache& cache, Gradients& gradients,
                const Context& context = {}) const {
    constexpr std::string_view function = "TransformerDecoder::backward";
    detail::require_filled(function, cache);
    require(cache.module.same_shape(options_), function,
            "the cache is of a decoder of another shape, expected one that this decoder filled");
    require(cache.blocks.size() == parameters_.blocks.size(), function,
            "the cache or the decoder was moved from, expected a cache that this decoder filled");
    require_shape(function, "d_logits", d_logits, Shape{cache.tokens.size(), options_.vocabulary},
                  "the output");
    require_gradients(function, gradients, {"d_logits", d_logits});
    for (std::size_t n = 0; n < parameters_.blocks.size(); ++n) {
      detail::require_given_score_gradients(function, parameters_.blocks[n].attention,
                                            gradients.blocks[n].attention,
                                            cache.blocks[n].attention, {"d_logits", d_logits});
    }
    detail::decoder_backward<T>(options_, parameters_, d_logits, cache, gradients, context);
  }

  /// An empty state for sequences of at most `capacity` tokens; 0: max_length. Throws ArgumentError
  /// for extents that are none, ShapeError for more than memory holds, std::bad_alloc.
  State state(Index batch_size = 1, Index capacity = 0,
              std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return state(KeyValueCacheOptions{.batch_size = batch_size, .capacity = capacity}, memory);
  }
  /// The same with all that caches can be given: numbers of 16 bits, or, of a decoder without
  /// position vectors and window, a window, with which steps see less than forward does. With a
  /// window sequences may outgrow max_length. That of the decoder needs no mention.
  State state(KeyValueCacheOptions cache,
              std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    constexpr std::string_view function = "TransformerDecoder::state";
    const Index most = options_.max_length;
    if (cache.window == 0 && cache.first_keys == 0) {
      cache.window = options_.window, cache.first_keys = options_.first_keys;
    }
    const bool own = options_.window == 0 ||
                     (cache.window == options_.window && cache.first_keys == options_.first_keys);
    require(own, function, "window is ", cache.window, " with first_keys ", cache.first_keys,
            ", expected ", options_.window, " with ", options_.first_keys, ", the decoder's, or 0");
    require(cache.window == 0 || !options_.position_vectors, function,
            "window is given to a decoder with position vectors, expected none: a sequence would "
            "outgrow max_length");
    const bool fits = cache.capacity >= 0 && (cache.capacity <= most || cache.window != 0);
    require(fits, function, "capacity is ", cache.capacity, ", expected 1 to max_length ", most,
            ", or 0 for it");
    if (cache.capacity == 0 && cache.window == 0) cache.capacity = most;
    return State(options_, cache, memory);
  }

  /// Logits [B, V] of the token behind the last of tokens [B, n], n at least 1, which come behind
  /// those that the state has seen: inference. Of sequence b the first counts[b] of the n count,
  /// or all where no counts are given; what is behind them is not looked at, and where they are 0
  /// the sequence stays as it is and its logits are 0.
  ///
  /// The bits are those of forward of each whole sequence alone, for any cut into steps. Of the
  /// tokens before the last no logits are computed.
  /// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the state is as it
  /// was then, but that keys which no later query sees may be dropped.
  template <TokenId Id>
  Tensor<T, 2> step(In<Id, 2> tokens, std::span<const Index> counts, State& state,
                    const Context& context = {}) const {
    require_step("TransformerDecoder::step", tokens, counts, state);
    const Index B = tokens.extent(0), n = tokens.extent(1);
    const Tensor<T, 3> h = run_blocks(tokens, counts, state, context);
    auto last = Tensor<T, 3>::uninitialized({B, 1, options_.block.d_model}, context.memory);
    for (Index b = 0; b < B; ++b) {
      const Index at = std::max<Index>(detail::count_of(counts, b, n) - 1, 0);
      copy(In<T, 2>(slice(select(h, b), 0, at, 1)), select(last, b));
    }
    // 3 norm, 4 tied head
    Cache scratch;  // of this call alone
    Tensor<T, 2> logits = detail::logits_of<T>(options_, parameters_, last, scratch, context);
    for (Index b = 0; b < B; ++b) {
      if (detail::count_of(counts, b, n) == 0) fill(Out<T, 1>(select(logits, b)), T(0));
    }
    for (KeyValueCache<T>& cache : state.caches_) detail::NewTokens<T>::keep(cache, n, counts);
    return logits;
  }
  /// The same with logits [B n, V] behind each new token, those of sequence b from row b n on, 0
  /// behind its counts: what a draft is checked by before what it got wrong is rolled back, and
  /// how likely a text is.
  template <TokenId Id>
  Tensor<T, 2> step_each(In<Id, 2> tokens, std::span<const Index> counts, State& state,
                         const Context& context = {}) const {
    require_step("TransformerDecoder::step_each", tokens, counts, state);
    const Index B = tokens.extent(0), n = tokens.extent(1);
    Tensor<T, 3> h = run_blocks(tokens, counts, state, context);
    const auto clear_uncounted = [&](Out<T, 2> rows) {
      for (Index b = 0; b < B; ++b) {
        const Index count = detail::count_of(counts, b, n);
        fill(Out<T, 2>(slice(rows, 0, b * n + count, n - count)), T(0));
      }
    };
    clear_uncounted(merge_rows(h));
    // 3 norm, 4 tied head
    Cache scratch;  // of this call alone
    Tensor<T, 2> logits = detail::logits_of<T>(options_, parameters_, h, scratch, context);
    clear_uncounted(logits);
    for (KeyValueCache<T>& cache : state.caches_) detail::NewTokens<T>::keep(cache, n, counts);
    return logits;
  }
  /// The same of n tokens of each sequence.
  template <TokenId Id>
  Tensor<T, 2> step_each(In<Id, 2> tokens, State& state, const Context& context = {}) const {
    return step_each(tokens, {}, state, context);
  }
  /// The same of n tokens of each sequence.
  template <TokenId Id>
  Tensor<T, 2> step(In<Id, 2> tokens, State& state, const Context& context = {}) const {
    return step(tokens, {}, state, context);
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const TransformerDecoderOptions& options() const { return options_; }
  /// The weights, to be read and written.
  TransformerDecoderParameters<T, W>& parameters() { return parameters_; }
  /// The weights.
  const TransformerDecoderParameters<T, W>& parameters() const { return parameters_; }

 private:
  void require_parameters(std::string_view function) const {
    require_shape(function, "token", In<W, 2>(parameters_.token),
                  Shape{options_.vocabulary, options_.block.d_model},
                  "the options: a decoder that was moved from has none");
  }
  /// Steps 1 and 2 of new tokens [B, n]: rows [B, n, D], of which those behind the counts are not
  /// set. Their keys and values stand in the caches, which do not count them yet.
  template <class Id>
  Tensor<T, 3> run_blocks(const In<Id, 2>& tokens, std::span<const Index> counts, State& state,
                          const Context& context) const {
    const Index B = tokens.extent(0), n = tokens.extent(1);
    // 1 embedding
    const auto kept = detail::kept_tokens(tokens, counts, context.memory);
    const auto rows_of = [&](Index b) {
      return detail::PlacedRows{b * n, state.length(b), detail::count_of(counts, b, n)};
    };
    Tensor<T, 3> h = detail::embed<T>(parameters_, kept, B, rows_of, context);
    // 2 blocks
    MultiHeadAttentionStepCall<T> call{.counts = counts};
    options_.change_scores<T>(call);
    for (std::size_t b = 0; b < parameters_.blocks.size(); ++b) {
      h = detail::block_of_new_tokens<T>(options_.block, parameters_.blocks[b], h, call,
                                         state.caches_[b], context);
    }
    return h;
  }
  template <class Id>
  void require_step(std::string_view function, const In<Id, 2>& tokens,
                    std::span<const Index> counts, const State& state) const {
    require_parameters(function);
    const bool fits =
        state.caches_.size() == parameters_.blocks.size() && state.module_.same_shape(options_);
    require(fits, function,
            "the state is of a decoder of another shape, or was moved from, expected one that "
            "state() of this decoder made");
    const Index B = state.caches_[0].options().batch_size, n = tokens.extent(1);
    require_shape(function, "tokens", tokens, Shape{B, n}, "batch of the state");
    require(n >= 1, function, "tokens are none, expected at least one of each sequence");
    detail::require_counts(function, counts, B, n);
    state.caches_[0].require_room(function, n, counts);
  }
  void require_gradients(std::string_view function, const Gradients& gradients,
                         const detail::Footprint& d_logits) const {
    const auto check = [&](const char* name, const auto& mine, const auto& theirs) {
      require_shape(function, name, mine, theirs.shape(), "zero_gradients()");
    };
    check("gradients.token", gradients.token, parameters_.token);
    check("gradients.position", gradients.position, parameters_.position);
    check("gradients.norm.gamma", gradients.norm.gamma, parameters_.norm.gamma);
    check("gradients.norm.beta", gradients.norm.beta, parameters_.norm.beta);
    require(gradients.blocks.size() == parameters_.blocks.size(), function, "gradients are of ",
            gradients.blocks.size(), " blocks, expected ", parameters_.blocks.size(),
            " (zero_gradients())");
    for (std::size_t n = 0; n < parameters_.blocks.size(); ++n) {
      detail::require_block_gradients<T>(parameters_.blocks[n], gradients.blocks[n], d_logits);
    }
  }

  template <class Id>
  Tensor<T, 2> run(const In<Id, 2>& tokens, const Call& call, Cache& cache, bool training,
                   const Context& context) const {
    constexpr std::string_view function = "TransformerDecoder::forward";
    require_parameters(function);
    require_countable(function, "tokens", tokens);
    detail::require_lengths(function, options_, tokens.shape(), call);
    call.weight_dropout.require_valid(function);
    call.attention_dropout.require_valid(function);
    call.hidden_dropout.require_valid(function);
    call.output_dropout.require_valid(function);
    cache.tokens = detail::kept_tokens(tokens, {}, context.memory);
    cache.starts.assign(call.starts.begin(), call.starts.end());
    return detail::decoder_forward<T>(options_, parameters_, call, cache, training, context);
  }

  TransformerDecoderOptions options_;
  TransformerDecoderParameters<T, W> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
