// Trains a small character model on a text, and says how well it expects what it has not seen.
//   char_gpt book.txt --steps 2000 --save book.safetensors --sample 500
// Without a text it learns this project's own sources and pages. Ctrl-C saves and ends,
// --save-every saves in between; --resume goes on with the same bits. The recipe is in
// training.hpp.
#include <cstdio>
#include <memory>
#include <thread>

#include "cost.hpp"
#include "gpt.hpp"
#include "heads.hpp"
#include "headwise/runtime/num_threads.hpp"
#include "options.hpp"
#include "profile.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sample.hpp"
#include "training.hpp"

using namespace char_gpt;

namespace {

/// The text that is asked for, or this project's own.
Text load_text(const Options& options) {
  if (!options.text.empty()) return {read_text(options.text), options.context, options.text};
  const std::string root = CHAR_GPT_PROJECT;
  return {read_text(root + "/include") + read_text(root + "/docs"), options.context,
          "this project"};
}

std::unique_ptr<Model> make_model(const ModelOptions& options, headwise::TapeProfile* profile) {
  return std::make_unique<Gpt>(options, profile);
}

Index threads_of(const Options& options) {
  if (options.threads != 0) return options.threads;
  return std::max<Index>(1, static_cast<Index>(std::thread::hardware_concurrency()));
}

/// Between steps; what comes last is saved anyway.
bool is_time_to_save(Index steps, const Options& options) {
  return options.save_every != 0 && steps % options.save_every == 0 && steps < options.steps;
}

void train(Training& training, const Options& options) {
  Progress progress;
  for (Index done = 1; training.steps() < options.steps && interrupted == 0; ++done) {
    const double loss = training.step();
    progress.show(training.steps(), options.steps, done, options.batch * options.context, loss);
    if (is_time_to_save(training.steps(), options)) training.save(options.save);
  }
}

int run(const Options& options) {
  const Text text = load_text(options);
  headwise::set_num_threads(threads_of(options));
  headwise::TapeProfile profile;
  const ModelOptions sizes{text.vocabulary(), options.layers,
                           options.heads,     options.width,
                           options.context,   static_cast<std::uint64_t>(options.seed)};
  const std::unique_ptr<Model> model = make_model(sizes, options.profile ? &profile : nullptr);
  Training training(*model, text, options);
  if (!options.resume.empty()) training.load(options.resume);
  prompt_tokens(text, options);  // refused now rather than behind the last step
  const Index first = training.steps();

  watch_for_interrupts();
  train(training, options);
  if (!options.save.empty()) training.save(options.save);

  Report report{training.held_out_loss(),
                training.losses().empty() ? std::nan("") : training.losses().back(),
                median(training.seconds()),
                training.num_parameters(),
                training.steps(),
                threads_of(options)};
  std::fputs(readable(report).c_str(), stdout);
  if (options.profile) {
    std::fputs(profile_table(training, profile, best_product_rate(0.2)).c_str(), stdout);
    const StepMemory<float> memory(sizes, options.batch, options.context, threads_of(options));
    std::fputs(memory_line(memory.kept(), memory.peak()).c_str(), stdout);
  }
  if (!options.svg.empty()) {
    write_loss_svg(options.svg, training.losses(), first, report.held_out_loss);
  }
  if (!options.heads_svg.empty()) write_heads_svg(options.heads_svg, *model, text, options);
  if (options.sample != 0) {
    const Sample sample = write_sample(*model, text, options);
    report.tokens_s = sample.tokens_s;
    std::printf("%s\n%.0f characters a second\n", sample.text.c_str(), sample.tokens_s);
  }
  if (options.json) std::printf("%s\n", json_line(report).c_str());
  return interrupted == 0 ? 0 : 130;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse_options({argv + 1, argv + argc});
    if (options.help) {
      std::fputs(usage().c_str(), stdout);
      return 0;
    }
    return run(options);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "char_gpt: %s\nchar_gpt --help lists the options\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "char_gpt: %s\n", error.what());
    return 1;
  }
}
