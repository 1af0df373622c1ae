// Causal attention of x [1, 2, 5, 4] with itself, compiled anew by each file that includes it: with
// whichever headwise that file has included before.
namespace {

headwise::Tensor4<float> attend(const headwise::Tensor4<float>& x) {
  headwise::Tensor4<float> o(x.shape()), weights({1, 2, 5, 5});
  headwise::attention_forward(headwise::In<float, 4>(x), x, x, {.mask = headwise::causal}, weights,
                              o);
  return o;
}

}  // namespace
