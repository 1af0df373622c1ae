#include "turns.hpp"

#include <algorithm>
#include <iomanip>
#include <istream>
#include <ostream>
#include <sstream>

#include "prepared.hpp"

namespace headwise::bench {

namespace {

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out << '\\';
    out << (static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  }
  out << '"';
  return out.str();
}

const Family& family_named(const std::string& name) {
  for (const Family& family : families()) {
    if (family.name == name) return family;
  }
  raise<ArgumentError>("there is no family " + name);
}

/// The family, and the values behind it on the line.
Prepared& prepare_line(const std::string& name, std::istream& rest) {
  std::vector<Index> values;
  for (Index value = 0; rest >> value;) values.push_back(value);
  require(rest.eof(), name, "a value is no number");
  return prepare(family_named(name), values);
}

void measure(Prepared& prepared, double seconds, std::ostream& out) {
  const Case& one = prepared.one;
  const Context with;
  one.run(with);  // what another case has left in memory and caches is not this one's to pay for
  std::vector<double> times;
  const Stopwatch whole;
  do {
    const Stopwatch watch;
    one.run(with);
    times.push_back(watch.seconds());
  } while (whole.seconds() < seconds);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  out << "{\"seconds\": " << *middle
      << ", \"best\": " << *std::min_element(times.begin(), times.end())
      << ", \"runs\": " << times.size() << ", \"flops\": " << one.flops
      << ", \"bytes\": " << one.bytes << ", \"tokens\": " << one.tokens
      << ", \"peak_bytes\": " << prepared.peak_bytes << '}';
}

#if defined(__clang__)
constexpr const char* compiler = __VERSION__;  // says "Clang 14.0.6"
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

void about(std::ostream& out) {
  out << "{\"version\": \"" << HEADWISE_VERSION_MAJOR << '.' << HEADWISE_VERSION_MINOR << '.'
      << HEADWISE_VERSION_PATCH << "\", \"compiler\": " << quoted(compiler)
      << ", \"threads\": " << num_threads() << ", \"processor\": " << quoted(processor_features())
      << ", \"openblas\": "
      << (std::any_of(families().begin(), families().end(),
                      [](const Family& f) { return f.name.starts_with("gemm_openblas"); })
              ? "true"
              : "false")
      << ", \"shapes\": [";
  const char* between = "";
  for (const BenchShape& s : shapes()) {
    out << between << "{\"values\": [" << s.B << ", " << s.L << ", " << s.D << ", " << s.H << ", "
        << s.G << "], \"purpose\": " << quoted(s.purpose) << '}';
    between = ", ";
  }
  out << "], \"products\": [";
  between = "";
  for (const GemmShape& s : gemm_shapes()) {
    out << between << "{\"name\": " << quoted(s.form + "/" + s.name) << ", \"values\": [" << s.N
        << ", " << s.I << ", " << s.O << "], \"large\": " << (s.large ? "true" : "false") << '}';
    between = ", ";
  }
  out << "], \"decode\": [";
  between = "";
  for (const DecodeShape& s : decode_shapes()) {
    out << between << '[' << s.B << ", " << s.S << ", " << s.D << ", " << s.H << ", " << s.G << ']';
    between = ", ";
  }
  out << "], \"rows\": [";
  between = "";
  for (const auto& [N, D] : row_shapes()) {
    out << between << '[' << N << ", " << D << ']';
    between = ", ";
  }
  out << "]}";
}

void answer(const std::string& line, double seconds, std::ostream& out) {
  std::istringstream words(line);
  std::string request;
  words >> request;
  if (request == "about") return about(out);
  if (request == "peak") {
    out << "{\"flops_per_second\": " << measure_peak(true) << '}';
  } else if (request == "bandwidth") {
    double bytes = 0;
    words >> bytes;
    out << "{\"bytes_per_second\": " << read_bandwidth(bytes) << '}';
  } else if (request == "check") {
    std::string name;
    words >> name;
    out << "{\"right\": " << (prepare_line(name, words).one.right() ? "true" : "false") << '}';
  } else {
    measure(prepare_line(request, words), seconds, out);
  }
}

}  // namespace

void take_turns(std::istream& in, std::ostream& out, double seconds) {
  for (std::string line; std::getline(in, line);) {
    std::ostringstream reply;
    reply << std::setprecision(9);
    try {
      answer(line, seconds, reply);
    } catch (const std::exception& error) {
      reply.str("");
      reply << "{\"error\": " << quoted(error.what()) << '}';
    }
    out << reply.str() << std::endl;
  }
}

}  // namespace headwise::bench
