"""check, audit and run through the driver that $DISTGRAD names."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

PACKAGE = str(Path(__file__).resolve().parents[1])
sys.path[:0] = [PACKAGE, str(Path(__file__).resolve().parent / "subjects")]

import audited  # noqa: E402
import distgrad  # noqa: E402
from distgrad import driver  # noqa: E402
from distgrad.ranks.adapters_names import KINDS  # noqa: E402


class OwnSlice(torch.autograd.Function):
    """As in SimCLR: what the other ranks' losses see of this rank's slice is dropped."""

    @staticmethod
    def forward(ctx, x):
        gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, x.contiguous())
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent[dist.get_rank()]


class AllSlices(OwnSlice):
    @staticmethod
    def backward(ctx, cotangent):
        cotangent = cotangent.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(cotangent)
        return cotangent[dist.get_rank()]


def in_place(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def asks_too_much(x, bits):
    return x


SCENARIO = {"world_size": 2, "inputs": {"x": 1.0},
            "steps": [{"y": {"all_reduce": "(rank + 2) * x"}}], "loss": "y * y", "objective": "sum",
            "subjects": {"in_place": {"verdict": "mismatch"}, "reference": "match"}}


class Check(unittest.TestCase):
    def test_a_right_one_returns_the_report(self):
        report = distgrad.check(AllSlices.apply, "all_gather", world_size=2)
        self.assertGreaterEqual(report["summary"]["as_expected"], 8)
        self.assertEqual(report["summary"]["not_as_expected"], 0)
        self.assertIn("2-ranks.json   match", str(report))
        self.assertNotIn(sys.executable, str(report))
        self.assertFalse(report.text.endswith("\n"))

    def test_a_wrong_one_raises_with_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(AssertionError, "own-slice"):
                distgrad.check(OwnSlice, "all_gather", world_size=3, dtype="float32", keep=folder)
            self.assertEqual(json.loads(Path(folder, "3-ranks.json").read_text())["world_size"], 3)

    def test_the_objective_decides(self):
        self.assertEqual(distgrad.check(in_place, "all_reduce", 2,
                                        objective="replicated")["summary"]["not_as_expected"], 0)
        with self.assertRaisesRegex(AssertionError, "identity-backward"):
            distgrad.check(in_place, "all_reduce", 2, filter="2-ranks")

    def test_a_detour_over_a_narrower_dtype_is_seen(self):
        def all_slices(x):
            return AllSlices.apply(x.bfloat16()).to(x.dtype)

        with self.assertRaisesRegex(AssertionError, "float32-of-many-digits.json   mismatch"):
            distgrad.check(all_slices, "all_gather", 2, filter="many-digits")

    def test_a_function_made_in_the_test(self):
        layer = AllSlices  # closed over
        report = distgrad.check(lambda x: layer.apply(x), "all_gather", 2, filter="2-ranks")
        self.assertEqual(report["summary"]["as_expected"], 1)

    def test_an_op_that_the_function_does_not_offer_is_no_pass(self):
        with self.assertRaisesRegex(AssertionError, "skip"):
            distgrad.check(in_place, "all_reduce", 2, op="max")

    def test_the_users_mistakes(self):
        with self.assertRaisesRegex(ValueError, "`bits` is not known"):
            distgrad.check(asks_too_much, "all_reduce", 2)
        with self.assertRaisesRegex(ValueError, "unknown collective 'gathr'"):
            distgrad.check(in_place, "gathr")
        with self.assertRaisesRegex(ValueError, "objective"):
            distgrad.check(in_place, "all_reduce", objective="total")

    def test_every_collectives_programs_fit_the_reference(self):
        for objective in ("sum", "mean", "rank:1"):
            for collective in KINDS:
                with tempfile.TemporaryDirectory() as folder, self.subTest(
                        collective, objective=objective):
                    options = {"op": "sum", "objective": objective, "world_size": 4,
                               "battery": folder, "collective": collective}
                    driver.call("audit", options, ["reference"])
                    summary = distgrad.run(folder)["summary"]
                    self.assertGreater(summary["cases"], 10)
                    self.assertEqual(summary["as_expected"], summary["cases"])

    def test_sizes_that_are_not_swapped_in_backward_are_seen(self):
        distgrad.check(audited.exchange, "all_to_all", world_size=3)
        with self.assertRaisesRegex(AssertionError, "(?s)ERR +uneven.json"):
            distgrad.check(audited.exchange_back_the_same_way, "all_to_all", world_size=3)
        distgrad.check(audited.exchange_back_the_same_way, "all_to_all", world_size=3,
                       without=["uneven", "uneven-but-as-much-in-as-out"])

    def test_strict_wants_everything_to_be_tried(self):
        distgrad.check(AllSlices.apply, "all_gather", 2, strict=True, without=["groups"])
        with self.assertRaisesRegex(AssertionError, "no parameter for the group"):
            distgrad.check(AllSlices.apply, "all_gather", 2, strict=True)
        with self.assertRaisesRegex(AssertionError, "not everything was tried"):
            distgrad.audit(AllSlices.apply, "all_gather", strict=True)

    def test_an_audit(self):
        report = distgrad.audit(in_place, "all_reduce", objective="replicated")
        self.assertEqual(report["collectives"][0]["right_for"], ["replicated"])


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name, "all_reduce.json")
        self.file.write_text(json.dumps(SCENARIO))

    def test_paths_and_options(self):
        self.assertEqual(distgrad.run(self.file)["summary"]["as_expected"], 2)
        report = distgrad.run([str(self.file)], subject="reference", world_size=[2, 3], quiet=True)
        self.assertEqual([case["world_size"] for case in report["cases"]], [2, 3])

    def test_what_is_not_as_expected_raises(self):
        self.file.write_text(json.dumps({**SCENARIO, "subjects": {"in_place": "match"}}))
        with self.assertRaisesRegex(AssertionError,
                                    "(?s)FAIL.*identity-backward.*declared: every rank's loss"):
            distgrad.run(self.file)

    def test_nothing_that_ran_is_no_pass(self):
        with self.assertRaises(AssertionError):
            distgrad.run(self.file, filter="nothing has this name")
        self.assertEqual(
            distgrad.run(self.file, filter="nothing has this name", allow_empty=True)["cases"], [])

    def test_bad_paths_and_options_are_told_in_the_drivers_words(self):
        with self.assertRaisesRegex(ValueError, "there is no such file"):
            distgrad.run("missing.json")
        with self.assertRaisesRegex(ValueError,
                                    'unknown option "--wrld-size"; did you mean "--world-size"'):
            distgrad.run(self.file, wrld_size=3)
        self.file.write_text("{}")
        with self.assertRaisesRegex(ValueError, "all_reduce.json:1:"):
            distgrad.run(self.file)


class Executable(unittest.TestCase):
    def test_one_that_is_named_and_missing_is_reported(self):
        with mock.patch.dict(os.environ, DISTGRAD="/nowhere/distgrad"), self.assertRaisesRegex(
                RuntimeError, "/nowhere/distgrad"):
            driver.executable()

    def test_one_of_an_installation_is_found_from_the_package(self):
        with tempfile.TemporaryDirectory() as prefix:
            package = Path(prefix, "share/distgrad/python")
            package.mkdir(parents=True)
            Path(package, "distgrad").symlink_to(Path(PACKAGE, "distgrad"))
            program = Path(prefix, "bin/distgrad")
            program.parent.mkdir()
            program.touch(0o755)
            environment = {name: value for name, value in os.environ.items() if name != "DISTGRAD"}
            found = subprocess.run(
                [sys.executable, "-c", "from distgrad import driver; print(driver.executable())"],
                env={**environment, "PYTHONPATH": str(package)}, capture_output=True, text=True)
            self.assertEqual(found.stdout.strip(), str(program), found.stderr)

    def test_importing_distgrad_does_not_import_torch(self):
        code = (f"import sys; sys.path.insert(0, {PACKAGE!r}); import distgrad; print('torch' in"
                " sys.modules)")
        # With an option, so that it is no fork that has torch: tests/warm_python.
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "False", done.stderr)


if __name__ == "__main__":
    unittest.main()
