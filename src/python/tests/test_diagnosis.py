"""The mistakes of subjects/mistakes.py on real ranks: each is caught and named, with the place and
what to change."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD", "distgrad")
MISTAKES = Path(__file__).resolve().parent / "subjects" / "mistakes.py"

# Two consumers share the cotangent of the sum that y is in.
SHARED = {
    "world_size": 3,
    "inputs": {
        "x": {"random": {"shape": [2, 3], "kind": "normal"}},
        "w": {"random": {"shape": [2, 3], "kind": "normal", "seed": 1}},
    },
    "steps": [
        {"v": "2 * w"},
        {"y": {"all_reduce": "x"}},
        {"s": "y + v"},
    ],
    "loss": "(rank + 1) * (s * s * torch.sin(s)).sum()",
    "objective": "sum",
}

# The cotangent of y lies in memory as that of its transpose.
TRANSPOSED = dict(SHARED, steps=[*SHARED["steps"][:2], {"s": "(y + v).t().contiguous()"}])

# The cotangents are larger than any that a call is measured with.
LARGE = dict(SHARED, loss="1e5 * " + SHARED["loss"])

# Both operands are there before the first call, and so read after both backwards.
IN_TURN = {
    "world_size": 3,
    "inputs": {
        "x": {"random": {"shape": [4], "kind": "normal"}},
        "w": {"random": {"shape": [4], "kind": "normal", "seed": 1}},
    },
    "steps": [
        {"a": "3 * x"},
        {"b": "2 * w"},
        {"y": {"all_reduce": "a"}},
        {"z": {"all_reduce": "b"}},
    ],
    "loss": "((rank + 1) * (y * y + z * z * z)).sum()",
    "objective": "sum",
}

# A replicated weight that enters by a copy, whose backward owes it the sum over the ranks.
WEIGHT = {
    "world_size": 4,
    "groups": {"pairs": {"size": 2}},
    "inputs": {
        "w": {"value": [1.0, -2.0, 0.5], "layout": "invariant"},
        "x": {"random": {"shape": [3], "kind": "normal"}, "requires_grad": False},
    },
    "steps": [{"c": {"copy": "w"}}],
    "loss": "(rank + 1) * (torch.sin(c * x) * c).sum()",
    "objective": "sum",
}

# Of small integers, so that the simulation is exact and has bounds of 0.
INTEGERS = {
    "world_size": 3,
    "dtype": ["float64", "float32", "bfloat16"],
    "inputs": {"x": {"random": {"shape": [3, 4]}}},
    "steps": [{"y": {"all_reduce": "x"}}],
    "loss": "(rank + 1) * (y * y + y).sum()",
    "objective": "sum",
}

# name, program, kind, finding (none: right), step, part of the text, measured formula (none: not
# asked)
CASES = [
    ("prescaled", INTEGERS, "all_reduce", None, "", "", None),
    ("prescaled_identity", INTEGERS, "all_reduce", "identity-backward", "y",
     "dropped the other ranks'", "x̄_r = ȳ_r"),
    ("none_on_last", INTEGERS, "all_reduce", "no-gradient", "y",
     "gave its operand no gradient (None) on rank 2", None),
    ("overwritten", SHARED, "all_reduce", "stale-or-aliased", "y", "Clone the cotangent first",
     None),
    ("cleared", SHARED, "all_reduce", "stale-or-aliased", "y", "Clone the cotangent first", None),
    ("stale", IN_TURN, "all_reduce", "stale-or-aliased", "z",
     "the backward of step y gives that one's", None),
    ("never_written", IN_TURN, "all_reduce", "stale-or-aliased", "z",
     "a buffer is read that was never written", None),
    ("nan_on_rank_1", IN_TURN, "all_reduce", "stale-or-aliased", "z",
     "differ from the truth on rank 1", None),
    ("narrower", SHARED, "all_reduce", "precision", "y", "went through bfloat16", None),
    ("as_stored", TRANSPOSED, "all_reduce", "contiguity", "y", ".contiguous() on the cotangent",
     None),
    ("strided", TRANSPOSED, "all_reduce", "contiguity", "y", "is right for a contiguous cotangent",
     None),
    ("random", SHARED, "all_reduce", "nondeterministic", "y", "another answer each time", None),
    ("not_waited_for", SHARED, "all_reduce", "nondeterministic", None, "a wait() that is missing",
     None),
    ("scaled_at_random", SHARED, "all_reduce", "nondeterministic", "y", "another answer each time",
     None),
    ("own_times_n", SHARED, "all_reduce", "identity-backward", "y",
     "multiplied the local cotangent by the group's size", "x̄_r = 3 ȳ_r"),
    ("own_twice", SHARED, "all_reduce", "other-backward", "y", "", "x̄_r = 2 ȳ_r + Σ_{k≠r} ȳ_k"),
    ("own_and_next", SHARED, "all_reduce", "missing-reduction", "y", "", "x̄_r = ȳ_r + ȳ_{r+1}"),
    ("sign_turned", SHARED, "all_reduce", "other-backward", "y", "", "x̄_r = ȳ_0 − ȳ_1 + ȳ_2"),
    ("prefix_sum", SHARED, "all_reduce", "missing-reduction", "y", "", "x̄_r = Σ_{k≤r} ȳ_k"),
    ("coefficients", SHARED, "all_reduce", "other-backward", "y", "",
     "x̄_0 = 1/2 ȳ_0 + 1/3 ȳ_1 + 1/4 ȳ_2; x̄_1 = ȳ_0 + 2/3 ȳ_1 + 1/2 ȳ_2; x̄_2 = 3/2 ȳ_0 + ȳ_1 +"
     " 3/4 ȳ_2"),
    ("rolled", INTEGERS, "all_reduce", "other-backward", "y", "", None),
    ("clipped", SHARED, "all_reduce", "other-backward", "y", "is not linear in the cotangents",
     None),
    ("clipped_far", LARGE, "all_reduce", "other-backward", "y",
     "right for those that it was measured with, and wrong for the one it gets here", None),
    ("in_steps", SHARED, "all_reduce", "precision", "y", "rounds as coarsely as float16", None),
    ("right", WEIGHT, "copy", None, "", "", None),
    ("forgotten", WEIGHT, "copy", "missing-reduction", "", "the shares add up to the truth", None),
    ("averaged", WEIGHT, "copy", "scaled", "",
     "was averaged over the ranks on its way to the input", None),
    ("twice", WEIGHT, "copy", "double-reduction", "", "was summed over the ranks twice", None),
    ("without_one", WEIGHT, "copy", "missing-reduction", "",
     "what rank 1 has of the gradient of w is missing", None),
    ("alone", WEIGHT, "copy", "unsynchronised", "",
     "rank 1 holds its own share of the gradient of w", None),
    ("reduced", WEIGHT, "copy", "unsynchronised", "", "Use all_reduce, not reduce", None),
    ("over_pairs", WEIGHT, "copy", "wrong-group", "",
     "over the group pairs instead of over the ranks", None),
]


class Diagnosis(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = Path(cls.folder.name)
        for name, program, kind, *_ in CASES:
            scenario = dict(program, subjects={f"{kind}=python:{MISTAKES}:{name}": "match"})
            (folder / f"{name}.json").write_text(json.dumps(scenario), encoding="utf-8")
        report = folder / "report.json.out"
        done = subprocess.run(
            [DISTGRAD, "run", "--allow-code", "--python", sys.executable, "--json", report, folder],
            capture_output=True, text=True, check=False,
        )
        if not report.exists():
            raise AssertionError(f"{done.stdout}\n{done.stderr}")
        cls.cases = {}
        for case in json.loads(report.read_text(encoding="utf-8"))["cases"]:
            cls.cases.setdefault(Path(case["file"]).stem, []).append(case)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_every_mistake_is_named(self):
        for name, _, _, finding, step, text, formula in CASES:
            for case in self.cases[name]:
                with self.subTest(case["id"]):
                    self.check(case, finding, step, text, formula)

    def test_what_nobody_waits_for_is_named_first_and_with_its_line(self):
        for case in self.cases["not_waited_for"]:
            self.assertEqual(case["findings"][0]["rule"], "nondeterministic")
            warnings = [w["text"] for w in case["warnings"]]
            self.assertRegex(" ".join(warnings),
                             r"all_reduce \(mistakes.py:\d+\) is not waited for")

    def check(self, case, finding, step, text, formula):
        if finding is None:
            self.assertEqual(case["verdict"], "match", case)
            return
        self.assertEqual(case["verdict"], "mismatch", case)
        fitting = [f for f in case["findings"] if f["rule"] == finding and text in f["text"]]
        self.assertTrue(fitting, [(f["rule"], f["step"], f["text"]) for f in case["findings"]])
        if step is not None:
            self.assertEqual(fitting[0]["step"] or "", step)
        if formula is not None:
            self.assertEqual(fitting[0]["measured"]["formula"], formula)

    def test_calls_that_torch_waits_for_hide_none_of_the_users(self):
        """A Work of theirs may get the id of one that torch has waited for and dropped."""
        import torch
        import torch.distributed as dist
        from torch.distributed.nn.functional import all_reduce

        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from distgrad.ranks.unwaited import Unwaited

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        for _ in range(50):
            with Unwaited() as calls:
                for _ in range(3):
                    all_reduce(torch.ones(3))
                dist.all_reduce(torch.ones(3), async_op=True)
            self.assertRegex(" ".join(calls.texts()), r"^all_reduce \(test_diagnosis.py:\d+\)$")


if __name__ == "__main__":
    unittest.main()
