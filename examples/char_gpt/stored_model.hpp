// The model in a checkpoint, to write with: its sizes and its alphabet are what the file says, and
// neither a text nor an optimiser is needed.
#pragma once

#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "gpt.hpp"
#include "headwise/io/checkpoint.hpp"

namespace char_gpt {

using headwise::SafetensorsFile;

/// A line of a checkpoint's metadata. Throws TextError where there is none.
inline const std::string& line_of(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found != file.metadata().end()) return found->second;
  throw TextError(file.name() + " is no checkpoint of char_gpt: its metadata has no line " + key);
}

/// The same of a line that is a number of 1 or more.
inline Index size_in(const SafetensorsFile& file, const std::string& key) {
  const std::string& line = line_of(file, key);
  Index size = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size);
  if (error == std::errc() && end == line.data() + line.size() && size >= 1) return size;
  throw TextError(file.name() + " is no checkpoint of char_gpt: its metadata has " + key + " " +
                  line);
}

/// The sizes that a checkpoint names. Throws TextError where they are not those of its tensors,
/// headwise::FileError where it has none.
inline ModelOptions sizes_in(const SafetensorsFile& file, Index vocabulary) {
  const ModelOptions sizes{.vocabulary = vocabulary,
                           .layers = size_in(file, "layers"),
                           .heads = size_in(file, "heads"),
                           .width = size_in(file, "width"),
                           .context = size_in(file, "context")};
  const auto has = [&](const char* name, Index rows) {
    return file.shape(name) == std::vector<Index>{rows, sizes.width};
  };
  const auto layers = static_cast<std::size_t>(sizes.layers);
  // Asked before a model of these sizes takes memory; load_parameters asks the rest.
  if (!has("token", vocabulary) || !has("position", sizes.context) ||
      layers >= file.names().size() || sizes.width % sizes.heads != 0) {
    throw TextError(file.name() + " has other tensors than its metadata says");
  }
  return sizes;
}

/// What a checkpoint holds of a model.
class StoredModel {
 public:
  /// Throws TextError and headwise::FileError for what is no checkpoint of char_gpt.
  explicit StoredModel(const SafetensorsFile& file)
      : alphabet_(decode_utf8(line_of(file, "alphabet"), file.name())),
        model_(sizes_in(file, alphabet_.vocabulary())) {
    headwise::load_parameters(file, model_.parameters());
  }

  const Alphabet& alphabet() const { return alphabet_; }
  const Model& model() const { return model_; }

 private:
  Alphabet alphabet_;
  Gpt model_;
};

}  // namespace char_gpt
