// Reference cases as laws over anybody's kernel.
#include "headwise/io/reference_laws.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include "io/written_files.hpp"
#include "support/catch.hpp"
#include "support/law_kernels.hpp"

namespace io_reference_laws {

using namespace headwise_tests;

namespace {

const std::vector<ReferenceCase>& cases() {
  static const auto all = read_attention_cases(HEADWISE_TEST_DATA);
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("both paths of this library agree with every case that they take", "[io]", float,
                   double) {
  REQUIRE(cases().size() == 12);
  for (const auto& kernel : {materialized_kernel<TestType>(), flash_kernel<TestType>()}) {
    const ScoreCard card = run_reference_cases<TestType>(kernel, cases());
    CAPTURE(card.format());
    CHECK(card);
    for (const ScoreCardRow& row : card.rows) {
      const bool changes_scores = row.law == "sdpa_alibi" || row.law == "sdpa_softcap";
      CAPTURE(row.law);  // what is no part of the problem is not given to a kernel
      CHECK(row.worst.status == (changes_scores ? LawStatus::not_applicable : LawStatus::pass));
    }
  }
}

TEST_CASE("a planted fault fails the cases that show it", "[io]") {
  struct Plant {
    Fault fault;
    std::string shown_by;
  };
  const auto plant = GENERATE(values<Plant>({{Fault::softmax_over_queries, "sdpa_plain"},
                                             {Fault::causal_off_by_one, "sdpa_gqa"},
                                             {Fault::causal_top_left, "sdpa_causal_rect"},
                                             {Fault::scale_forgotten, "sdpa_scale"},
                                             {Fault::wrong_group, "sdpa_gqa"},
                                             {Fault::last_key_dropped, "sdpa_dv"},
                                             {Fault::dead_row_uniform, "sdpa_dead_rows"}}));
  CAPTURE(plant.shown_by);
  const auto card = run_reference_cases<double>(loops_kernel<double>(plant.fault), cases());
  CHECK(card[plant.shown_by].worst.status == LawStatus::fail);
}

TEST_CASE("a kernel that does more than a case says is not given it", "[io]") {
  auto kernel = loops_kernel<double>(Fault::none);
  kernel.variant.sink = [](Index) { return 0.0L; };
  for (const ScoreCardRow& row : run_reference_cases<double>(kernel, cases()).rows) {
    CHECK(row.worst.status == LawStatus::not_applicable);
  }
}

TEST_CASE("a kernel is not given what it does not take, and what it throws is a failure", "[io]") {
  auto kernel = loops_kernel<double>(Fault::none);
  kernel.takes_groups = false;
  kernel.takes_keep = false;
  auto card = run_reference_cases<double>(kernel, cases());
  CHECK(card);
  for (const char* name : {"sdpa_gqa", "sdpa_mqa", "sdpa_long", "sdpa_window"}) {
    CHECK(card[name].worst.status == LawStatus::not_applicable);
  }
  CHECK(card["sdpa_plain"].worst.status == LawStatus::pass);

  kernel.forward = [](const auto&, const auto&) { throw std::runtime_error("no memory"); };
  card = run_reference_cases<double>(kernel, cases());
  CHECK(card["sdpa_plain"].worst.message() == "threw: no memory");

  auto all = run_laws(loops_kernel<double>(Fault::none), {.shapes = {{1, 1, 1, 2, 2, 2, 2}}});
  const auto laws = all.rows.size();
  all.append(run_reference_cases<double>(loops_kernel<double>(Fault::none), cases()));
  CHECK(all.rows.size() == laws + cases().size());
}

TEST_CASE("a folder without cases and a kernel without forward are refused", "[io]") {
  CHECK_THROWS_AS(read_attention_cases("no/such/folder"), FileError);
  const TemporaryFolder folder;
  fs::create_directory(folder / "empty");
  CHECK_THROWS_WITH(read_attention_cases(folder / "empty"),
                    (folder / "empty").string() + ": holds no case of kind sdpa");
  CHECK_THROWS_WITH(run_reference_cases<double>(AttentionKernel<double>{}, cases()),
                    "run_reference_cases: the kernel has no forward");
}

}  // namespace io_reference_laws
