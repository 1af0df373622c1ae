// Reading and writing files while memory runs out, at every allocation in turn.
#include <algorithm>
#include <array>
#include <optional>

#include "headwise/io/pytorch.hpp"
#include "io/written_files.hpp"
#include "outside_faults/allocations.hpp"

namespace outside_faults_load_and_save {

using namespace headwise_tests;

namespace {

using Module = MultiHeadAttention<double>;
using Options = MultiHeadAttentionOptions;

const std::string long_name = "a name that is longer than what a string holds in itself";

Options options_of(bool fused) {
  Options options{.d_model = 6, .num_heads = 2, .q_bias = true, .k_bias = true, .v_bias = true};
  if (!fused) options.kdim = 4, options.vdim = 5;
  return options;
}

SafetensorsWriter some_tensors() {
  SafetensorsWriter writer;
  writer.add(long_name, awkward_numbers<float>());
  writer.add_scalar("x", true);
  writer.set_metadata("key " + long_name, "value " + long_name);
  return writer;
}

std::vector<double> values_of(const Module& module) {
  std::vector<double> values;
  module.parameters().for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) { values.push_back(view(at)); });
  });
  return values;
}

const auto nothing_to_change = [] { return true; };

}  // namespace

TEST_CASE("reading a file while memory runs out gives bad_alloc and leaves nothing behind",
          "[outside]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "a file with a name that is longer than a string holds itself";
  some_tensors().write(path);
  CHECK(fail_each_allocation([&] { (void)SafetensorsFile::read(path); }, nothing_to_change) > 10);
  const auto bytes = some_tensors().bytes();
  CHECK(fail_each_allocation([&] { (void)SafetensorsFile::parse(bytes, long_name); },
                             nothing_to_change) > 10);
}

TEST_CASE("a file that is read anew while memory runs out keeps what it held", "[outside]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "new";
  some_tensors().write(path);
  SafetensorsWriter old;
  old.add_scalar("old", 7.0);
  std::optional<SafetensorsFile> file;
  // Each attempt starts from the old file, so that its blocks are counted on both sides.
  file = SafetensorsFile::parse(old.bytes(), "old");
  const auto unchanged = [&] {
    return file->name() == "old" && file->names().size() == 1 && file->scalar<double>("old") == 7;
  };
  CHECK(fail_each_allocation([&] { *file = SafetensorsFile::read(path); }, unchanged) > 10);
  CHECK(file->contains(long_name));
}

TEST_CASE("a file that is refused while memory runs out gives bad_alloc", "[outside]") {
  const auto refused = [](const std::string& header, std::size_t data_bytes) {
    std::vector<std::byte> file(8 + header.size() + data_bytes);
    const std::uint64_t length = header.size();
    std::memcpy(file.data(), &length, 8);
    std::memcpy(file.data() + 8, header.data(), header.size());
    const auto attempt = [&] {
      try {
        (void)SafetensorsFile::parse(file);
      } catch (const FileError&) {
        // The refusal itself came through.
      }
    };
    return fail_each_allocation(attempt, nothing_to_change);
  };
  CHECK(refused("{\"" + long_name + "\":{\"dtype\":\"" + long_name + "\"}}", 0) > 5);
  CHECK(refused("{\"__metadata__\":{\"" + long_name + "\":1}}", 0) > 5);
  CHECK(refused("nonsense", 0) > 2);
  CHECK(refused("{}", 1) > 2);
}

TEST_CASE("asking a file while memory runs out gives bad_alloc", "[outside]") {
  const auto file = SafetensorsFile::parse(some_tensors().bytes());
  CHECK(fail_each_allocation([&] { (void)file.get<double, 3>(long_name); }, nothing_to_change) > 0);
  CHECK(fail_each_allocation([&] { (void)file.names(); }, nothing_to_change) > 1);
  const auto refused = [&] {
    try {
      (void)file.get<double, 1>("no such tensor");
    } catch (const FileError&) {
    }
  };
  CHECK(fail_each_allocation(refused, nothing_to_change) > 3);
}

