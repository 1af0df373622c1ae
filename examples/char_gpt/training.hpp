// The training of a character model: the recipe, a step, what is held out, and going on from a
// checkpoint with the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "headwise/io/checkpoint.hpp"
#include "headwise/optim/adamw.hpp"
#include "headwise/optim/schedules.hpp"
#include "model.hpp"
#include "options.hpp"

namespace char_gpt {

using headwise::AdamW;
using headwise::CheckpointText;

/// Seconds since some moment.
inline double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// What a step consists of, for --profile.
inline constexpr std::array phases = {"draw the batch", "zero gradients", "forward and backward",
                                      "norm and AdamW"};
inline constexpr std::size_t differentiating = 2, updating = 3;  // of them

/// A step has no number to go down by.
class NoNumber : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A model, its optimiser, and what its steps gave. A step is a function of the state and of the
/// number of steps taken: so a run that is cut in two gives the bits of one that is not.
class Training {
 public:
  /// `options` are those of the whole run.
  Training(Model& model, const Text& text, const Options& options, const Context& context = {})
      : model_(model),
        text_(text),
        options_(options),
        context_(context),
        schedule_{.peak = 1e-3,
                  .floor = 1e-4,
                  .warmup_steps = warmup_steps,
                  .total_steps = std::max<std::int64_t>(options.steps, warmup_steps)},
        parameters_(model.parameters()) {
    const headwise::AdamWOptions recipe{.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0};
    headwise::AdamWOptions decaying = recipe;
    decaying.weight_decay = 0.1;
    optimizer_.add_group(parameters_.matrices(), decaying);
    optimizer_.add_group(parameters_.vectors(), recipe);
    const auto expected = static_cast<std::size_t>(std::min<Index>(options.steps, 1 << 20));
    losses_.reserve(expected);  // so that a step asks for no memory
    seconds_.reserve(expected);
  }

  /// Steps that were taken, those before a checkpoint included.
  Index steps() const { return static_cast<Index>(optimizer_.steps()); }
  /// Numbers that are trained.
  Index num_parameters() const { return parameters_.elements(); }
  /// Of each step of this run.
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<double>& seconds() const { return seconds_; }
  /// Of all steps of this run, phase by phase.
  const std::array<double, phases.size()>& phase_seconds() const { return phase_seconds_; }

  /// One step; its loss. Throws NoNumber, with parameters and steps as they were.
  double step() {
    const double start = now();
    const auto step = static_cast<std::uint64_t>(optimizer_.steps());
    const Batch batch =
        draw_batch(text_.trained(), {options_.batch, options_.context},
                   static_cast<std::uint64_t>(options_.seed), step, context_.memory);
    const double drawn = now();
    zero_gradients(parameters_, context_);
    const double zeroed = now();
    const double loss = model_.loss_and_gradients(batch, context_);
    const double differentiated = now();
    optimizer_.set_learning_rate(schedule_(optimizer_.steps()));
    const double norm = gradient_norm(parameters_, context_);
    require_number("the loss", loss);
    require_number("the gradient's norm", norm);
    optimizer_.step(headwise::clip_factor(norm, 1.0), context_);
    const double end = now();
    phase_seconds_[0] += drawn - start;
    phase_seconds_[1] += zeroed - drawn;
    phase_seconds_[2] += differentiated - zeroed;
    phase_seconds_[3] += end - differentiated;
    losses_.push_back(loss);
    seconds_.push_back(end - start);
    return loss;
  }

  /// The mean loss over all that is held out, in windows one behind the other.
  double held_out_loss() const {
    constexpr Index together = 64;
    const auto tokens = text_.held_out();
    const Index L = options_.context, windows = (std::ssize(tokens) - 1) / L;
    double sum = 0;
    for (Index first = 0; first < windows; first += together) {
      const Index count = std::min(together, windows - first);
      Batch batch{Tensor<TokenId, 2>({count, L}), Tensor<TokenId, 2>({count, L})};
      for (Index b = 0; b < count; ++b) set_window(batch, b, tokens, (first + b) * L);
      sum += model_.loss(batch, context_) * static_cast<double>(count);
    }
    return sum / static_cast<double>(windows);
  }

  /// Parameters, state, steps, and what decides the steps that follow.
  void save(const std::string& path) {
    headwise::save_checkpoint(path, parameters_, optimizer_, text_lines());
  }
  /// Goes on from what `save` wrote. Throws TextError for a run with other options or another
  /// text, headwise::FileError for a file that does not fit; nothing is changed then.
  void load(const std::string& path) {
    const auto file = headwise::SafetensorsFile::read(path);
    for (const auto& [key, value] : text_lines()) {
      const auto found = file.metadata().find(key);
      const std::string there = found == file.metadata().end() ? "nothing" : found->second;
      if (there == value) continue;
      if (key == "alphabet") throw TextError(path + " was trained on a text of other characters");
      if (key == "text") {
        throw TextError(path + " was trained on another text (" + there + "), here it is one of " +
                        value);
      }
      throw TextError(path + " was trained with --" + key + " " + there + ", here it is " + value);
    }
    headwise::load_checkpoint(file, parameters_, optimizer_);
  }

 private:
  static constexpr std::int64_t warmup_steps = 100;

  void require_number(const char* what, double value) const {
    if (std::isfinite(value)) return;
    throw NoNumber(std::string(what) + " is no number at step " + std::to_string(steps() + 1));
  }

  CheckpointText text_lines() const {
    CheckpointText lines = {{"alphabet", encode_utf8(text_.alphabet())},
                            {"text", text_.fingerprint()}};
    for (const auto& [key, value] :
         {std::pair{"steps", options_.steps}, std::pair{"layers", options_.layers},
          std::pair{"heads", options_.heads}, std::pair{"width", options_.width},
          std::pair{"context", options_.context}, std::pair{"batch", options_.batch},
          std::pair{"seed", options_.seed}}) {
      lines.emplace(key, std::to_string(value));
    }
    return lines;
  }

  Model& model_;
  const Text& text_;
  const Options options_;
  const Context context_;
  const headwise::CosineSchedule schedule_;
  ParameterList<float> parameters_;
  AdamW<float> optimizer_;
  std::vector<double> losses_, seconds_;
  std::array<double, phases.size()> phase_seconds_{};
};

}  // namespace char_gpt
