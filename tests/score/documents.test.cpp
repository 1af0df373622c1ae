#include "headwise/score/documents.hpp"

#include <cstdint>

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

}  // namespace score_documents
