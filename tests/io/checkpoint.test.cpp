// A training state in a file and back: the same bits, or a refusal that changes nothing.
#include "headwise/io/checkpoint.hpp"

#include <limits>

#include "headwise/headwise.hpp"
#include "io/written_files.hpp"

namespace io_checkpoint {

using namespace headwise_tests;

namespace {

/// A module with slices among its parameters, and what trains it.
struct Training {
  MultiHeadAttention<float> module{{.d_model = 8,
                                    .num_heads = 2,
                                    .q_bias = true,
                                    .sinks = true,
                                    .relative_reach = 2,
                                    .seed = 3}};
  MultiHeadAttentionGradients<float> gradients = module.zero_gradients();
  ParameterList<float> list;
  AdamW<float> optimizer;

  Training() {
    collect(list, "attention.", module.parameters(), gradients);
    optimizer.add_group(list.matrices(), {.learning_rate = 0.01, .weight_decay = 0.1});
    optimizer.add_group(list.vectors(), {.learning_rate = 0.01, .weight_decay = 0});
  }
  Training(const Training&) = delete;

  void step() {
    zero_gradients(list);
    MultiHeadAttention<float>::Cache cache;
    Tensor3<float> x({1, 5, 8});
    for (Index n = 0; n < x.size(); ++n) {
      x.data()[n] = static_cast<float>(
          philox_normal(philox_key(static_cast<std::uint64_t>(optimizer.steps())),
                        static_cast<std::uint64_t>(n)));
    }
    const Tensor3<float> y = module.forward(x, {}, cache);
    module.backward(y, cache, gradients);
    optimizer.step(clip_factor(gradient_norm(list), 1.0));
  }

