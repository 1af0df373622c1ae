// What SafetensorsFile gives back of what was written, by PyTorch or by SafetensorsWriter.
#include "io/written_files.hpp"

namespace io_safetensors {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("a floating-point tensor comes back with the same bits", "[io]", double, float,
                   Float16, BFloat16) {
  const auto tensor = awkward_numbers<TestType>();
  SafetensorsWriter writer;
  writer.add("x", tensor);
  const auto file = SafetensorsFile::parse(writer.bytes());
  CHECK(file.dtype("x") == dtype_of<TestType>);
  CHECK(file.shape("x") == std::vector<Index>{2, 1, 5});
  require_same_bits(file.get<TestType, 3>("x"), tensor);
}

TEMPLATE_TEST_CASE("a tensor stored in another type is what conversion one by one gives", "[io]",
                   double, float, Float16, BFloat16) {
  const auto tensor = awkward_numbers<double>();
  SafetensorsWriter writer;
  writer.add("x", tensor, dtype_of<TestType>);
  const auto file = SafetensorsFile::parse(writer.bytes());
  CHECK(file.bytes("x").size() == sizeof(TestType) * 10);
  const auto stored = file.get<TestType, 3>("x");
  const auto widened = file.get<double, 3>("x");
  const auto single = file.get<float, 3>("x");
  for_each_index(tensor.shape(), [&](const auto& i) {
    const auto expected = convert_float<TestType>(tensor(i));
    CHECK(std::memcmp(&stored(i), &expected, sizeof(expected)) == 0);
    const double back = convert_float<double>(expected);
    CHECK(std::memcmp(&widened(i), &back, sizeof(back)) == 0);
    const float back_single = convert_float<float>(expected);
    CHECK(std::memcmp(&single(i), &back_single, sizeof(back_single)) == 0);
  });
}

TEST_CASE("bool comes back, and any byte but 0 reads as true", "[io]") {
  SafetensorsWriter writer;
  writer.add("keep", Tensor<bool, 2>(Shape{2, 2}, {true, false, false, true}));
  auto bytes = writer.bytes();
  const auto keep = SafetensorsFile::parse(bytes).get<bool, 2>("keep");
  CHECK((keep(0, 0) && !keep(0, 1) && !keep(1, 0) && keep(1, 1)));
  bytes[bytes.size() - 2] = std::byte{0x82};
  CHECK(SafetensorsFile::parse(bytes).get<bool, 2>("keep")(1, 0));
}

TEST_CASE("empty tensors, scalars and a file of nothing come back", "[io]") {
  CHECK(SafetensorsFile::parse(SafetensorsWriter().bytes()).names().empty());
  SafetensorsWriter writer;
  writer.add("none", Tensor<float, 3>(Shape{2, 0, 3}));
  writer.add("absent", In<double, 1>());
  writer.add_scalar("step", 12.5);
  writer.add_scalar("half", 0.5f, DType::f16);
  writer.add_scalar("flag", true);
  const auto file = SafetensorsFile::parse(writer.bytes());
  CHECK(file.get<float, 3>("none").shape() == Shape{2, 0, 3});
  CHECK(file.shape("absent") == std::vector<Index>{0});
  CHECK(file.shape("step").empty());
  CHECK(file.scalar<double>("step") == 12.5);
  CHECK(file.scalar<float>("half") == 0.5f);
  CHECK(file.scalar<bool>("flag"));
  CHECK(file.names() == std::vector<std::string>{"absent", "step", "none", "half", "flag"});
}

TEST_CASE("views with strides are stored in row-major order", "[io]") {
  const Tensor<float, 2> x(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  SafetensorsWriter writer;
  writer.add("transposed", transpose(x, 0, 1));
  const auto back = SafetensorsFile::parse(writer.bytes()).get<float, 2>("transposed");
  require_same_bits(back, Tensor<float, 2>(Shape{3, 2}, {1, 4, 2, 5, 3, 6}));
}

TEST_CASE("names and metadata hold any text", "[io]") {
  const std::string odd("a\"b\\c\n\0\xC3\xA9", 9);
  SafetensorsWriter writer;
  writer.add(odd, Tensor<float, 1>(Shape{1}, {3}));
  writer.add("", Tensor<float, 1>(Shape{1}, {4}));
  writer.set_metadata(odd, "first");
  writer.set_metadata(odd, odd);
  const auto file = SafetensorsFile::parse(writer.bytes());
  CHECK(file.get<float, 1>(odd)(0) == 3);
  CHECK(file.get<float, 1>("")(0) == 4);
  CHECK(file.metadata() == std::map<std::string, std::string>{{odd, odd}});
}

TEST_CASE("a file that PyTorch wrote is read, and written again byte by byte", "[io]") {
  const fs::path path = fs::path(HEADWISE_TEST_DATA) / "mha_self.safetensors";
  const auto file = SafetensorsFile::read(path);
  CHECK(file.name() == path.string());
  CHECK(file.names().size() == 13);
  CHECK(file.metadata().at("num_heads") == "3");
  CHECK(file.contains("in_proj_weight"));
  CHECK_FALSE(file.contains("in_proj_weigh"));
  CHECK(file.shape("expected.weights") == std::vector<Index>{2, 3, 5, 5});

  const auto weights = file.get<double, 4>("expected.weights");
  for_each_index(Shape{2, 3, 5}, [&](const Shape<3>& i) {
    double sum = 0;
    for (Index s = 0; s < 5; ++s) sum += weights(i[0], i[1], i[2], s);
    CHECK(sum == Approx(1.0));
  });
  const auto query = file.get<double, 3>("query");
  const auto query_single = file.get<float, 3>("query");
  for_each_index(query.shape(),
                 [&](const auto& i) { CHECK(query_single(i) == static_cast<float>(query(i))); });

  SafetensorsWriter writer;
  for (const std::string& name : file.names()) {
    switch (file.shape(name).size()) {
      case 1:
        writer.add(name, file.get<double, 1>(name));
        break;
      case 2:
        writer.add(name, file.get<double, 2>(name));
        break;
      case 3:
        writer.add(name, file.get<double, 3>(name));
        break;
      default:
        writer.add(name, file.get<double, 4>(name));
        break;
    }
  }
  // Metadata has no order in the file that PyTorch wrote; all else must agree.
  const std::string ours = text_of(writer.bytes());
  const std::string theirs = content(path);
  const auto from_here = [](const std::string& text) {
    return text.substr(text.find("\"expected.grad.in_proj_bias\""));
  };
  const auto without_padding = [](std::string text) {
    const auto close = text.find("}}") + 2;
    text.erase(close, text.find_first_not_of(' ', close) - close);
    return text;
  };
  CHECK(without_padding(from_here(ours)) == without_padding(from_here(theirs)));
}

TEST_CASE("a request that the file cannot answer names tensor, shape and file", "[io]") {
  SafetensorsWriter writer;
  writer.add("q", Tensor<double, 3>(Shape{2, 5, 12}));
  writer.add("keep", Tensor<bool, 1>(Shape{3}));
  const auto file = SafetensorsFile::parse(writer.bytes(), "mha.safetensors");
  CHECK_THROWS_WITH((file.get<double, 2>("q")),
                    "mha.safetensors: byte 13: tensor \"q\" is [2, 5, 12], expected 2 axes");
  CHECK_THROWS_WITH((file.get<bool, 3>("q")),
                    ContainsSubstring("tensor \"q\" is F64, which does not convert to BOOL"));
  CHECK_THROWS_WITH((file.get<float, 1>("keep")),
                    ContainsSubstring("tensor \"keep\" is BOOL, which does not convert to F32"));
  CHECK_THROWS_WITH(file.scalar<double>("q"), ContainsSubstring("expected 0 axes"));
  CHECK_THROWS_WITH((file.get<double, 3>("k")),
                    "mha.safetensors: holds no tensor \"k\", but 2: \"q\", \"keep\"");
  CHECK_THROWS_AS(file.dtype("k"), FileError);
  CHECK_THROWS_AS(SafetensorsFile().bytes("k"), FileError);
  CHECK(file.name() == "mha.safetensors");
  CHECK(SafetensorsFile::parse(writer.bytes()).name() == "memory");
}

}  // namespace io_safetensors
