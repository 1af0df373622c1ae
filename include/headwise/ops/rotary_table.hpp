// The angles of rotary positions: their cosines and sines, position by position, as a function of
// options alone. They are computed in double, so that position 100,000 is right in float.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/runtime/context.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// Which elements of a head's row are a pair.
enum class RotaryPairing {
  halves,       ///< (t, t + width / 2): GPT-NeoX, LLaMA as Hugging Face stores it
  interleaved,  ///< (2 t, 2 t + 1): the paper, GPT-J
};

/// Radians a position of each pair: a view of the caller's numbers, or numbers of its own, which
/// copies share.
class RotaryFrequencies {
 public:
  /// None: theta tells them.
  RotaryFrequencies() = default;
  /// Viewed: what it sees must outlive the call. A tensor without a name does not compile.
  ///@{
  RotaryFrequencies(In<double, 1> view) : view_(view) {}
  template <OwnsItsElements U>
  requires std::derived_from<U, In<double, 1>> RotaryFrequencies(const U&& tensor)
  = delete;  // it would be gone before it is read
  RotaryFrequencies(const double* data, const Shape<1>& shape) : view_(data, shape) {}
  ///@}
  /// Of its own.
  RotaryFrequencies(std::vector<double> values)
      : owned_(std::make_shared<const std::vector<double>>(std::move(values))),
        view_(owned_->data(), Shape<1>(static_cast<Index>(owned_->size()))) {}

  /// A copy sees the same numbers; what is moved from stays as it was.
  ///@{
  RotaryFrequencies(const RotaryFrequencies&) = default;
  RotaryFrequencies& operator=(const RotaryFrequencies&) = default;
  ///@}

  /// Whether there are none.
  bool absent() const { return view_.absent(); }
  /// All of them, [width / 2].
  const In<double, 1>& view() const { return view_; }
  /// Of pair t.
  double operator()(Index t) const { return view_(t); }
  /// The same numbers, never viewed. Throws std::bad_alloc.
  RotaryFrequencies owned() const {
    if (absent() || owned_ != nullptr) return *this;
    std::vector<double> values;
    for (Index t = 0; t < view_.extent(0); ++t) values.push_back(view_(t));
    return values;
  }
  /// Whether both have the same numbers.
  friend bool operator==(const RotaryFrequencies& a, const RotaryFrequencies& b) {
    bool same = a.view_.extent(0) == b.view_.extent(0);
    for (Index t = 0; same && t < a.view_.extent(0); ++t) same = a(t) == b(t);
    return same;
  }

 private:
  std::shared_ptr<const std::vector<double>> owned_;
  In<double, 1> view_;
};

/// What rotary positions are. What it views must outlive the call.
struct RotaryOptions {
  double theta = 10000;  // pair t turns by theta^(-2 t / width) a position
  Index width = 0;       // of a row's elements, the first ones, that are rotated; 0: all
  RotaryPairing pairing = RotaryPairing::halves;  // which of them turn together
  Index offset = 0;                               // position of the first row, to 2^48
  RotaryFrequencies frequencies =
      {};  // [width / 2]; of each pair, instead of theta; none where empty

  /// The same with frequencies of its own. Throws std::bad_alloc.
  RotaryOptions owned() const {
    RotaryOptions kept = *this;
    kept.frequencies = frequencies.owned();
    return kept;
  }
  /// How many elements of a row of d are rotated.
  Index width_of(Index d) const { return width == 0 ? d : width; }
  /// Whether both turn rows of d elements alike.
  bool rotates_like(const RotaryOptions& other, Index d) const {
    return (theta == other.theta || !frequencies.absent()) && width_of(d) == other.width_of(d) &&
           pairing == other.pairing && offset == other.offset && frequencies == other.frequencies;
  }
};

