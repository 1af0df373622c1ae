// Sampling: every option and every logit wrong in every way that has a rule.
#include "support/refusal_rules.hpp"

namespace bad_calls_sampling {

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

struct Sample {
  Witness& m;
  Vector logits = m.tensor(3);
  SamplingOptions options = {};
  void call() { (void)sample_token(In<double, 1>(logits), options, m.context()); }
};
Refusal sampled(const std::string& message, void (*spoil)(Sample&)) {
  return argument_error("sample_token: " + message, spoilt(spoil));
}
template <int place>
void with(Sample& c, double value) {
  static double logits[3];
  for (double& x : logits) x = 1;
  logits[place] = value;
  c.logits = {logits, Shape{3}};
}
const std::string no_temperature = ", expected a finite number of 0 or more",
                  no_part = ", expected above 0 and at most 1",
                  no_number = " is NaN or infinity, expected a number or -infinity",
                  no_token = " hold no number above -infinity, expected one token at least";

const Refusals samples(all_of({
    countable("sample_token: logits", &Sample::logits, {3}),
    {
        sampled("temperature is -1" + no_temperature,
                [](Sample& c) { c.options.temperature = -1; }),
        sampled("temperature is nan" + no_temperature,
                [](Sample& c) { c.options.temperature = nan; }),
        sampled("temperature is inf" + no_temperature,
                [](Sample& c) { c.options.temperature = infinity; }),
        sampled("top_k is -1, expected 1 or more, or 0 for all",
                [](Sample& c) { c.options.top_k = -1; }),
        sampled("top_p is 0" + no_part, [](Sample& c) { c.options.top_p = 0; }),
        sampled("top_p is 1.5" + no_part, [](Sample& c) { c.options.top_p = 1.5; }),
        sampled("top_p is nan" + no_part, [](Sample& c) { c.options.top_p = nan; }),
        sampled("logits(1)" + no_number, [](Sample& c) { with<1>(c, nan); }),
        sampled("logits(2)" + no_number,
                [](Sample& c) {
                  with<2>(c, nan);
                  c.options.temperature = 0;
                }),
        sampled("logits(0)" + no_number, [](Sample& c) { with<0>(c, infinity); }),
        sampled("logits [0]" + no_token, [](Sample& c) { c.logits = {}; }),
        sampled("logits [1]" + no_token,
                [](Sample& c) {
                  with<0>(c, -infinity);
                  c.logits = {c.logits.data(), Shape{1}};
                }),
    },
}));

}  // namespace

TEST_CASE("sample_token refuses bad options and logits", "[bad_calls]") { samples.check(); }

TEST_CASE("the call of sampling that is spoilt is right before", "[bad_calls]") {
  Witness memory;
  CHECK_NOTHROW(Sample{memory}.call());
}

}  // namespace bad_calls_sampling
