// What an optimiser walks: parameters by name, each with its values and its gradient, of any module
// and any number of axes. Views: nothing here owns or copies an element.
//   ParameterList<float> list;
//   collect(list, "attention.", attention.parameters(), gradients);
// Lists that are only saved and loaded go without gradients.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1 {

/// The most axes that a parameter may have: as many as a file can say.
inline constexpr int max_parameter_rank = 8;

/// A tensor by name, whatever its rank.
template <class T>
struct NamedTensor {
  std::string name;                        // as "blocks.0.W_Q"
  int rank = 0;                            // its axes, at least 1
  TensorView<T, max_parameter_rank> view;  // they come last: those in front have extent 1

  /// The extents of its own axes, outermost first.
  std::vector<Index> extents() const {
    const auto& all = view.shape().extents;
    return {std::end(all) - rank, std::end(all)};
  }
};

/// A parameter: what a step changes, and what it is changed by.
template <class T>
struct Parameter : NamedTensor<T> {
  TensorView<T, max_parameter_rank> gradient;  // of the shape of the values, or absent
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The same elements with axes of extent 1 in front.
template <class T, int R>
TensorView<T, max_parameter_rank> with_all_axes(const Out<T, R>& view) {
  static_assert(R <= max_parameter_rank, "a parameter has at most 8 axes");
  Shape<max_parameter_rank> shape, strides;
  for (int r = 0; r < max_parameter_rank; ++r) {
    const int from = r - (max_parameter_rank - R);
    shape[r] = from < 0 ? 1 : view.extent(from);
    strides[r] = from < 0 ? 0 : view.stride(from);
  }
  return {view.data(), shape, strides};
}

/// Whether a value or a gradient of the one lies in a value or a gradient of the other.
template <class T>
bool share_elements(const Parameter<T>& a, const Parameter<T>& b) {
  for (const auto& of_a : {a.view, a.gradient}) {
    for (const auto& of_b : {b.view, b.gradient}) {
      if (overlap({"", of_a}, {"", of_b})) return true;
    }
  }
  return false;
}

/// Elements begin ... end - 1 of a parameter, counted row-major: a part of a step.
struct ParameterTask {
  std::size_t parameter;
  Index begin, end;
};

/// Elements of a part: some microseconds.
inline constexpr Index elements_of_step = 16384;

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Parameters in the order in which they were added, no two of one name, none over another's
/// memory. What they view must outlive the list, and keeps its place: a module may be moved, but
/// not assigned to.
template <Scalar T>
class ParameterList {
 public:
  /// Without parameters.
  ParameterList() = default;
  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  ParameterList(const ParameterList&) = default;
  ParameterList(ParameterList&&) noexcept = default;
  ParameterList& operator=(const ParameterList& other) { return *this = ParameterList(other); }
  ParameterList& operator=(ParameterList&&) noexcept = default;
  ///@}
  /// Adds a parameter, any strides.
  ///
  /// name       not empty, not added before
  /// value      written to by each step; absent tensors are no parameters
  /// gradient   the shape of value; written to by clip_grad_norm and zero_gradients
  ///
  /// Throws   ArgumentError or ShapeError, std::bad_alloc; the list then is as it was.
  template <int R>
  void add(std::string name, Out<T, R> value, Out<std::type_identity_t<T>, R> gradient) {
    constexpr std::string_view function = "ParameterList::add";
    require_countable(function, "value", value);
    require_shape(function, "gradient", gradient, value.shape(), "the shape of value");
    add_checked(function, {{std::move(name), R, detail::with_all_axes(value)},
                           detail::with_all_axes(gradient)});
  }
  /// Adds a parameter without a gradient: to be saved and loaded. Throws as above.
  template <int R>
  void add(std::string name, Out<T, R> value) {
    constexpr std::string_view function = "ParameterList::add";
    require_countable(function, "value", value);
    add_checked(function, {{std::move(name), R, detail::with_all_axes(value)}, {}});
  }
  /// Adds a parameter of another list. Throws as above.
  void add(const Parameter<T>& parameter) { add_checked("ParameterList::add", parameter); }

  /// How many parameters there are.
  std::size_t size() const { return parameters_.size(); }
  /// Whether there is none.
  bool empty() const { return parameters_.empty(); }
  /// How many numbers they hold together.
  Index elements() const {
    Index sum = 0;
    for (const Parameter<T>& p : parameters_) sum += p.view.size();
    return sum;
  }
  /// One of them.
  const Parameter<T>& operator[](std::size_t n) const { return parameters_[n]; }
  /// All of them, as a range.
  ///@{
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }
  ///@}