/// cos and sin of the angles of positions 0, 1, ...
template <class T>
struct RotaryAngles {
  In<T, 2> cosines;  // [positions, width / 2]
  In<T, 2> sines;    // [positions, width / 2]
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

inline constexpr Index farthest_position = Index{1} << 48;

/// Throws ArgumentError or ShapeError for options that are none, of rows of d elements.
inline void require_rotary(std::string_view function, const RotaryOptions& options, Index d) {
  const Index width = options.width_of(d);
  require(width >= 0 && width <= d && width % 2 == 0, function, "width is ", width,
          ", expected an even number from 0 to ", d, ", the width of a head");
  require(options.offset >= 0 && options.offset <= farthest_position, function, "offset is ",
          options.offset, ", expected 0 to 2^48");
  if (options.frequencies.absent()) {
    require(is_finite_option(options.theta) && options.theta > 0, function, "theta is ",
            options.theta, ", expected a finite number above 0");
    return;
  }
  require_shape(function, "frequencies", options.frequencies.view(), Shape{width / 2},
                "one for each pair of the width");
  for (Index t = 0; t < width / 2; ++t) {
    require(is_finite_option(options.frequencies(t)), function, "frequencies(", t, ") is ",
            options.frequencies(t), ", expected a finite number");
  }
}

/// Rows of the tables: row i is of position(i).
template <class T, class Position>
void fill_angles(const RotaryOptions& options, Index width, const Position& position,
                 Out<T, 2> cosines, Out<T, 2> sines) {
  constexpr bool wider = std::numeric_limits<T>::digits > std::numeric_limits<double>::digits;
  using Wide = std::conditional_t<wider, long double, double>;
  const Wide theta = static_cast<Wide>(options.theta);
  for (Index t = 0; t < width / 2; ++t) {
    const Wide frequency =
        options.frequencies.absent()
            ? std::pow(theta, static_cast<Wide>(-2 * t) / static_cast<Wide>(width))
            : static_cast<Wide>(options.frequencies(t));
    for (Index i = 0; i < cosines.extent(0); ++i) {
      const Wide angle = static_cast<Wide>(position(i)) * frequency;
      cosines(i, t) = nearest<T>(static_cast<long double>(std::cos(angle)));
      sines(i, t) = nearest<T>(static_cast<long double>(std::sin(angle)));
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Cosines and sines that are made once and read by many calls. A row is a function of the options
/// and of its position alone: growing changes none.
template <Scalar T>
class RotaryTable {
 public:
  /// Of heads of d elements, without a position yet. options.offset has no part in it; frequencies
  /// are copied. Throws ArgumentError or ShapeError for options that are none, std::bad_alloc.
  explicit RotaryTable(Index d, const RotaryOptions& options = {},
                       std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : options_(options), width_(options.width_of(d)), memory_(memory) {
    detail::require_rotary("RotaryTable", options, d);
    for (Tensor<T, 2>* table : {&cosines_, &sines_}) {
      *table = Tensor<T, 2>(Shape{Index{0}, width_ / 2}, memory);
    }
    if (options.frequencies.absent()) return;
    given_ = true;
    frequencies_ = Tensor<double, 1>(options.frequencies.view().shape(), memory);
    for (Index t = 0; t < frequencies_.size(); ++t) frequencies_(t) = options.frequencies(t);
    options_.frequencies = {};
  }

  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  RotaryTable(const RotaryTable&) = default;
  RotaryTable(RotaryTable&&) noexcept = default;
  RotaryTable& operator=(const RotaryTable& other) { return *this = RotaryTable(other); }
  RotaryTable& operator=(RotaryTable&&) noexcept = default;
  ///@}

  /// Makes it hold positions 0 to positions - 1 at least: views of it from before are void where it
  /// was shorter. Throws std::bad_alloc, and is as it was then; ArgumentError for more than 2^48,
  /// and where frequencies that were given are gone with a move.
  void grow(Index positions) {
    const Index held = cosines_.extent(0);
    if (positions <= held) return;
    require(positions <= detail::farthest_position, "RotaryTable::grow", "positions is ", positions,
            ", expected at most 2^48");
    require(given_ == !frequencies_.absent(), "RotaryTable::grow",
            "the table was moved from, expected one that has its frequencies");
    const Index rows = positions < 2 * held ? 2 * held : positions;
    auto cosines = Tensor<T, 2>::uninitialized({rows, width_ / 2}, memory_);
    auto sines = Tensor<T, 2>::uninitialized({rows, width_ / 2}, memory_);
    RotaryOptions options = options_;
    options.frequencies = In<double, 1>(frequencies_);
    detail::fill_angles<T>(
        options, width_, [](Index i) { return i; }, cosines, sines);
    cosines_ = std::move(cosines);
    sines_ = std::move(sines);
  }

  /// What it holds.
  RotaryAngles<T> angles() const { return {cosines_, sines_}; }
  /// The same, grown to `positions` before.
  RotaryAngles<T> angles(Index positions) {
    grow(positions);
    return angles();
  }

 private:
  RotaryOptions options_;
  Index width_;
  std::pmr::memory_resource* memory_;
  bool given_ = false;             // frequencies were
  Tensor<double, 1> frequencies_;  // [width / 2], or absent
  Tensor<T, 2> cosines_, sines_;   // [positions, width / 2]
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
