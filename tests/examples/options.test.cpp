// The command line of char_gpt: what it says, and what it is refused for.
#include "../../examples/char_gpt/options.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"

namespace examples_options {

using namespace char_gpt;
using headwise_tests::ContainsSubstring;

namespace {

Options parsed(std::vector<const char*> arguments) { return parse_options(arguments); }

}  // namespace

TEST_CASE("char_gpt: options are what the command line says, and else the recipe", "[examples]") {
  const Options recipe = parsed({});
  CHECK(recipe.text.empty());
  CHECK(recipe.steps == 2000);
  CHECK(recipe.width == 128);
  CHECK(recipe.save_every == 0);
  const Options o = parsed({"a.txt", "--steps", "0", "--width", "96", "--heads", "6", "--json",
                            "--save", "x", "--save-every", "5", "--seed", "7"});
  CHECK(o.text == "a.txt");
  CHECK(o.steps == 0);
  CHECK(o.width == 96);
  CHECK(o.heads == 6);
  CHECK(o.json);
  CHECK_FALSE(o.profile);
  CHECK(o.save == "x");
  CHECK(o.save_every == 5);
  CHECK(o.seed == 7);
  for (const OptionRow& row : option_rows())
    CHECK_THAT(usage(), ContainsSubstring(std::string(row.name)));
}

TEST_CASE("char_gpt: a command line that is none is refused with its reason", "[examples]") {
  CHECK_THROWS_WITH(parsed({"--stpes", "5"}), "there is no option --stpes");
  CHECK_THROWS_WITH(parsed({"--steps"}), "--steps needs a value: N");
  CHECK_THROWS_WITH(parsed({"--steps", "5x"}),
                    "--steps is \"5x\", expected a whole number of 0 or more");
  CHECK_THROWS_WITH(parsed({"--batch", "0"}),
                    "--batch is \"0\", expected a whole number of 1 or more");
  CHECK_THROWS_WITH(parsed({"--seed", "99999999999999999999"}),
                    "--seed is \"99999999999999999999\", expected a whole number of 0 or more");
  CHECK_THROWS_WITH(parsed({"--heads", "3"}), "--heads is 3, expected a divisor of --width 128");
  CHECK_THROWS_WITH(parsed({"--save-every", "5"}),
                    "--save-every is 5, expected a --save beside it: the file to write");
  CHECK_THROWS_WITH(parsed({"a", "b"}), "two texts are given, expected one");
  CHECK_THROWS_WITH(parsed({""}), "TEXT is empty, expected a file or a folder");
  CHECK_THROWS_WITH(parsed({"-x"}), "there is no option -x");
  CHECK_THROWS_WITH(parsed({"--width=64"}), "there is no option --width=64: write --width 64");
  CHECK_THROWS_WITH(parsed({"--json=1"}), "there is no option --json=1: write --json");
  CHECK_THROWS_WITH(parsed({"--wdith=64"}), "there is no option --wdith=64");
  CHECK_THROWS_WITH(parsed({"--threads", "1025"}),
                    "--threads is \"1025\", expected a whole number of 0 to 1024");
  CHECK(parsed({"--threads", "1024"}).threads == 1024);
}

TEST_CASE("char_gpt: a file that was forgotten is refused, by the option that wants it",
          "[examples]") {
  for (const char* name : {"--save", "--resume", "--svg", "--heads-svg"}) {
    CHECK_THROWS_WITH(parsed({name, ""}), std::string(name) + " is \"\", expected a file");
    CHECK_THROWS_WITH(parsed({name, "--json"}),
                      std::string(name) + " is \"--json\", expected a file, or ./ before its name");
  }
  CHECK(parsed({"--save", "./--json"}).save == "./--json");
  CHECK(parsed({"--sample", "1", "--prompt", "--"}).prompt == "--");
}

TEST_CASE("char_gpt: help wins over whatever stands behind it", "[examples]") {
  for (const char* help : {"--help", "-h"}) {
    CHECK(parsed({help}).help);
    CHECK(parsed({"a", "--heads", "3", help, "--stpes", "b", "--save"}).help);
  }
}

TEST_CASE("char_gpt: writing alone takes its model from a file, and no option that trains",
          "[examples]") {
  const Options o = parsed({"--sample-only", "--resume", "x", "--sample", "9", "--prompt", "a",
                            "--temperature", "0", "--top-k", "3", "--seed", "4", "--threads", "1"});
  CHECK(o.sample_only);
  CHECK(o.resume == "x");
  CHECK_THROWS_WITH(parsed({"--sample-only", "--sample", "9"}),
                    "--sample-only is given, expected a --resume beside it: whose model writes");
  CHECK_THROWS_WITH(parsed({"--sample-only", "--resume", "x"}),
                    "--sample-only is given, expected a --sample beside it: how much to write");
  for (const std::string name : {"--layers", "--steps", "--save", "--svg", "TEXT"}) {
    std::vector<const char*> words = {"--sample-only", "--resume", "x", "--sample", "9"};
    if (name != "TEXT") words.push_back(name.c_str());
    words.push_back("2");
    CHECK_THROWS_WITH(parsed(words), name +
                                         " is given, expected none beside --sample-only: the "
                                         "model is that of --resume, and nothing is trained");
  }
}

}  // namespace examples_options