  /// Those with two axes or more: what weight decay is for. Biases of distances are among them.
  ParameterList matrices() const {
    return those([](const Parameter<T>& p) { return p.rank >= 2; });
  }
  /// Those with one axis: biases, gains and offsets.
  ParameterList vectors() const {
    return those([](const Parameter<T>& p) { return 2 > p.rank; });
  }

  /// Throws ArgumentError unless every one has a gradient.
  void require_gradients(std::string_view function) const {
    for (const Parameter<T>& p : parameters_) {
      require(!p.gradient.absent(), function, "parameter ", p.name,
              " has no gradient, expected one, as collect adds it");
    }
  }

  /// How a step over all of them is cut; by their shapes alone.
  const std::vector<detail::ParameterTask>& tasks() const { return tasks_; }

 private:
  void add_checked(std::string_view function, Parameter<T> added) {
    require(!added.name.empty(), function, "name is empty, expected one like W_Q");
    require_apart(function, {"value", added.view}, {{"gradient", added.gradient}});
    require_distinct(function, {"gradient", added.gradient});
    for (const Parameter<T>& p : parameters_) {
      require(p.name != added.name, function, "name ", added.name, " was added before");
      require_apart(function, {"value", added.view},
                    {{"an earlier value", p.view}, {"an earlier gradient", p.gradient}});
      require_apart(function, {"gradient", added.gradient},
                    {{"an earlier value", p.view}, {"an earlier gradient", p.gradient}});
    }
    const Index count = added.view.size(), step = detail::elements_of_step;
    std::vector<detail::ParameterTask> tasks = tasks_;
    for (Index n = 0; n < count; n += step) {
      tasks.push_back({parameters_.size(), n, std::min<Index>(count, n + step)});
    }
    parameters_.push_back(std::move(added));
    tasks_.swap(tasks);
  }

  template <class Wanted>
  ParameterList those(const Wanted& wanted) const {
    ParameterList part;
    for (const Parameter<T>& p : parameters_) {
      if (wanted(p)) part.add(p);
    }
    return part;
  }

  std::vector<Parameter<T>> parameters_;
  std::vector<detail::ParameterTask> tasks_;
};

/// Adds the parameters of a module without gradients: to be saved and loaded. Throws as
/// ParameterList::add does; the list then is as it was.
template <Scalar T, class Parameters>
void collect(ParameterList<T>& list, const std::string& prefix, Parameters& parameters) {
  ParameterList<T> longer = list;
  parameters.for_each([&](const std::string& name,
                          auto view) { longer.template add<decltype(view)::rank>(name, view); },
                      prefix);
  list = std::move(longer);
}

/// Adds the parameters of a module, each with its gradient.
///
/// prefix       goes in front of the names: "blocks.0."
/// parameters   what a module's parameters() gives, or anything with for_each(f, prefix), which
///              calls f(name, view)
/// gradients    the same of zero_gradients(): the same tensors in the same order
///
/// Throws   ShapeError where they are of another module, and as ParameterList::add does; the list
///          then is as it was.
template <Scalar T, class Parameters, class Gradients>
void collect(ParameterList<T>& list, const std::string& prefix, Parameters& parameters,
             Gradients& gradients) {
  std::vector<NamedTensor<T>> values, slopes;
  const auto into = [](std::vector<NamedTensor<T>>& to) {
    return [&to](const std::string& name, auto view) {
      to.push_back({name, decltype(view)::rank, detail::with_all_axes(view)});
    };
  };
  parameters.for_each(into(values), prefix);
  gradients.for_each(into(slopes), prefix);
  require(values.size() == slopes.size(), "collect", "gradients hold ", slopes.size(),
          " tensors, expected ", values.size(), " (parameters)");
  ParameterList<T> longer = list;
  for (std::size_t n = 0; n < values.size(); ++n) {
    if (values[n].extents() != slopes[n].extents()) {
      raise<ShapeError>("collect: the gradient of ", values[n].name, " is ", slopes[n].extents(),
                        ", expected ", values[n].extents(), " (zero_gradients())");
    }
    longer.add({std::move(values[n]), slopes[n].view});
  }
  list = std::move(longer);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
