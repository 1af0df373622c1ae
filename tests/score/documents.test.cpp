#include "headwise/score/documents.hpp"

#include <cstdint>
#include <string>

#include "headwise/score/mask.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"

namespace score_documents {

using namespace headwise;

TEST_CASE("a document is found from each of its keys, however long it is", "[score]") {
  for (const Index length : {1, 2, 3, 7, 8, 9, 63, 64, 65, 200}) {
    const Index S = 3 * length + 5;
    Tensor2<std::int32_t> ids({2, 2 * S});
    const auto of = [&](Index j) { return j < 5 ? Index{0} : 1 + (j - 5) / length; };
    for (Index j = 0; j < S; ++j) ids(1, 2 * j) = static_cast<std::int32_t>(9 - of(j));
    const In<std::int32_t, 2> every_second(&ids(0, 0), Shape{2, S}, Shape{2 * S, 2});
    const DocumentRow row(Mask::documents(every_second), 1);
    bool right = row.present();
    for (Index j = 0; j < S; ++j) {
      const KeyRange keys = row.around(j);
      right = right && keys.begin == (of(j) == 0 ? 0 : 5 + (of(j) - 1) * length) &&
              keys.end == (of(j) == 0 ? 5 : 5 + of(j) * length);
    }
    CAPTURE(length);
    CHECK(right);
  }
}

TEST_CASE("documents may come in any order, and many of them are checked at once", "[score]") {
  constexpr Index S = 400'000;  // S^2 / 2 comparisons would be a minute
  Tensor2<Index> ids({1, S});
  for (Index j = 0; j < S; ++j) ids(0, j) = (S - j) * 7919 % 1'000'003;
  const Documents documents = Mask::documents(ids);
  CHECK(error_of([&] { documents.require_fits("f", 1, S); }) == std::nullopt);
  ids(0, S - 1) = ids(0, S - 3) = ids(0, 11);
  CHECK(error_of([&] { documents.require_fits("f", 1, S); }) ==
        "f: Mask::documents has document " + std::to_string(ids(0, 11)) +
            " at [0, 11] and, behind another, at [0, 399997], expected the keys of a document side "
            "by side (Mask::keep takes any pairs)");
}

}  // namespace score_documents
