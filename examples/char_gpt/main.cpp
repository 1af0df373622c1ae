// Trains a small character model on a text, and says how well it expects what it has not seen.
//   char_gpt book.txt --steps 2000 --save book.safetensors --sample 500
// Without a text it learns this project's own sources and pages. Ctrl-C saves and ends,
// --save-every saves in between; --resume goes on with the same bits, and --sample-only writes with
// what is there. The recipe is in training.hpp.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "cost.hpp"
#include "gpt.hpp"
#include "heads.hpp"
#include "headwise/io/write_file.hpp"
#include "headwise/runtime/num_threads.hpp"
#include "options.hpp"
#include "profile.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sample.hpp"
#include "stored_model.hpp"
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
  if (std::getenv("HEADWISE_NUM_THREADS") != nullptr) return headwise::num_threads();
  return std::max<Index>(1, static_cast<Index>(std::thread::hardware_concurrency()));
}

/// Refuses now, rather than behind the last step, a file that cannot be made.
void require_writable(const Options& options) {
  for (const auto& [name, path] :
       {std::pair{"--save ", &options.save}, std::pair{"--svg ", &options.svg},
        std::pair{"--heads-svg ", &options.heads_svg}}) {
    if (path->empty()) continue;
    try {
      const headwise::detail::TemporaryFile dropped(*path);
    } catch (const headwise::FileError& error) {
      throw headwise::FileError(name + std::string(error.what()));
    }
  }
}

/// Between steps; what comes last is saved anyway.
bool is_time_to_save(Index steps, const Options& options) {
  return options.save_every != 0 && steps % options.save_every == 0 && steps < options.steps;
}

void take_steps(Training& training, const Options& options) {
  Progress progress;
  for (Index done = 1; training.steps() < options.steps && interrupted == 0; ++done) {
    const double loss = training.step();
    progress.show(training.steps(), options.steps, done, options.batch * options.context, loss);
    if (is_time_to_save(training.steps(), options)) training.save(options.save);
  }
}

/// Takes the steps and saves, also those before one that has no number.
void train(Training& training, const Options& options) {
  watch_for_interrupts();
  try {
    take_steps(training, options);
  } catch (const NoNumber& failure) {
    if (options.save.empty() || training.losses().empty()) throw;
    training.save(options.save);
    throw NoNumber(failure.what() + std::string("; what the steps before it made is saved to ") +
                   options.save);
  }
  if (!options.save.empty()) training.save(options.save);
  end_watch();
}

/// Draws into a file where one is asked for. Returns whether that went well; says on stderr why
/// not.
template <class F>
bool draw_picture(const std::string& path, const F& draw) {
  if (path.empty()) return true;
  try {
    draw();
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "char_gpt: %s\n", error.what());
    return false;
  }
}

void print(const Sample& sample) {
  std::printf("%s\n%.0f characters a second\n", sample.text.c_str(), sample.tokens_s);
}

int say_stopped(const Training& training, const Options& options) {
  const std::string saved = options.save.empty() ? "nothing is saved" : "saved to " + options.save;
  std::printf("stopped after %td of %td steps; %s\n", training.steps(), options.steps,
              saved.c_str());
  return 130;
}

int sample_only(const Options& options) {
  headwise::set_num_threads(threads_of(options));
  const StoredModel stored(SafetensorsFile::read(options.resume));
  const auto prompt = prompt_tokens(stored.alphabet(), 0, options);
  print(write_sample(stored.model(), stored.alphabet(), prompt, options));
  return 0;
}

int run(const Options& options) {
  const Text text = load_text(options);
  require_writable(options);
  headwise::set_num_threads(threads_of(options));
  headwise::TapeProfile profile;
  const ModelOptions sizes{.vocabulary = text.vocabulary(),
                           .layers = options.layers,
                           .heads = options.heads,
                           .width = options.width,
                           .context = options.context,
                           .seed = static_cast<std::uint64_t>(options.seed)};
  const std::unique_ptr<Model> model = make_model(sizes, options.profile ? &profile : nullptr);
  Training training(*model, text, options);
  if (!options.resume.empty()) training.load(options.resume);
  prompt_tokens(text, options);  // refused now rather than behind the last step
  const Index first = training.steps();
  train(training, options);
  if (interrupted != 0) return say_stopped(training, options);

  Report report{
      .held_out_loss = training.held_out_loss(),
      .last_train_loss = training.losses().empty() ? std::nan("") : training.losses().back(),
      .step_s = median(training.seconds()),
      .parameters = training.num_parameters(),
      .steps = training.steps(),
      .threads = threads_of(options)};
  std::fputs(readable(report).c_str(), stdout);
  if (options.profile) {
    std::fputs(profile_table(training, profile, best_product_rate(0.2)).c_str(), stdout);
    const StepMemory<float> memory(sizes, options.batch, options.context, threads_of(options));
    std::fputs(memory_line(memory.kept(), memory.peak()).c_str(), stdout);
  }
  std::fflush(stdout);  // to be seen before a long sample is written
  if (options.sample != 0) {
    const Sample sample = write_sample(*model, text, options);
    report.tokens_s = sample.tokens_s;
    print(sample);
  }
  const bool loss_drawn = draw_picture(options.svg, [&] {
    write_loss_svg(options.svg, training.losses(), first, report.held_out_loss);
  });
  const bool heads_drawn = draw_picture(
      options.heads_svg, [&] { write_heads_svg(options.heads_svg, *model, text, options); });
  if (options.json) std::printf("%s\n", json_line(report).c_str());
  return loss_drawn && heads_drawn ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse_options({argv + 1, argv + argc});
    if (options.help) {
      std::fputs(usage().c_str(), stdout);
      return 0;
    }
    return options.sample_only ? sample_only(options) : run(options);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "char_gpt: %s\nchar_gpt --help lists the options\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "char_gpt: %s\n", error.what());
    return 1;
  }
}
