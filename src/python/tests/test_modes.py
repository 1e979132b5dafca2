"""Subjects in the modes of modes.py, and losses that are the norm of gradients, through the driver
that $DISTGRAD names: what is right passes, and what is wrong in one mode only is reported there."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CODE = f"all_reduce=python:{FOLDER}/subjects/surroundings.py:"
FUNCTIONAL = "python:torch.distributed._functional_collectives"
DRIVER = os.environ.get("DISTGRAD", "distgrad")


def program(loss="(y * y).sum() * (rank + 1)", **more):
    return {"world_size": 2, "dtype": "float32",
            "inputs": {"x": {"by_rank": [[1, 4, 3], [2, 3, 1]]}},
            "steps": [{"y": {"all_reduce": "2 * x"}}], "loss": loss, "objective": "sum",
            "timeout_s": 200, **more}


# file's stem -> (program, subject -> verdict, or verdict and a part of what is reported)
CASES = {
    "checkpoint": (program(), {
        CODE + "right": "match",
        CODE + "right@checkpoint": "match",
        CODE + "right@checkpoint-reentrant": "match",
        CODE + "skips_when_recomputed": "match",
        CODE + "skips_when_recomputed@checkpoint": "mismatch",
        CODE + "skips_when_recomputed@checkpoint-reentrant": "mismatch",
        "python:reference@checkpoint": "match"
    }),
    "autocast": (program(inputs={"x": {"by_rank": [[257, 1026, 515], [258, 771, 1025]]}}), {
        CODE + "right@autocast": "match",
        CODE + "casts": "match",
        CODE + "casts@autocast": "mismatch"
    }),
    # What a matmul gives is bfloat16 under autocast, which these values are exactly.
    "autocast_of_a_matmul": (program("y.sum()", steps=[
        {"y": {"all_reduce": "x @ torch.eye(3)"}}]), {
        CODE + "right@autocast": "match",
        CODE + "casts@autocast": "match"
    }),
    "async": (program(), {
        CODE + "right@async": ("skipped", "has no parameter async_op"),
        CODE + "returns_handle@async": "match",
        CODE + "returns_before_wait": "match",
        CODE + "returns_before_wait@async": "mismatch",
        "python:in_place@async": "mismatch",
        FUNCTIONAL + "@async": "match"
    }),
    "compile": (program(), {
        CODE + "local_when_compiled": "match",
        CODE + "local_when_compiled@compile": "mismatch",
        FUNCTIONAL + "@compile": "match"
    }),
    "gradient_norm": (program(
        "squared_gradient_norm((y * y * y).sum() * (rank + 1))", dtype="float64"), {
            CODE + "right": "match",
            CODE + "detached_backward": "mismatch",
            CODE + "differentiable_once": ("skipped", "once_differentiable"),
            "python:reference": ("skipped", "once_differentiable"),
            "in_place": "mismatch",
            "reference": ("skipped",
                          "has a rule for the gradient, and none for the gradient of that")
        }),
}


def run(*arguments, cwd):
    return subprocess.run([DRIVER, *arguments], cwd=cwd, capture_output=True, text=True,
                          timeout=280)


class Modes(unittest.TestCase):
    def test_what_is_wrong_in_one_mode_is_told_there(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, (scenario, subjects) in CASES.items():
                expected = {s: e if e == "match" else {"verdict": e} if isinstance(e, str) else
                            {"verdict": e[0], "message": e[1]} for s, e in subjects.items()}
                Path(folder, name + ".json").write_text(
                    json.dumps({**scenario, "subjects": expected}))
            done = run("run", "--allow-code", "--python", sys.executable, "--json", "r.json", ".",
                       cwd=folder)
            cases = json.loads(Path(folder, "r.json").read_text())["cases"]
        self.assertEqual(len(cases), sum(len(subjects) for _, subjects in CASES.values()),
                         done.stderr)
        wrong = [(c["file"], c["subject"], c["verdict"], c.get("why"), c.get("error"))
                 for c in cases if not c["as_expected"]]
        self.assertEqual((wrong, done.returncode), ([], 0), done.stdout + done.stderr)
        norm = next(c for c in cases
                    if c["file"].endswith("gradient_norm.json") and c["subject"] == "in_place")
        self.assertIn("the first backward, of which it is made, is wrong already",
                      norm["findings"][0]["text"])

    def test_an_audit_has_a_column_for_each_aspect(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("audit", CODE + "skips_when_recomputed", "--python", sys.executable,
                       "--aspects", "checkpoint,async,double-backward", "--json", "a.json", "--out",
                       "failing", cwd=folder)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            rows = json.loads(Path(folder, "a.json").read_text())["collectives"]
            again = run("run", "--allow-code", "--python", sys.executable, "failing", cwd=folder)
        row = next(r for r in rows if r["op"] == "sum")
        states = {name: cell["state"] for name, cell in row["aspects"].items()}
        self.assertEqual(
            {k: states[k] for k in ("ranks", "checkpoint", "async", "double-backward")},
            {"ranks": "ok", "checkpoint": "WRONG", "async": "refused", "double-backward": "ok"})
        self.assertEqual((row["wrong"], row["rule"]), (True, "adjoint, but not in checkpoint"))
        self.assertRegex(done.stdout,
                         r"(?ms)^ +ranks .* values$.*^ +checkpoint +async +double-backward$")
        self.assertEqual(again.returncode, 1, again.stderr)
        self.assertIn("FAIL  failing/all_reduce_sum.json", again.stdout)

    def test_what_cannot_be_meant_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "s.json").write_text(json.dumps(program()))
            Path(folder, "part.json").write_text(
                json.dumps(program("1.0 + squared_gradient_norm(y.sum())")))
            Path(folder, "behind.json").write_text(
                json.dumps(program("squared_gradient_norm(y.sum()) * 2")))
            weight = program("squared_gradient_norm((w * y).sum())")
            weight["inputs"]["w"] = {"value": 1.0, "layout": "replicate"}
            Path(folder, "weight.json").write_text(json.dumps(weight))
            for arguments, words in [
                (["run", "s.json", "--subject", CODE + "right@chekpoint"],
                 'unknown mode "chekpoint" after \'@\'; did you mean'),
                (["run", "s.json", "--subject", "reference@checkpoint"],
                 "only a subject in Python has a mode"),
                (["audit", "torch_nn", "--aspects", "chekpoint"], 'unknown "chekpoint"'),
                (["audit", "torch_nn", "--aspects", "dtype"], "dtype is tried anyway"),
                (["audit", CODE + "right@checkpoint", "--aspects", "all"], "has a mode already"),
                (["run", "behind.json"], "is the whole loss or no part of it"),
                (["run", "part.json"], "squared_gradient_norm"),
                (["run", "weight.json"], 'needs inputs whose layout is "local"'),
            ]:
                done = run(*arguments, cwd=folder)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
