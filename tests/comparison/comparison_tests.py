"""Tests of bench/comparison: names are propositions. Run by tests/comparison/run."""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

HERE = os.path.dirname(os.path.abspath(__file__))
COMPARISON = os.path.join(HERE, "..", "..", "bench", "comparison")
sys.path.insert(0, COMPARISON)

import figures
import plots
import svg
import table

with open(os.path.join(HERE, "recorded.json")) as file:
    RECORDED = json.load(file)


def rows_with(page, words):
    return [line for line in page.splitlines() if words in line]


class Figures(unittest.TestCase):
    def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds(self):
        # 3, 2 and 5; the ratio of the medians would be 2.
        self.assertAlmostEqual(figures.times_as_fast(RECORDED["cases"][0], "torch"), 3)

    def test_a_partner_that_did_not_run_has_no_ratio(self):
        self.assertIsNone(figures.times_as_fast(RECORDED["cases"][2], "torch"))
        self.assertIsNone(figures.seconds_of(RECORDED["cases"][2], "torch"))

    def test_the_peak_is_the_highest_of_the_run_products_included(self):
        self.assertAlmostEqual(figures.peak_of(RECORDED), 125e9)
        slower = copy.deepcopy(RECORDED)
        slower["cases"][3]["seconds"]["headwise"] = [0.025]
        self.assertAlmostEqual(figures.peak_of(slower), 100e9)
        slower["cases"][3]["seconds"]["openblas"] = [0.01]
        self.assertAlmostEqual(figures.peak_of(slower), 200e9)

    def test_a_share_is_the_rate_at_the_median_time_over_the_peak(self):
        self.assertAlmostEqual(figures.share_of_peak(RECORDED, RECORDED["cases"][0]), 0.4)

    def test_an_even_number_of_rounds_has_the_middle_between_two(self):
        self.assertEqual(figures.median([4, 1, 3, 2]), 2.5)
        self.assertAlmostEqual(figures.geometric_mean([1, 4]), 2)


