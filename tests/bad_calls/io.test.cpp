// What SafetensorsWriter and the reference cases ask of a call. What a file has to be is compared
// in tests/io.
#include <array>
#include <stdexcept>

#include "headwise/io/reference_laws.hpp"
#include "headwise/io/safetensors.hpp"
#include "support/refusal.hpp"

namespace bad_calls_io {

using namespace headwise_tests;

namespace {

/// A writer that holds "x" and has to hold that alone after the call.
Action<Witness&> stays(void (*call)(SafetensorsWriter&)) {
  return [call](Witness&) {
    SafetensorsWriter writer;
    writer.add_scalar("x", 1.0);
    const auto before = writer.bytes();
    try {
      call(writer);
    } catch (...) {
      if (writer.bytes() != before) throw std::logic_error("the writer has changed");
      throw;
    }
  };
}

const std::array<Index, 1> two{2};
const std::array<std::byte, 16> bytes{};
const float one = 1;

const Refusals names({
    argument_error("SafetensorsWriter::add: name \"\\xff\" is not UTF-8",
                   stays([](auto& w) { w.add("\xFF", In<float, 1>(&one, Shape{1})); })),
    argument_error("SafetensorsWriter::add_scalar: name \"\\xff\" is not UTF-8",
                   stays([](auto& w) { w.add_scalar("\xFF", 1.0); })),
    argument_error("SafetensorsWriter::add_bytes: name \"\\xff\" is not UTF-8",
                   stays([](auto& w) { w.add_bytes("\xFF", DType::i64, two, bytes); })),
    argument_error("SafetensorsWriter::set_metadata: key \"\\xff\" is not UTF-8",
                   stays([](auto& w) { w.set_metadata("\xFF", "v"); })),
    argument_error("SafetensorsWriter::set_metadata: value \"\\xc3\" is not UTF-8",
                   stays([](auto& w) { w.set_metadata("k", "\xC3"); })),
    argument_error("SafetensorsWriter::add: name __metadata__ is the format's own",
                   stays([](auto& w) { w.add("__metadata__", In<float, 1>(&one, Shape{1})); })),
    argument_error("SafetensorsWriter::add_scalar: name __metadata__ is the format's own",
                   stays([](auto& w) { w.add_scalar("__metadata__", 1.0); })),
    argument_error("SafetensorsWriter::add_bytes: name __metadata__ is the format's own",
                   stays([](auto& w) { w.add_bytes("__metadata__", DType::i64, two, bytes); })),
    argument_error("SafetensorsWriter::add: name \"x\" was added before",
                   stays([](auto& w) { w.add("x", In<float, 1>(&one, Shape{1})); })),
    argument_error("SafetensorsWriter::add_scalar: name \"x\" was added before",
                   stays([](auto& w) { w.add_scalar("x", 1.0); })),
    argument_error("SafetensorsWriter::add_bytes: name \"x\" was added before",
                   stays([](auto& w) { w.add_bytes("x", DType::i64, two, bytes); })),
    argument_error("SafetensorsWriter::merge: name \"x\" was added before",
                   stays([](auto& w) { w.merge(SafetensorsWriter(w)); })),
});

const Refusals tensors({
    shape_error("SafetensorsWriter::add: tensor \"y\" is [2, 3] at a null address, expected its "
                "elements",
                stays([](auto& w) {
                  w.add("y", In<float, 2>(nullptr, Shape{2, 3}));
                })),
    shape_error("SafetensorsWriter::add: tensor \"y\" is [-1, 3], expected extents of 0 or more",
                stays([](auto& w) {
                  w.add("y", In<float, 2>(&one, Shape{-1, 3}));
                })),
    shape_error("SafetensorsWriter::add_bytes: tensor \"y\" has 16 bytes, which do not fit shape "
                "[2] of F32 with at most 8 axes",
                stays([](auto& w) { w.add_bytes("y", DType::f32, two, bytes); })),
    argument_error("SafetensorsWriter::add: tensor \"y\" of F32 does not convert to I64",
                   stays([](auto& w) { w.add("y", In<float, 1>(&one, Shape{1}), DType::i64); })),
    argument_error("SafetensorsWriter::add_scalar: tensor \"y\" of BOOL does not convert to F32",
                   stays([](auto& w) { w.add_scalar("y", true, DType::f32); })),
});

SafetensorsWriter with_metadata(std::size_t count, char c) {
  SafetensorsWriter writer;
  writer.set_metadata("k", std::string(count, c));
  return writer;
}

const std::string much =
    ": names, shapes and metadata take " +
    std::to_string(detail::metadata_charge(1) + 60'000'000 + std::string("data_offsets").size()) +
    " bytes of the reader's memory, expected at most 50331648";
const std::string lengthy = ": the header has 120000032 bytes, expected at most 100000000";
const Refusals limits({
    argument_error("SafetensorsWriter::bytes" + much,
                   [](Witness&) { (void)with_metadata(60'000'000, 'a').bytes(); }),
    argument_error("SafetensorsWriter::write" + much,
                   [](Witness&) { with_metadata(60'000'000, 'a').write(""); }),
    argument_error("SafetensorsWriter::bytes" + lengthy,
                   [](Witness&) { (void)with_metadata(20'000'000, '\1').bytes(); }),
    argument_error("SafetensorsWriter::write" + lengthy,
                   [](Witness&) { with_metadata(20'000'000, '\1').write(""); }),
});

const Refusals reference_cases(
    {argument_error("run_reference_cases: the kernel has no forward",
                    [](Witness&) { (void)run_reference_cases(AttentionKernel<double>(), {}); })});

}  // namespace

TEST_CASE("SafetensorsWriter refuses bad calls and stays as it was", "[bad_calls]") {
  names.check();
  tensors.check();
  limits.check();
}

TEST_CASE("reference cases without a kernel are refused", "[bad_calls]") {
  reference_cases.check();
}

}  // namespace bad_calls_io
