// Writes the programs of the pages as sources that a test program is made of, a test case each, and
// each by itself; and the cmake blocks as projects.
//
//   extract <root of the repository> <folder for what is written> <number of sources>
//
// A program keeps its lines, and a compiler's message names them in the page. Only main is renamed,
// and returns 0 at its end by itself; includes stand once, before all programs.
#include <iostream>
#include <set>

#include "documents/blocks.hpp"

using namespace documents;

namespace {

void write_if_changed(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  if (fs::exists(path) && read_text(path) == text) return;
  std::ofstream(path, std::ios::binary) << text;
}

std::string where(const Page& page, const Block& block) {
  return page.name + ", line " + std::to_string(block.line);
}

std::string identifier(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return text;
}

/// The program as a function `program` of a namespace of its own.
std::string as_function(const Block& block, std::set<std::string>& includes) {
  std::string text;
  for (const std::string& line : lines_of(block.text)) {
    if (line.starts_with("#include")) includes.insert(line);
    text += (line.starts_with("#include") ? "" : line) + "\n";
  }
  const auto main = text.find(opening_of_main), end = text.rfind('}');
  text.replace(end, 1, "return 0; }");
  text.replace(main, opening_of_main.size(), "int program() {");
  return text;
}

std::string as_test(const Page& page, std::size_t n, std::set<std::string>& includes) {
  const Block& block = page.blocks[n];
  const Block* output = output_of(page, n);
  const std::string name = identifier(where(page, block));
  const bool vary = output != nullptr && output->note == numbers_vary;
  return "\nnamespace " + name + " {\n#line " + std::to_string(block.line + 1) + " \"" + page.name +
         "\"\n" + as_function(block, includes) + "}\n\nTEST_CASE(\"" + where(page, block) +
         ": the program prints what the page shows\") {\n" + "  documents::check_program(" + name +
         "::program, R\"shown(" + (output == nullptr ? "" : output->text) + ")shown\", " +
         (vary ? "true" : "false") + ");\n}\n";
}

/// A project around a block. Every source that it names is the page's first program.
void write_project(const Page& page, const Block& block, const fs::path& folder) {
  std::string program = "int main() {}\n";
  const auto first = std::find_if(page.blocks.begin(), page.blocks.end(), is_program);
  if (first != page.blocks.end()) program = first->text;
  write_if_changed(folder / "main.cpp", program);
  std::istringstream words(block.text);
  for (std::string word; words >> word;) {
    word.erase(word.find_last_not_of(")") + 1);
    if (word.ends_with(".cpp")) write_if_changed(folder / word, program);
  }
  write_if_changed(folder / "CMakeLists.txt",
                   "cmake_minimum_required(VERSION 3.21)\nproject(app CXX)\nenable_testing()\n"
                   "add_executable(app main.cpp)\n" +
                       block.text);
}

int extract(const fs::path& root, const fs::path& folder, std::size_t count) {
  std::vector<std::string> sources(count);
  std::vector<std::set<std::string>> includes(count);
  fs::remove_all(folder / "alone");
  fs::remove_all(folder / "projects");
  std::size_t next = 0;
  for (const Page& page : read_pages(root)) {
    bool any = false;
    for (std::size_t n = 0; n < page.blocks.size(); ++n) {
      const Block& block = page.blocks[n];
      const std::string name = identifier(where(page, block));
      if (block.language == "cmake") write_project(page, block, folder / "projects" / name);
      if (!is_program(block)) continue;
      any = true;
      sources[next] += as_test(page, n, includes[next]);
      write_if_changed(folder / "alone" / (name + ".cpp"), block.text);
    }
    if (any) next = (next + 1) % count;
  }
  for (std::size_t n = 0; n < count; ++n) {
    std::string text = "// Made from the pages by tests/documents/extract.cpp.\n";
    for (const std::string& include : includes[n]) text += include + "\n";
    text += "#include \"documents/run_program.hpp\"\n";
    write_if_changed(folder / ("programs_" + std::to_string(n) + ".cpp"), text + sources[n]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: extract <root> <folder> <number of sources>\n";
    return 2;
  }
  try {
    return extract(argv[1], argv[2], std::stoul(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