  /// Every number of the state.
  std::vector<float> state() {
    std::vector<float> all;
    const auto add = [&](const auto& view) {
      for_each_index(view.shape(), [&](const auto& at) { all.push_back(view(at)); });
    };
    for (const auto& p : list) add(p.view);
    optimizer.for_each_state([&](const auto& tensor) { add(tensor.view); });
    all.push_back(static_cast<float>(optimizer.steps()));
    return all;
  }
};

/// What the refusal says behind the file's name.
std::string refusal_of(const SafetensorsFile& file, Training& training) {
  const auto before = training.state();
  std::string message = "nothing";
  try {
    load_checkpoint(file, training.list, training.optimizer);
  } catch (const FileError& error) {
    message = error.what();
  }
  CHECK(training.state() == before);
  REQUIRE(message.starts_with("memory: "));
  return message.substr(8);
}

/// A file that differs from a right one by what `change` does.
template <class Change>
SafetensorsFile changed(Change&& change) {
  const TemporaryFolder folder;
  Training training;
  save_checkpoint(folder / "x", training.list, training.optimizer);
  const auto right = SafetensorsFile::read(folder / "x");
  SafetensorsWriter writer;
  for (const auto& [key, value] : right.metadata()) writer.set_metadata(key, value);
  for (const std::string& name : right.names()) {
    if (!change(name, writer)) {
      writer.add_bytes(name, right.dtype(name), right.shape(name), right.bytes(name));
    }
  }
  return SafetensorsFile::parse(writer.bytes());
}

}  // namespace

TEST_CASE("training that is loaded goes on with the same bits", "[io]") {
  const TemporaryFolder folder;
  Training without, first, second;
  for (int step = 0; step < 7; ++step) without.step();
  for (int step = 0; step < 3; ++step) first.step();
  save_checkpoint(folder / "x", first.list, first.optimizer, {{"alphabet", "abc"}, {"seed", "7"}});
  CHECK(folder.num_files() == 1);
  const auto text = load_checkpoint(folder / "x", second.list, second.optimizer);
  CHECK(text == CheckpointText{{"alphabet", "abc"}, {"seed", "7"}});
  CHECK(second.optimizer.steps() == 3);
  CHECK(second.state() == first.state());
  for (int step = 3; step < 7; ++step) second.step();
  CHECK(second.state() == without.state());
}

TEST_CASE("a checkpoint holds parameters and state by name, and the same state the same bytes",
          "[io]") {
  const TemporaryFolder folder;
  Training training;
  training.step();
  save_checkpoint(folder / "x", training.list, training.optimizer);
  const auto& to_be_read = training.optimizer;
  save_checkpoint(folder / "y", training.list, to_be_read);
  CHECK(content(folder / "x") == content(folder / "y"));
  const auto file = SafetensorsFile::read(folder / "x");
  CHECK(file.names().size() == 3 * training.list.size() + 1);
  CHECK(file.shape("attention.W_K") == std::vector<Index>{8, 8});
  CHECK(file.shape("optimizer.v.attention.b_Q") == std::vector<Index>{8});
  CHECK(file.dtype("optimizer.step") == DType::i64);
  CHECK(file.metadata().at("headwise.checkpoint") == "AdamW");
  CHECK(bitwise_equal(file.get<float, 2>("attention.W_K"),
                      contiguous(In<float, 2>(training.module.parameters().W_K()))));
}

TEST_CASE("the state of Sgd is kept, and a checkpoint of another optimiser refused", "[io]") {
  const TemporaryFolder folder;
  Linear<double> linear(3, 2);
  auto gradients = linear.zero_gradients();
  ParameterList<double> list;
  collect(list, "", linear.parameters(), gradients);
  fill(gradients.w, 1.0);
  Sgd<double> moved(list, {.momentum = 0.9}), loaded(list, {.momentum = 0.9});
  moved.step();
  save_checkpoint(folder / "x", list, moved);
  load_checkpoint(folder / "x", list, loaded);
  CHECK(loaded.steps() == 1);
  loaded.for_each_state([](const NamedTensor<double>& tensor) {
    if (tensor.name == "velocity.W") CHECK(tensor.view.data()[0] == 1);
  });
  AdamW<double> other(list);
  CHECK_THROWS_WITH(load_checkpoint(folder / "x", list, other),
                    ContainsSubstring("x: is a checkpoint of \"Sgd\", expected \"AdamW\""));
  Sgd<double> plain(list);
  CHECK_THROWS_WITH(load_checkpoint(folder / "x", list, plain),
                    ContainsSubstring("holds a tensor \"optimizer.velocity."));
}

TEST_CASE("a file that does not fit is refused with its reason, and changes nothing", "[io]") {
  Training training;
  training.step();
  const auto none = [](const std::string&, SafetensorsWriter&) { return false; };
  CHECK_NOTHROW(load_checkpoint(changed(none), training.list, training.optimizer));
  training.step();
  const auto without = [](const std::string& gone) {
    return [=](const std::string& name, SafetensorsWriter&) { return name == gone; };
  };
  const auto instead = [](const std::string& there, const auto& tensor) {
    return [=](const std::string& name, SafetensorsWriter& writer) {
      if (name == there) writer.add(name, tensor);
      return name == there;
    };
  };
  CHECK(refusal_of(changed(without("attention.W_V")), training) ==
        "holds no tensor \"attention.W_V\", which the state to be loaded has");
  CHECK(refusal_of(changed(without("optimizer.v.attention.W_V")), training) ==
        "holds no tensor \"optimizer.v.attention.W_V\", which the state to be loaded has");
  CHECK(refusal_of(changed(instead("attention.W_V", Tensor2<float>({8, 4}))), training) ==
        "tensor \"attention.W_V\" is [8, 4], expected [8, 8]");
  CHECK(refusal_of(changed(instead("attention.b_Q", Tensor1<double>(8))), training) ==
        "tensor \"attention.b_Q\" is F64, expected F32");
  CHECK(refusal_of(changed([](const std::string& name, SafetensorsWriter& writer) {
                     if (name == "attention.b_Q") writer.add("attention.b_K", Tensor1<float>(8));
                     return false;
                   }),
                   training) ==
        "holds a tensor \"attention.b_K\", which the state to be loaded has not");
  for (const char* step : {"optimizer.step"}) {
    const std::string message = "holds no optimizer.step that is one I64 of 0 to 2^53";
    CHECK(refusal_of(changed(without(step)), training) == message);
    CHECK(refusal_of(changed(instead(step, Tensor1<float>(1))), training) == message);
  }
  for (const std::int64_t steps :
       {std::int64_t{-1}, (std::int64_t{1} << 53) + 1, std::numeric_limits<std::int64_t>::max()}) {
    CHECK(refusal_of(changed([&](const std::string& name, SafetensorsWriter& writer) {
                       if (name != "optimizer.step") return false;
                       writer.add_bytes(name, DType::i64, {}, std::as_bytes(std::span(&steps, 1)));
                       return true;
                     }),
                     training) == "holds no optimizer.step that is one I64 of 0 to 2^53");
  }
  SafetensorsWriter other;
  other.add_scalar("x", 1.0);
  CHECK(refusal_of(SafetensorsFile::parse(other.bytes()), training) ==
        "is no checkpoint: its metadata has no line \"headwise.checkpoint\"");
}

TEST_CASE("parameters alone are loaded whatever the optimiser was", "[io]") {
  const TemporaryFolder folder;
  Training trained, fresh;
  trained.step();
  save_checkpoint(folder / "x", trained.list, trained.optimizer, {{"k", "v"}});
  const auto file = SafetensorsFile::read(folder / "x");
  CHECK(load_parameters(file, fresh.list) == CheckpointText{{"k", "v"}});
  CHECK(bitwise_equal(In<float, 2>(fresh.module.parameters().W_Q()),
                      In<float, 2>(trained.module.parameters().W_Q())));
  CHECK(fresh.optimizer.steps() == 0);
  ParameterList<float> fewer;
  collect(fewer, "other.", fresh.module.parameters(), fresh.gradients);
  CHECK_THROWS_AS(load_parameters(file, fewer), FileError);
}

TEST_CASE("parameters that are saved alone are loaded, and are no checkpoint of an optimiser",
          "[io]") {
  const TemporaryFolder folder;
  Training trained, fresh;
  trained.step();
  save_parameters(folder / "x", trained.list, {{"k", "v"}});
  const auto file = SafetensorsFile::read(folder / "x");
  CHECK(file.names().size() == trained.list.size());
  const std::string bytes = content(folder / "x");
  CHECK(refusal_of(SafetensorsFile::parse(std::as_bytes(std::span(bytes))), fresh) ==
        "is a checkpoint of \"parameters\", expected \"AdamW\"");
  CHECK(load_parameters(folder / "x", fresh.list) == CheckpointText{{"k", "v"}});
  for (std::size_t n = 0; n < fresh.list.size(); ++n) {
    CHECK(bitwise_equal(fresh.list[n].view, trained.list[n].view));
  }
}

TEST_CASE("what is loaded and saved alone needs no gradients", "[io]") {
  const TemporaryFolder folder;
  Training trained, fresh;
  trained.step();
  save_checkpoint(folder / "x", trained.list, trained.optimizer);
  ParameterList<float> alone;
  collect(alone, "attention.", fresh.module.parameters());
  load_parameters(folder / "x", alone);
  save_parameters(folder / "y", alone);
  Training again;
  load_parameters(folder / "y", again.list);
  REQUIRE(alone.size() == again.list.size());
  for (std::size_t n = 0; n < alone.size(); ++n) {
    CHECK(alone[n].name == trained.list[n].name);
    CHECK(bitwise_equal(again.list[n].view, trained.list[n].view));
  }
}

TEST_CASE("a checkpoint that cannot be written leaves the one before", "[io]") {
  const TemporaryFolder folder;
  Training training;
  save_checkpoint(folder / "x", training.list, training.optimizer);
  const std::string before = content(folder / "x");
  training.step();
  CHECK_THROWS_AS(save_checkpoint(folder / "x", training.list, training.optimizer, {{"k", "\xFF"}}),
                  ArgumentError);
  CHECK(content(folder / "x") == before);
  CHECK(folder.num_files() == 1);
}

}  // namespace io_checkpoint
