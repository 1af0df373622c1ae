// Holds the catalogue of planted faults to the headers: a header that changes takes the faults that
// are planted in it along. (That each is caught is for ./dev faults, which takes an hour.)
#include <algorithm>
#include <cctype>

#include "documents/blocks.hpp"
#include "support/catch.hpp"

namespace documents_planted_faults {

using namespace documents;

namespace {

fs::path root() { return fs::path(HEADWISE_INCLUDE_DIR).parent_path(); }

/// What one file of the catalogue says. `unit` is empty where every machine shows the fault.
struct PlantedFault {
  std::string what, file, unit, test, wanted_case, old_text;
};

PlantedFault fault_of(const std::string& text) {
  const auto between = [&](const std::string& begin, const std::string& end) {
    const auto from = text.find(begin);
    if (from == std::string::npos) return std::string();
    const auto first = from + begin.size();
    return text.substr(first, text.find(end, first) - first);
  };
  return {between("what: ", "\n"), between("file: ", "\n"), between("unit: ", "\n"),
          between("test: ", "\n"), between("case: ", "\n"), between("--- old\n", "\n--- new\n")};
}

/// How often `part` stands in `text`.
int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// The faults by their names in the table: "001 scores without scale".
std::vector<std::pair<std::string, PlantedFault>> catalogue() {
  std::vector<std::pair<std::string, PlantedFault>> all;
  for (const auto& entry : fs::directory_iterator(root() / "tests/faults/catalogue")) {
    std::string name = entry.path().stem().string();
    std::replace(name.begin(), name.end(), '_', ' ');
    all.emplace_back(name, fault_of(read_text(entry.path())));
  }
  return all;
}

}  // namespace

TEST_CASE("every planted fault has its place in the headers, once") {
  for (const auto& [name, fault] : catalogue()) {
    INFO(name << " in " << fault.file << ":\n" << fault.old_text);
    REQUIRE_FALSE(fault.old_text.empty());
    CHECK(count_of(read_text(root() / "include/headwise" / fault.file), fault.old_text) == 1);
  }
}

TEST_CASE("the table of planted faults has all of them, and README their number") {
  const std::string table = read_text(root() / "docs/planted_faults.md");
  int everywhere = 0;
  for (const auto& [name, fault] : catalogue()) {
    std::string row = "| " + name + " | " + fault.what + " | `" + fault.file + "` | `" +
                      fault.test + "`: " + fault.wanted_case;
    row += fault.unit.empty() ? " |" : " (by " + upper_case(fault.unit) + " alone) |";
    INFO(row);
    CHECK(table.find(row) != std::string::npos);
    if (fault.unit.empty()) ++everywhere;
  }
  CHECK(count_of(table, "\n| ") == static_cast<int>(catalogue().size()) + 2);  // head and line
  const std::string readme = read_text(root() / "README.md");
  INFO("README counts those of every machine: " << everywhere);
  CHECK(readme.find("| **" + std::to_string(everywhere) + "** | faults planted") !=
        std::string::npos);
}

TEST_CASE("a fault whose place is gone, or is there twice, is found") {
  const auto fault =
      fault_of("what: w\nfile: f\ntest: t\ncase: c\n--- old\na + b;\n--- new\na - b;\n--- end\n");
  CHECK(fault.what + fault.file + fault.unit + fault.test + fault.wanted_case == "wftc");
  CHECK(fault.old_text == "a + b;");
  CHECK(count_of("x = a + b;\n", fault.old_text) == 1);
  CHECK(count_of("x = a + c;\n", fault.old_text) == 0);
  CHECK(count_of("x = a + b; y = a + b;\n", fault.old_text) == 2);
}

}  // namespace documents_planted_faults
