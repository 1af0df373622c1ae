// Holds README.md and docs/ to what they promise: no block of code that nothing builds, no command,
// test or page that is not there. What programs print is checked beside them, in the sources that
// extract.cpp makes.
#include <filesystem>
#include <string>

#include "documents/rules.hpp"
#include "documents/run_program.hpp"
#include "support/catch.hpp"

namespace documents_documents {

using namespace documents;

namespace {

fs::path root() { return fs::path(HEADWISE_INCLUDE_DIR).parent_path(); }

std::string joined(const Faults& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

template <class Rule>
void hold_all(Rule&& rule) {
  const auto pages = read_pages(root());
  REQUIRE(pages.size() > 3);
  std::string faults;
  for (const Page& page : pages) faults += joined(rule(page));
  INFO(faults);
  CHECK(faults.empty());
}

bool is_feature(const Page& page) { return page.name.starts_with("docs/features/"); }

Page page_of(const std::string& text) { return parse_page("docs/features/made_up.md", text); }

const std::string program = "```cpp\nint main() {\n  int a = 1;\n}\n```\n";

}  // namespace

TEST_CASE("every block of the pages is built, or says why not") {
  hold_all([](const Page& page) { return block_faults(page, root()); });
}

TEST_CASE("every command that a page names exists") {
  CHECK(dev_commands(root()).contains("test"));
  hold_all([](const Page& page) { return command_faults(page, root()); });
  hold_all([](const Page& page) { return filter_faults(page, root()); });
}

TEST_CASE("every link of a page leads to a file") {
  hold_all([](const Page& page) { return link_faults(page, root()); });
}

TEST_CASE("a page of a feature has program, output, edges, and tests that exist") {
  hold_all([](const Page& page) {
    if (!is_feature(page)) return Faults{};
    Faults faults = feature_faults(page);
    for (const std::string& fault : proof_faults(page, root())) faults.push_back(fault);
    return faults;
  });
}

TEST_CASE("the index lists every page of a feature") {
  const std::string index = read_text(root() / "docs/README.md");
  hold_all([&](const Page& page) {
    const std::string link = "(features/" + fs::path(page.name).filename().string() + ")";
    if (!is_feature(page) || index.find(link) != std::string::npos) return Faults{};
    return Faults{page.name + ": is not in docs/README.md"};
  });
}

TEST_CASE("a planted block that nothing builds is found") {
  const auto faults = [](const std::string& text) {
    return block_faults(page_of(text), root()).size();
  };
  CHECK(faults(program) == 0);
  CHECK(faults(program + "```cpp\nint a = 1;\n```\n") == 0);
  CHECK(faults(program + "```cpp\nint a = 2;\n```\n") == 1);
  CHECK(faults("<!-- not compiled: it shows a mistake -->\n```cpp\nint a = 2\n```\n") == 0);
  CHECK(faults("<!-- not compiled: -->\n```cpp\nint a = 2\n```\n") == 1);
  CHECK(faults("<!-- from include/headwise/version.hpp -->\n```cpp\n#pragma once\n```\n") == 0);
  CHECK(faults("<!-- from include/headwise/version.hpp -->\n```cpp\n#pragma twice\n```\n") == 1);
  CHECK(faults("<!-- from include/headwise/none.hpp -->\n```cpp\n#pragma once\n```\n") == 1);
  CHECK(faults("```rust\nfn main() {}\n```\n") == 1);
  CHECK(faults("```\n./dev test\n```\n") == 1);
  CHECK_THROWS(page_of("```cpp\nint main() {\n"));
}

TEST_CASE("a planted command, link or test that is not there is found") {
  const auto commands = [](const std::string& text) {
    return command_faults(page_of(text), root()).size();
  };
  CHECK(commands("```sh\n./dev test -L ops\n```\n") == 0);
  CHECK(commands("Run `./dev dance`.\n") == 1);
  CHECK(commands("```sh\nmake world\n```\n") == 1);
  CHECK(commands("`./headwise_tests_ops` and `./headwise_tests_layering`\n") == 0);
  CHECK(commands("`./headwise_tests_none`\n") == 1);

  const auto filters = [](const std::string& text) {
    return filter_faults(page_of(text), root()).size();
  };
  CHECK(filters("`./headwise_tests_ops \"*NaN*,*bits*\"` and `./headwise_tests_ops \"[ops]\"`") ==
        0);
  CHECK(filters("`./headwise_tests_ops \"*NaN*,*unicorns*\"`") == 1);

  const auto links = [](const std::string& text) {
    return link_faults(page_of(text), root()).size();
  };
  CHECK(links("[masks](masks.md) [README](../../README.md#what) [far](https://x.org)\n") == 0);
  CHECK(links("[none](none.md)\n") == 1);

  const auto proofs = [](const std::string& text) {
    return proof_faults(page_of("\n## Proven by\n" + text), root()).size();
  };
  CHECK(proofs("- `tests/documents/documents.test.cpp`: every link of a page leads to a file\n") ==
        0);
  CHECK(proofs("- `tests/documents/documents.test.cpp`: no such test is "
               "here\n") == 1);
  CHECK(proofs("- `tests/none.test.cpp`: every link of a page leads to a file\n") == 1);
  CHECK(proofs("") == 1);
  CHECK(feature_faults(page_of(program)).size() == 2);
}

TEST_CASE("a program that prints something else, or fails, is told from one that does not") {
  CHECK(same_output("a 1\nb \n", "a 1\nb\n", false));
  CHECK_FALSE(same_output("a 1\n", "a 2\n", false));
  CHECK_FALSE(same_output("a 1\n", "", false));
  CHECK(same_output("took 12.5 s, 1e-09\n", "took   7 s, 3.2e+10\n", true));
  CHECK_FALSE(same_output("took 12.5 s\n", "took 7 ms\n", true));
  CHECK_FALSE(same_output("took 1 2\n", "took 1\n", true));
  const CapturedOutput output;
  std::cout << std::hex << 255;
  CHECK(output.text() == "ff");
}

}  // namespace documents_documents