TEST_CASE("a writer that runs out of memory stays as it was, to the bit", "[outside]") {
  SafetensorsWriter writer = some_tensors();
  const auto before = writer.bytes();
  const auto unchanged = [&] { return writer.bytes() == before; };
  const auto tensor = awkward_numbers<double>();
  const auto bytes = std::as_bytes(std::span(tensor.data(), 10));
  const std::array<Index, 2> shape{5, 2};
  const std::string new_name = long_name + ", and new", value = long_name + long_name;
  // A copy of the writer takes what is added, so that each attempt starts from the same.
  const auto added = [&](auto&& add) {
    std::optional<SafetensorsWriter> copy;
    long failures = 0;
    for (bool done = false; !done; ++failures) {
      copy = writer;
      reset_allocations();
      const long live = allocations().live_blocks;
      fail_allocation(failures);
      try {
        add(*copy);
        done = true;
      } catch (const std::bad_alloc&) {
      }
      fail_allocation(-1);
      if (done) break;
      REQUIRE(allocations().live_blocks == live);
      REQUIRE(copy->bytes() == before);
      REQUIRE(failures < 100);
    }
    REQUIRE(allocations().count <= failures);
    CHECK(copy->bytes() != before);
    return failures;
  };
  CHECK(added([&](SafetensorsWriter& to) { to.add(new_name, tensor, DType::bf16); }) > 2);
  CHECK(added([&](SafetensorsWriter& to) { to.add_scalar(new_name, 1.0F); }) > 2);
  CHECK(added([&](SafetensorsWriter& to) { to.add_bytes(new_name, DType::u64, shape, bytes); }) >
        2);
  CHECK(added([&](SafetensorsWriter& to) { to.set_metadata(new_name, value); }) > 1);
  CHECK(added([&](SafetensorsWriter& to) { to.set_metadata("key " + long_name, value); }) > 1);
  for (const bool fused : {true, false}) {
    const Module module(options_of(fused));
    const auto gradients = module.zero_gradients();
    CHECK(added([&](SafetensorsWriter& to) { add_pytorch(to, module, long_name); }) > 10);
    CHECK(added([&](SafetensorsWriter& to) {
            add_pytorch_gradients(to, module, gradients, long_name);
          }) > 10);
  }
  CHECK(fail_each_allocation([&] { (void)writer.bytes(); }, unchanged) > 3);

  SafetensorsWriter other;
  other.add(new_name, tensor);
  other.set_metadata(new_name, value);
  reset_allocations();
  fail_allocation(0);
  writer.merge(std::move(other));
  fail_allocation(-1);
  CHECK(allocations().count == 0);
  CHECK(writer.contains(new_name));
}

TEST_CASE("a file that is written while memory runs out stays as it was, or is there whole",
          "[outside]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x.safetensors";
  SafetensorsWriter old;
  old.add_scalar("old", 7.0);
  old.write(path);
  const std::string before = content(path);
  const SafetensorsWriter writer = some_tensors();
  const auto unchanged = [&] { return content(path) == before && folder.num_files() == 1; };
  CHECK(fail_each_allocation([&] { writer.write(path); }, unchanged) > 5);
  CHECK(content(path) == text_of(writer.bytes()));
  CHECK(folder.num_files() == 1);
}

TEST_CASE("load_pytorch that runs out of memory leaves the module as it was, to the bit",
          "[outside]") {
  for (const bool fused : {true, false}) {
    Options options = options_of(fused);
    options.seed = 1;
    const Module stored(options);
    SafetensorsWriter writer;
    add_pytorch(writer, stored, long_name);
    const auto file = SafetensorsFile::parse(writer.bytes());
    options.seed = 2;
    Module module(options);
    const auto before = values_of(module);
    CHECK(fail_each_allocation([&] { load_pytorch(file, module, long_name); },
                               [&] { return values_of(module) == before; }) > 10);
    CHECK(values_of(module) == values_of(stored));
    CHECK(fail_each_allocation([&] { (void)from_pytorch<double>(file, 2, long_name); },
                               nothing_to_change) > 20);
    const auto refused = [&] {
      try {
        load_pytorch(file, module, "another prefix, which is not in the file at all");
      } catch (const FileError&) {
      }
    };
    CHECK(fail_each_allocation(refused, [&] { return values_of(module) == values_of(stored); }) >
          5);
  }
}

}  // namespace outside_faults_load_and_save
