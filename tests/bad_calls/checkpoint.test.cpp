// Checkpoints: what they refuse.
#include "headwise/io/checkpoint.hpp"

#include "bad_calls/layer.hpp"

namespace bad_calls_checkpoint {

using namespace headwise_tests;

namespace {

const Refusals checkpoint_refusals({
    argument_error("save_checkpoint: parameter optimizer.w begins with optimizer., expected "
                   "another name",
                   [](Witness& memory) {
                     ParameterList<double> list;
                     list.add("optimizer.w", memory.tensor(2), memory.tensor(2));
                     AdamW<double> optimizer(list);
                     save_checkpoint("/nowhere/x", list, optimizer);
                   }),
    argument_error("save_parameters: parameter optimizer.w begins with optimizer., expected "
                   "another name",
                   [](Witness& memory) {
                     ParameterList<double> list;
                     list.add("optimizer.w", memory.tensor(2), memory.tensor(2));
                     save_parameters("/nowhere/x", list);
                   }),
    argument_error("save_checkpoint: optimizer steps another W than parameters hold, expected one "
                   "over them",
                   [](Witness& memory) {
                     Layer<>& layer = memory.make<Layer<>>();
                     Layer<>& other = memory.make<Layer<>>();
                     memory.keep(layer.linear);
                     AdamW<double> optimizer(other.list);
                     save_checkpoint("/nowhere/x", layer.list, optimizer);
                   }),
    argument_error("save_checkpoint: optimizer steps another W than parameters hold, expected one "
                   "over them",
                   [](Witness& memory) {
                     Layer<>& layer = memory.make<Layer<>>();
                     memory.keep(layer.linear);
                     ParameterList<double> first_row;
                     first_row.add("W", slice(layer.linear.parameters().w, 0, 0, 1));
                     first_row.add("b", as_view(layer.linear.parameters().b));
                     AdamW<double> optimizer(layer.list);
                     save_checkpoint("/nowhere/x", first_row, optimizer);
                   }),
    argument_error("load_checkpoint: optimizer steps another W than parameters hold, expected one "
                   "over them",
                   [](Witness& memory) {
                     const char nothing[] = "\2\0\0\0\0\0\0\0{}";
                     const auto file =
                         SafetensorsFile::parse(std::as_bytes(std::span(nothing, 10)));
                     Layer<>& layer = memory.make<Layer<>>();
                     Layer<>& other = memory.make<Layer<>>();
                     memory.keep(layer.linear);
                     AdamW<double> optimizer(other.list);
                     load_checkpoint(file, layer.list, optimizer);
                   }),
    argument_error("save_checkpoint: text has a key headwise.checkpoint, expected another",
                   [](Witness&) {
                     AdamW<double> optimizer;
                     save_checkpoint("/nowhere/x", ParameterList<double>(), optimizer,
                                     {{"headwise.checkpoint", "mine"}});
                   }),
    argument_error(
        "save_parameters: text has a key headwise.checkpoint, expected another",
        [](Witness&) {
          save_parameters("/nowhere/x", ParameterList<double>(), {{"headwise.checkpoint", "mine"}});
        }),
});

}  // namespace

TEST_CASE("a checkpoint that could not be read again is not written", "[bad_calls]") {
  checkpoint_refusals.check();
}

}  // namespace bad_calls_checkpoint
