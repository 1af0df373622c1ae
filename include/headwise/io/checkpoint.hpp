// A whole training state as one safetensors file, written whole or not at all: parameters by their
// names, the optimiser's state as "optimizer.m.<name>" and so on, the steps taken as
// "optimizer.step", and lines of text in the metadata; or parameters and text alone. A state that
// is loaded goes on with the same bits. It holds neither options nor the schedule: those are the
// program's.
//
// Loading refuses a file that does not fit, with its name and what is wrong, before anything is
// changed: a tensor that is missing, one too many, another shape or type, another optimiser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/io/safetensors_reader.hpp"
#include "headwise/io/safetensors_writer.hpp"
#include "headwise/optim/adamw.hpp"
#include "headwise/optim/sgd.hpp"

namespace headwise::inline v0_1 {

/// Lines of text that go with a checkpoint: whatever the program has to know again.
using CheckpointText = std::map<std::string, std::string>;

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The line of the metadata that says what a file is, and the names that are the optimiser's.
inline constexpr std::string_view checkpoint_line = "headwise.checkpoint";
inline constexpr std::string_view optimizer_prefix = "optimizer.";
inline constexpr std::string_view step_name = "optimizer.step";
/// What the line says where there is no optimiser.
inline constexpr std::string_view parameters_alone = "parameters";

template <class T>
std::string_view optimizer_name(const AdamW<T>&) {
  return "AdamW";
}
template <class T>
std::string_view optimizer_name(const Sgd<T>&) {
  return "Sgd";
}

template <class T>
void add_tensor(SafetensorsWriter& writer, const std::string& name,
                const NamedTensor<const T>& tensor) {
  const std::vector<Index> extents = tensor.extents();
  const auto bytes_of = [](const T* data, Index count) {
    return std::as_bytes(std::span(data, static_cast<std::size_t>(count)));
  };
  if (tensor.view.dense()) {
    return writer.add_bytes(name, dtype_of<T>, extents,
                            bytes_of(tensor.view.data(), tensor.view.size()));
  }
  std::vector<T> copy;
  copy.reserve(static_cast<std::size_t>(tensor.view.size()));
  for_each_index(tensor.view.shape(), [&](const auto& at) { copy.push_back(tensor.view(at)); });
  writer.add_bytes(name, dtype_of<T>, extents, bytes_of(copy.data(), tensor.view.size()));
}

/// Throws ArgumentError for a name that is the optimiser's.
template <class T>
void add_parameters(SafetensorsWriter& writer, std::string_view function,
                    const ParameterList<T>& parameters) {
  for (const Parameter<T>& p : parameters) {
    require(!p.name.starts_with(optimizer_prefix), function, [&] {
      return "parameter " + p.name + " begins with optimizer., expected another name";
    });
    add_tensor<T>(writer, p.name, {p.name, p.rank, p.view});
  }
}

/// Throws ArgumentError for a key that is the file's own, which says `kind`.
inline void set_text(SafetensorsWriter& writer, std::string_view function,
                     const CheckpointText& text, std::string_view kind) {
  for (const auto& [key, value] : text) {
    require(key != checkpoint_line, function,
            "text has a key headwise.checkpoint, expected another");
    writer.set_metadata(key, value);
  }
  writer.set_metadata(std::string(checkpoint_line), std::string(kind));
}

/// Throws ArgumentError unless all that an optimiser steps is in the list, in the same memory.
template <class T, class Optimizer>
void require_steps_these(std::string_view function, const ParameterList<T>& parameters,
                         const Optimizer& optimizer) {
  std::map<std::string_view, const Parameter<T>*> named;
  for (const Parameter<T>& p : parameters) named[p.name] = &p;
  for (const auto& group : optimizer.groups()) {
    for (const Parameter<T>& p : group.parameters) {
      const auto found = named.find(p.name);
      require(found != named.end() && same_elements({"", found->second->view}, {"", p.view}),
              function, "optimizer steps another ", p.name,
              " than parameters hold, expected one over them");
    }
  }
}

/// Where a file's tensors go: names in the file, and views to be overwritten.
template <class T>
using LoadTargets = std::vector<NamedTensor<T>>;

template <class T>
LoadTargets<T> targets_of(const ParameterList<T>& parameters) {
  return {parameters.begin(), parameters.end()};
}

/// Throws FileError unless the file holds each target in its shape and type, and nothing more but
/// what passed_over(name) says is somebody else's.
template <class T, class PassedOver>
void require_targets(const SafetensorsFile& file, const LoadTargets<T>& targets,
                     const PassedOver& passed_over) {
  const auto refuse = [&](const std::string& what) {
    raise<FileError>(shown_name(file.name()) + ": " + what);
  };
  std::set<std::string_view> wanted;
  for (const NamedTensor<T>& target : targets) {
    wanted.insert(target.name);
    if (!file.contains(target.name)) {
      refuse("holds no tensor " + quote(target.name) + ", which the state to be loaded has");
    }
    if (file.shape(target.name) != target.extents()) {
      refuse("tensor " + quote(target.name) + " is " + format_extents(file.shape(target.name)) +
             ", expected " + format_extents(target.extents()));
    }
    if (file.dtype(target.name) != dtype_of<T>) {
      refuse("tensor " + quote(target.name) + " is " +
             std::string(dtype_name(file.dtype(target.name))) + ", expected " +
             std::string(dtype_name(dtype_of<T>)));
    }
  }
  for (const std::string& name : file.names()) {
    if (wanted.contains(name) || passed_over(name)) continue;
    refuse("holds a tensor " + quote(name) + ", which the state to be loaded has not");
  }
}

template <class T>
void read_targets(const SafetensorsFile& file, const LoadTargets<T>& targets) {
  for (const NamedTensor<T>& target : targets) {
    const std::byte* from = file.bytes(target.name).data();
    for_each_index(target.view.shape(), [&](const auto& at) {
      std::memcpy(&target.view(at), from, sizeof(T));
      from += sizeof(T);
    });
  }
}

inline std::int64_t steps_in(const SafetensorsFile& file) {
  std::int64_t steps = -1;
  const bool right = file.contains(step_name) && file.dtype(step_name) == DType::i64 &&
                     file.shape(step_name).empty();
  if (right) std::memcpy(&steps, file.bytes(step_name).data(), sizeof steps);
  if (!may_be_steps(steps)) {
    raise<FileError>(shown_name(file.name()) + ": holds no " + std::string(step_name) +
                     " that is one I64 of 0 to 2^53");
  }
  return steps;
}

/// Throws FileError for a file that is no checkpoint of this optimiser.
inline void require_checkpoint(const SafetensorsFile& file, std::string_view optimizer) {
  const auto line = file.metadata().find(std::string(checkpoint_line));
  if (line == file.metadata().end()) {
    raise<FileError>(shown_name(file.name()) + ": is no checkpoint: its metadata has no line " +
                     quote(checkpoint_line));
  }
  if (!optimizer.empty() && line->second != optimizer) {
    raise<FileError>(shown_name(file.name()) + ": is a checkpoint of " + quote(line->second) +
                     ", expected " + quote(optimizer));
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Writes parameters, the optimiser's state and its steps as one file, whole or not at all.
///
/// path         as SafetensorsWriter::write takes it
/// parameters   in their own type; no name begins with "optimizer."
/// optimizer    AdamW or Sgd over the same parameters
/// text         goes with them; no key is "headwise.checkpoint"
///
/// Throws   ArgumentError for names and keys that are taken and an optimiser of other parameters,
///          and as SafetensorsWriter does, FileError, std::bad_alloc; what was at `path` then is
///          still there.
template <Scalar T, class Optimizer>
requires StoredFloat<T>
void save_checkpoint(const std::filesystem::path& path, const ParameterList<T>& parameters,
                     const Optimizer& optimizer, const CheckpointText& text = {}) {
  constexpr std::string_view function = "save_checkpoint";
  detail::require_steps_these(function, parameters, optimizer);
  SafetensorsWriter writer;
  detail::add_parameters(writer, function, parameters);
  optimizer.for_each_state([&](const NamedTensor<const T>& tensor) {
    detail::add_tensor<T>(writer, std::string(detail::optimizer_prefix) + tensor.name, tensor);
  });
  const std::int64_t steps = optimizer.steps();
  writer.add_bytes(std::string(detail::step_name), DType::i64, {},
                   std::as_bytes(std::span(&steps, 1)));
  detail::set_text(writer, function, text, detail::optimizer_name(optimizer));
  writer.write(path);
}

/// Writes parameters alone as one file, whole or not at all: for load_parameters, or any reader of
/// safetensors. Arguments and errors are those of save_checkpoint.
template <Scalar T>
requires StoredFloat<T>
void save_parameters(const std::filesystem::path& path, const ParameterList<T>& parameters,
                     const CheckpointText& text = {}) {
  constexpr std::string_view function = "save_parameters";
  SafetensorsWriter writer;
  detail::add_parameters(writer, function, parameters);
  detail::set_text(writer, function, text, detail::parameters_alone);
  writer.write(path);
}

/// Overwrites parameters, the optimiser's state and its steps with those of a file. Returns the
/// text that was saved with them.
///
/// file         what save_checkpoint wrote; SafetensorsFile::read(path)
/// parameters   those that were saved: the same names, shapes and type, no more and no fewer
/// optimizer    the one that was saved: the same kind, with the same state
///
/// Throws   FileError for a file that does not fit, ArgumentError for an optimiser of other
///          parameters, std::bad_alloc; nothing is changed then.
template <Scalar T, class Optimizer>
requires StoredFloat<T> CheckpointText load_checkpoint(const SafetensorsFile& file,
                                                       const ParameterList<T>& parameters,
                                                       Optimizer& optimizer) {
  detail::require_steps_these("load_checkpoint", parameters, optimizer);
  detail::require_checkpoint(file, detail::optimizer_name(optimizer));
  detail::LoadTargets<T> targets = detail::targets_of(parameters);
  optimizer.for_each_state([&](NamedTensor<T> tensor) {
    tensor.name = std::string(detail::optimizer_prefix) + tensor.name;
    targets.push_back(std::move(tensor));
  });
  const std::int64_t steps = detail::steps_in(file);
  detail::require_targets(file, targets,
                          [](const std::string& name) { return name == detail::step_name; });
  CheckpointText text = file.metadata();
  text.erase(std::string(detail::checkpoint_line));
  detail::read_targets(file, targets);
  optimizer.set_steps(steps);
  return text;
}
/// The same of the file at `path`. Throws as SafetensorsFile::read does, too.
template <Scalar T, class Optimizer>
requires StoredFloat<T> CheckpointText load_checkpoint(const std::filesystem::path& path,
                                                       const ParameterList<T>& parameters,
                                                       Optimizer& optimizer) {
  return load_checkpoint(SafetensorsFile::read(path), parameters, optimizer);
}

/// Overwrites parameters alone with those of a file that save_parameters wrote, or of a checkpoint,
/// whatever its optimiser: for inference. Returns the text that was saved with them. Throws as
/// load_checkpoint does.
template <Scalar T>
requires StoredFloat<T> CheckpointText load_parameters(const SafetensorsFile& file,
                                                       const ParameterList<T>& parameters) {
  detail::require_checkpoint(file, "");
  const detail::LoadTargets<T> targets = detail::targets_of(parameters);
  detail::require_targets(file, targets, [](const std::string& name) {
    return name.starts_with(detail::optimizer_prefix);
  });
  CheckpointText text = file.metadata();
  text.erase(std::string(detail::checkpoint_line));
  detail::read_targets(file, targets);
  return text;
}

/// The same of the file at `path`. Throws as SafetensorsFile::read does, too.
template <Scalar T>
requires StoredFloat<T> CheckpointText load_parameters(const std::filesystem::path& path,
                                                       const ParameterList<T>& parameters) {
  return load_parameters(SafetensorsFile::read(path), parameters);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