class Tables(unittest.TestCase):
    def test_a_row_holds_times_share_and_ratio(self):
        row = rows_with(table.write_table(RECORDED), "(1, 512, 512, 8) | no")[0]
        self.assertEqual(row, "| (1, 512, 512, 8) | no | 40 | 40.0 % | 80 | 3.00 |  |  |")

    def test_the_lowest_and_the_median_ratio_of_the_standard_shapes_are_named(self):
        self.assertIn("not causal, against PyTorch: lowest 2.00, median 2.50, highest 3.00.",
                      table.write_table(RECORDED))

    def test_a_changed_time_changes_the_table(self):
        changed = copy.deepcopy(RECORDED)
        changed["cases"][1]["seconds"]["headwise"][1] = 0.2
        changed["cases"][1]["seconds"]["headwise"][2] = 0.2
        self.assertNotEqual(table.write_table(changed), table.write_table(RECORDED))

    def test_without_pytorch_the_table_says_why(self):
        alone = copy.deepcopy(RECORDED)
        alone["torch"] = {"absent": "no torch today"}
        for case in alone["cases"]:
            case["seconds"].pop("torch", None)
        page = table.write_table(alone)
        self.assertIn("**No PyTorch here**: no torch today", page)
        self.assertNotIn("against PyTorch", page)

    def test_products_and_rows_have_their_own_rivals(self):
        page = table.write_table(RECORDED)
        self.assertIn("| nn/out_forward | 2048 x 768 x 768 | 80 | 64.0 % | 0.80 |", page)
        self.assertIn("| layer_norm/forward | 2048 x 768 | 1 | 10.0 | 50.0 % |", page)

    def test_grouped_heads_are_held_against_a_key_head_for_each_query_head(self):
        # 50 GFLOP/s against 40.
        self.assertIn("| (4, 64, 64, 16, 4) | mha/forward | yes | 50 | 40 | 1.25 |",
                      table.write_table(RECORDED))

    def test_attention_alone_has_both_passes_and_its_scratch_a_thread(self):
        page = table.write_table(RECORDED)
        self.assertIn("| (1, 512, 512, 8) | no | 10 | 80.0 % | 32 | 50.0 % | 64 |", page)
        self.assertIn("| (1, 65536, 64, 1) | yes | 50 | 80.0 % |  |  | 128 |", page)
        two = copy.deepcopy(RECORDED)
        two["settings"]["threads"] = 2
        self.assertIn("| (1, 65536, 64, 1) | yes | 50 | 80.0 % |  |  | 64 |", table.write_table(two))

    def test_changes_of_scores_are_held_against_none_and_pytorch(self):
        page = table.write_table(RECORDED)
        self.assertIn("| plain | 100 | 1.00 | 200 | 2.00 |", page)
        self.assertIn("| causal bias | 125 | 0.80 | 375 | 3.00 |", page)

    def test_decoding_is_held_against_reading_and_pytorch(self):
        self.assertIn("| (1, 2048, 768, 12) | by head | 0.5 | 24.0 | 80.0 % | 1 | 2.00 |",
                      table.write_table(RECORDED))

    def test_layouts_are_held_against_the_first(self):
        self.assertIn("| (4, 512, 768, 12) | no | 10 (1.00) | 12 (1.20) | 9 (0.90) |",
                      table.write_table(RECORDED))

    def test_another_build_has_a_table_of_its_own(self):
        other = copy.deepcopy(RECORDED)
        other["settings"]["against"] = ["native"]
        other["cases"][1]["seconds"]["native"] = [0.08, 0.04, 0.02]
        page = table.write_table(other)
        self.assertIn("## headwise against native", page)
        self.assertIn("| 80 | 40 | 0.50 |", page)
        self.assertNotIn("headwise against", table.write_table(RECORDED))

    def test_memory_is_in_mebibytes_with_what_came_after_the_start(self):
        self.assertIn("| (1, 512, 512, 8) | 32.0 | 28.0 | 300.0 | 100.0 |  |  | 10.0 |",
                      table.write_table(RECORDED))

    def test_a_busy_machine_is_named(self):
        busy = copy.deepcopy(RECORDED)
        busy["machine"]["load"] = 2.5
        self.assertIn("**The machine was busy**", table.write_table(busy))
        self.assertNotIn("busy", table.write_table(RECORDED))

    def test_every_row_of_a_table_has_as_many_cells_as_its_head(self):
        cells = None
        for line in table.write_table(RECORDED).splitlines():
            if not line.startswith("|"):
                cells = None
                continue
            cells = cells or line.count("|")
            self.assertEqual(line.count("|"), cells, line)


class Pictures(unittest.TestCase):
    def test_all_four_are_well_formed(self):
        pictures = plots.draw_all(RECORDED)
        self.assertEqual(sorted(pictures), ["memory.svg", "peak.svg", "roofline.svg", "time.svg"])
        for name, text in pictures.items():
            words = [element.text for element in xml.fromstring(text).iter() if element.text]
            self.assertTrue(any("Test <Processor>" in word for word in words) or name == "memory.svg")

    def test_they_read_on_dark_and_on_light(self):
        for text in plots.draw_all(RECORDED).values():
            self.assertIn("prefers-color-scheme: dark", text)
            self.assertIn('class="page"', text)

    def test_a_curve_is_where_its_values_are(self):
        lines = re.findall(r'<polyline points="([^"]+)" class="line s(\d)"', plots.time_against_length(
            RECORDED))
        self.assertEqual([colour for _, colour in lines], ["0", "1"])
        points = [tuple(float(n) for n in pair.split(",")) for pair in lines[0][0].split()]
        self.assertEqual(len(points), 3)
        # 40, 80 and 160 ms at 512, 1024 and 2048: equal steps on both axes, upward.
        steps = [(b[0] - a[0], a[1] - b[1]) for a, b in zip(points, points[1:])]
        self.assertAlmostEqual(steps[0][0], steps[1][0], delta=0.2)
        self.assertAlmostEqual(steps[0][1], steps[1][1], delta=0.2)
        self.assertGreater(steps[0][1], 10)

    def test_what_was_not_measured_is_not_drawn(self):
        little = copy.deepcopy(RECORDED)
        little["memory"], little["cases"] = [], little["cases"][:1]
        self.assertEqual(sorted(plots.draw_all(little)), ["peak.svg", "roofline.svg"])

    def test_labels_keep_their_distance_and_their_order(self):
        places = svg.spread([10, 11, 12, 50], 16)
        self.assertTrue(all(b - a > 15.9 for a, b in zip(places, places[1:])))

    def test_ticks_enclose_the_values(self):
        for values in ([8, 230], [0.3, 4000], [5, 5]):
            for ticks in (svg.fine_ticks(values), svg.decades(values)):
                self.assertLessEqual(ticks[0], min(values))
                self.assertGreaterEqual(ticks[-1], max(values))
                self.assertGreaterEqual(len(ticks), 2)


