"""A rank that dies while a mismatch is looked at once more changes no finding: it is measured
again, or the diagnosis is broken off."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed as dist

MARKS = "DISTGRAD_TEST_MARKS"


def _died_before(rank):
    """How often this rank was ended."""
    return sum(name.startswith(f"died-{rank}-") for name in os.listdir(os.environ[MARKS]))


class Identity(torch.autograd.Function):
    """An all-reduce whose backward hands on each rank's own cotangent. `dies`: how often the last
    rank ends itself, in a run after the first."""

    dies = 0

    @classmethod
    def forward(cls, ctx, x):
        rank, folder = dist.get_rank(), os.environ[MARKS]
        y = x.clone()
        dist.all_reduce(y)
        if rank == dist.get_world_size() - 1:
            if "first" in os.listdir(folder) and _died_before(rank) < cls.dies:
                Path(folder, f"died-{rank}-{_died_before(rank)}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            Path(folder, "first").touch()
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class DiesOnce(Identity):
    dies = 1


class DiesAlways(Identity):
    dies = 1000


never, once, always = Identity.apply, DiesOnce.apply, DiesAlways.apply


class Lost(unittest.TestCase):
    def case(self, function):
        with tempfile.TemporaryDirectory() as folder:
            code = f"python:{os.path.abspath(__file__)}:{function}"
            os.mkdir(marks := os.path.join(folder, "marks"))
            scenario = {"world_size": 3, "inputs": {"x": {"expr": "torch.arange(4.) + 1 + rank"}},
                        "steps": [{"y": {"all_reduce": "x"}}], "loss": "(y * y).sum()",
                        "objective": "sum",
                        "subjects": {f"all_reduce={code}": {"verdict": "mismatch"}}}
            Path(folder, "s.json").write_text(json.dumps(scenario))
            done = subprocess.run(
                [os.environ["DISTGRAD"], "run", "--allow-code", "--python", sys.executable,
                 "--json", "-", os.path.join(folder, "s.json")],
                capture_output=True, text=True, env={**os.environ, MARKS: marks})
            self.assertTrue(done.stdout, done.stderr)
            died = len([name for name in os.listdir(marks) if name.startswith("died")])
            self.assertIn("cases", done.stdout, done.stderr)
            cases = json.loads(done.stdout)["cases"]
            self.assertTrue(cases, done.stdout + done.stderr)
            return cases[0], died

    def test_one_that_dies_once_is_asked_again(self):
        findings = []
        for function, times in (("never", 0), ("once", 1)):
            case, died = self.case(function)
            self.assertEqual(died, times, case)
            findings.append([f["rule"] for f in case["findings"]])
        self.assertEqual(findings[0][0], "identity-backward")
        self.assertEqual(*findings)

    def test_where_it_dies_again_nothing_is_found(self):
        case, died = self.case("always")
        self.assertEqual(case["verdict"], "mismatch", case)
        self.assertGreaterEqual(died, 2)
        self.assertEqual([f["rule"] for f in case["findings"]], ["unexplained"])
        text = " ".join(f["text"] for f in case["findings"])
        self.assertIn("The diagnosis was broken off", text)
        self.assertIn("SIGKILL", text)


if __name__ == "__main__":
    unittest.main()
