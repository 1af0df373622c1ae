// The text that a character model learns: read, told apart into characters, split into what is
// trained on and what is held out, and drawn from.
//
// It refuses what no model can be trained on: a file that is missing, empty, not UTF-8, or shorter
// than a window in either part.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory_resource>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"

namespace char_gpt {

using headwise::Index;
using headwise::Shape;
using headwise::Tensor;

/// A character's place in the alphabet.
using TokenId = std::int32_t;

/// A text cannot be used. The message names it.
class TextError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The characters of UTF-8. Throws TextError with the byte that is none.
inline std::vector<char32_t> decode_utf8(std::string_view bytes, const std::string& name) {
  std::vector<char32_t> characters;
  characters.reserve(bytes.size());
  const auto fail = [&](std::size_t at) {
    throw TextError(name + " is not UTF-8 at byte " + std::to_string(at));
  };
  for (std::size_t n = 0; n < bytes.size();) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
    const unsigned lead = byte(n);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || n + length > bytes.size()) fail(n);
    char32_t character = length == 1 ? lead : lead & (0x7Fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(n + k) & 0xC0u) != 0x80u) fail(n);
      character = (character << 6) | (byte(n + k) & 0x3Fu);
    }
    constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = character >= 0xD800 && character < 0xE000;
    if (character < least[length] || surrogate || character > 0x10FFFF) fail(n);
    characters.push_back(character);
    n += length;
  }
  return characters;
}

inline std::string encode_utf8(std::span<const char32_t> characters) {
  std::string bytes;
  const auto put = [&](char32_t bits) {
    bytes += static_cast<char>(static_cast<unsigned char>(bits));
  };
  for (const char32_t c : characters) {
    if (c < 0x80) {
      put(c);
    } else {
      if (c < 0x800) {
        put(0xC0 | (c >> 6));
      } else {
        if (c < 0x10000) {
          put(0xE0 | (c >> 12));
        } else {
          put(0xF0 | (c >> 18));
          put(0x80 | ((c >> 12) & 0x3F));
        }
        put(0x80 | ((c >> 6) & 0x3F));
      }
      put(0x80 | (c & 0x3F));
    }
  }
  return bytes;
}

/// A character to look at: a blank as a dot, a tab and the end of a line as arrows, other controls
/// as a box.
inline std::string visible(char32_t character) {
  switch (character) {
    case U' ':
      return "\u00b7";
    case U'\t':
      return "\u2192";
    case U'\n':
      return "\u21b5";
    default:
      const bool control = character < 0x20 || (character >= 0x7F && character < 0xA0);
      return control ? "\u25a1" : encode_utf8({&character, 1});
  }
}

/// Distinct characters in order. The token of a character is its place.
class Alphabet {
 public:
  /// Of the characters of a text.
  explicit Alphabet(std::vector<char32_t> characters) : alphabet_(std::move(characters)) {
    std::sort(alphabet_.begin(), alphabet_.end());
    alphabet_.erase(std::unique(alphabet_.begin(), alphabet_.end()), alphabet_.end());
  }

  /// Distinct characters, sorted.
  std::span<const char32_t> alphabet() const { return alphabet_; }
  Index vocabulary() const { return std::ssize(alphabet_); }

  /// Throws TextError for a character that is not in the alphabet.
  std::vector<TokenId> encode(std::span<const char32_t> characters) const {
    std::vector<TokenId> tokens;
    tokens.reserve(characters.size());
    for (const char32_t c : characters) {
      const auto found = std::lower_bound(alphabet_.begin(), alphabet_.end(), c);
      if (found == alphabet_.end() || *found != c) {
        throw TextError("character " + std::to_string(static_cast<std::uint32_t>(c)) +
                        " is not in the alphabet");
      }
      tokens.push_back(static_cast<TokenId>(found - alphabet_.begin()));
    }
    return tokens;
  }
  std::string decode(std::span<const TokenId> tokens) const {
    std::vector<char32_t> characters;
    for (const TokenId token : tokens) {
      characters.push_back(alphabet_.at(static_cast<std::size_t>(token)));
    }
    return encode_utf8(characters);
  }