def run_on_partners(program, folder, *options, **environment):
    """Runs bench/comparison's `program` on made-up partners: exit status, what it said, and who was
    asked what."""
    partner, log = os.path.join(HERE, "partner"), os.path.join(folder, "turns")
    command = [sys.executable, "-B", os.path.join(COMPARISON, program), "--program",
               f"{sys.executable} {partner}", "--seconds", "0", "--out", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True, env={
        **os.environ, "TURNS": log, "HEADWISE_TORCH": f"{sys.executable} {partner}", **environment})
    with open(log) as file:
        return done.returncode, done.stdout + done.stderr, file.read().splitlines()


class Turns(unittest.TestCase):
    def compare(self, *options, **environment):
        """Runs the comparison on made-up partners: exit status, results, who was asked what."""
        with tempfile.TemporaryDirectory() as folder:
            status, said, asked = run_on_partners("run", folder, *options, **environment)
            try:
                with open(os.path.join(folder, "results.json")) as file:
                    results = json.load(file)
                with open(os.path.join(folder, "table.md")) as file:
                    results["table"] = file.read()
            except OSError:
                self.fail(said)
            return status, results, asked

    def test_partners_alternate_and_who_goes_first_changes(self):
        status, results, asked = self.compare("--rounds", "3", "--parts", "mha",
                                              "--shapes", "1,128,256,4")
        self.assertEqual(status, 0, results["problems"])
        case = "mha/forward/f32 1 128 256 4 4 0"
        turns = [line.split()[0] for line in asked
                 if line.endswith(case) and "check" not in line and "eigen" not in line]
        self.assertEqual(turns, ["headwise", "torch", "torch", "headwise", "headwise", "torch"])
        measured = [entry for entry in results["cases"] if entry["values"] == [1, 128, 256, 4, 4, 0]]
        self.assertEqual(measured[0]["seconds"]["torch"], [0.03] * 3)
        self.assertIn("| 3.00 |", results["table"])

    def test_each_result_is_checked_once_and_a_wrong_one_has_no_time(self):
        status, results, asked = self.compare("--rounds", "2", "--parts", "sdpa,gemm",
                                              WRONG="sdpa/backward/f32 1 128 256 4 4 1")
        self.assertEqual(status, 1)
        checks = [line for line in asked if " check " in line]
        self.assertEqual(len(checks), len(set(checks)))
        self.assertIn("headwise, sdpa/backward/f32 1 128 256 4 4 1: the result is wrong",
                      results["problems"])
        self.assertEqual([entry["values"][5] for entry in results["cases"]
                          if entry["family"] == "sdpa/backward"], [0])

    def test_a_pytorch_that_cannot_start_or_cannot_run_a_case_is_named(self):
        status, results, _ = self.compare("--rounds", "1", "--parts", "mha", NO_TORCH="1")
        self.assertEqual(status, 0)
        self.assertIn("no torch today", results["torch"]["absent"])
        status, results, _ = self.compare("--rounds", "1", "--parts", "mha", "--shapes", "1,16,64,4")
        self.assertEqual(status, 0)
        self.assertTrue(any("too small" in problem for problem in results["problems"]))
        self.assertTrue(all("torch" not in entry["seconds"] for entry in results["cases"]))


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two threads need two cores")
class Scaling(unittest.TestCase):
    def scale(self, *options, **environment):
        """Exit status, what was said, who was asked what, the table and the picture."""
        with tempfile.TemporaryDirectory() as folder:
            found = run_on_partners("scaling", folder, "--threads", "2", *options, **environment)
            pages = []
            for name in ("scaling.md", "scaling.svg"):
                with open(os.path.join(folder, name)) as file:
                    pages.append(file.read())
            return *found, *pages

    def test_each_gain_is_against_the_same_program_with_one_thread(self):
        status, said, _, page, picture = self.scale("--rounds", "1", SCALES="1")
        self.assertEqual(status, 0, said)
        self.assertIn("| (1, 128, 256, 4) | no | 1 | 10 | 1.00 | 30 | 1.00 | 3.00 |\n", page)
        self.assertIn("| (1, 128, 256, 4) | yes | 2 | 5 | 2.00 | 15 | 2.00 | 3.00 | 2.00 |\n", page)
        self.assertIn("| (1, 128, 64, 4) |  | 2 | 5 | 2.00 | 15 | 2.00 | 3.00 |", page)
        self.assertNotIn("(1, 16, 64, 4)", page)
        xml.fromstring(picture)

    def test_copies_run_side_by_side_with_one_thread_each(self):
        status, said, asked, page, _ = self.scale("--rounds", "1")
        self.assertEqual(status, 0, said)
        self.assertIn("| (1, 128, 256, 4) | no | 2 | 10 | 1.00 | 30 | 1.00 | 3.00 | 2.00 |\n", page)
        case = "headwise mha/forward_backward/f32 1 128 256 4 4 0"
        self.assertEqual(asked.count(case), 4)  # with 1 thread, with 2, and both copies

    def test_a_run_that_is_stopped_has_kept_the_rounds_that_were_done(self):
        with tempfile.TemporaryDirectory() as folder:
            status, _, _ = run_on_partners("scaling", folder, "--rounds", "3", STOPS_AT_PEAK="3")
            self.assertNotEqual(status, 0)
            recorded = os.path.join(folder, "scaling.json")
            with open(recorded) as file:
                results = json.load(file)
            self.assertEqual(results["settings"]["rounds"], 1)
            command = [os.path.join(COMPARISON, "scaling"), "--draw", recorded, "--out", folder]
            subprocess.run(command, check=True, capture_output=True)
            with open(os.path.join(folder, "scaling.md")) as file:
                self.assertIn("medians of 1 round,", file.read())

    def test_every_number_of_threads_takes_its_turn_and_is_checked(self):
        _, said, asked, _, _ = self.scale("--rounds", "2")
        case = "mha/forward/f32 1 128 256 4 4 0"
        turns = [line.split()[0] for line in asked if line.endswith(case) and "check" not in line]
        self.assertEqual(turns, ["headwise", "torch"] * 2 + ["torch", "headwise"] * 2, said)
        self.assertEqual(len([line for line in asked if line.endswith("check " + case)]), 2)

    def test_without_pytorch_its_columns_are_empty(self):
        status, _, _, page, picture = self.scale("--rounds", "1", NO_TORCH="1")
        self.assertEqual(status, 0)
        self.assertIn("| (1, 128, 256, 4) | no | 2 | 10 | 1.00 |  |  |  |\n", page)
        self.assertIn("no torch today", page)
        self.assertNotIn("PyTorch</text>", picture)


if __name__ == "__main__":
    unittest.main()