 private:
  std::vector<char32_t> alphabet_;
};

/// A text as the tokens of its characters.
class Text : public Alphabet {
 public:
  /// Throws TextError unless both parts hold a window of `context` characters and the next one.
  Text(std::string_view bytes, Index context, const std::string& name)
      : Text(decode_utf8(bytes, name), context, name) {}

  /// The first nine tenths.
  std::span<const TokenId> trained() const { return std::span(tokens_).first(trained_); }
  /// The rest.
  std::span<const TokenId> held_out() const { return std::span(tokens_).subspan(trained_); }

  /// What tells it from other texts of the same alphabet: its length, and the FNV-1a of its tokens.
  std::string fingerprint() const {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (const TokenId token : tokens_) {
      hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x100000001B3u;
    }
    return std::to_string(tokens_.size()) + " characters, hash " + std::to_string(hash);
  }

 private:
  Text(const std::vector<char32_t>& characters, Index context, const std::string& name)
      : Alphabet(characters), tokens_(encode(characters)) {
    if (tokens_.empty()) throw TextError(name + " is empty");
    trained_ = static_cast<std::size_t>(0.9 * static_cast<double>(tokens_.size()));
    const auto window = static_cast<std::size_t>(context) + 1;
    if (std::min(trained_, tokens_.size() - trained_) < window) {
      throw TextError(name + " has " + std::to_string(tokens_.size()) +
                      " characters, expected a tenth of them to hold " + std::to_string(window) +
                      " (context and the next)");
    }
  }

  std::vector<TokenId> tokens_;
  std::size_t trained_ = 0;
};

/// Throws TextError.
inline void append_file(std::string& bytes, const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw TextError(file.string() + " cannot be opened");
  std::array<char, 1 << 14> block;
  while (stream) {
    stream.read(block.data(), block.size());
    bytes.append(block.data(), static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) throw TextError(file.string() + " cannot be read");
}

/// A file as it is; of a folder, its headers, fragments and pages, one behind the other in the
/// order of their paths. Throws TextError.
inline std::string read_text(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (!entry.is_regular_file()) continue;
      const fs::path extension = entry.path().extension();
      if (extension == ".hpp" || extension == ".inc" || extension == ".md") {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) throw TextError(path.string() + " holds no .hpp, .inc or .md file");
  } else {
    files.push_back(path);
  }
  std::string bytes;
  for (const fs::path& file : files) append_file(bytes, file);
  return bytes;
}

/// Windows of a text, and what follows each of their characters.
struct Batch {
  Tensor<TokenId, 2> inputs;   // [B, L]
  Tensor<TokenId, 2> targets;  // [B, L]: inputs one further
};

/// The window that begins at `start` becomes row b.
inline void set_window(Batch& batch, Index b, std::span<const TokenId> tokens, Index start) {
  for (Index i = 0; i < batch.inputs.extent(1); ++i) {
    batch.inputs(b, i) = tokens[static_cast<std::size_t>(start + i)];
    batch.targets(b, i) = tokens[static_cast<std::size_t>(start + i + 1)];
  }
}

/// The batch of a step: windows drawn from (seed, step) alone, so that resuming needs no state.
inline Batch draw_batch(std::span<const TokenId> tokens, const Shape<2>& shape, std::uint64_t seed,
                        std::uint64_t step,
                        std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  constexpr std::uint32_t stream = 0x62617463u;
  const auto key = headwise::philox_key(seed, stream, step);
  const auto starts = static_cast<std::uint64_t>(std::ssize(tokens) - shape[1]);
  Batch batch{Tensor<TokenId, 2>(shape, memory), Tensor<TokenId, 2>(shape, memory)};
  for (Index b = 0; b < shape[0]; ++b) {
    const auto words = headwise::philox<10>({static_cast<std::uint32_t>(b), 0, 0, 0}, key);
    const std::uint64_t drawn = (std::uint64_t{words[1]} << 32) | words[0];
    set_window(batch, b, tokens, static_cast<Index>(drawn % starts));
  }
  return batch;
}

}  // namespace char_gpt
