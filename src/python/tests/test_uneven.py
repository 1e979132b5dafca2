"""Ranks that do not do the same, through the executable: who deviates is named, with its place and
what it does."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
CALLS = Path(__file__).resolve().parent / "calls"

# Function of calls/uneven.py -> kind of the error, whether in backward, and what is said; rank 2 is
# the odd one.
SAID = {
    "another_kind": (
        "desync", False,
        r"rank 2 \(uneven.py:\d+\) is in broadcast of float64 \[4\], root 0; ranks 0, 1 .* are in "
        r"all_reduce sum of float64 \[4\]"),
    "another_size": (
        "desync", False,
        r"rank 2 .* all_reduce sum of float64 \[2\]; ranks 0, 1 .* sum of float64 \[4\]"),
    "another_dtype": (
        "desync", False,
        r"rank 2 .* all_reduce sum of float32 \[4\]; ranks 0, 1 .* sum of float64 \[4\]"),
    "another_root": ("desync", False,
                     r"rank 2 .* broadcast of float64 \[4\], root 1; ranks 0, 1 .*, root 0"),
    "another_op": ("desync", False,
                   r"rank 2 .* all_reduce max of float64 \[4\]; ranks 0, 1 .* all_reduce sum"),
    "another_group": ("desync", False, r"rank 2 .* in the group of ranks 1, 2; ranks 0, 1"),
    "stays_away": (
        "hang", False,
        r"rank 2 has finished the case and never entered .*, where ranks 0, 1 \(uneven.py:\d+\) "
        r"wait"
    ),
    "one_more": (
        "hang", True,
        r"ranks 0, 1 .* have finished the case and never entered .*, where rank 2 .* waits"),
    "stops_in_backward": ("hang", True, r"rank 2 \(stopped\) has not entered"),
    "sleeps_in_backward": (
        "hang", True,
        r"rank 2 \(uneven.py:\d+ in _sleep: time.sleep\(1000\).*, asleep\) has not entered "
        r"all_reduce "
        r"sum of float64 \[4\], where ranks 0, 1 \(uneven.py:\d+\) wait; step y, backward"),
}


class Uneven(unittest.TestCase):
    def test_the_odd_rank_is_named(self):
        cases, output = self.run_all([*SAID, "plain", "is_slow"])
        for name, (kind, in_backward, said) in SAID.items():
            with self.subTest(name):
                error = cases[name].get("error", {})
                self.assertEqual((error.get("kind"), error.get("rank")), (kind, 2), output)
                self.assertRegex(error["message"], said)
                self.assertEqual(" backward" in error["message"].replace("\n", " "), in_backward)
        for name in ("plain", "is_slow"):
            self.assertEqual(cases[name]["verdict"], "match", output)

    def run_all(self, names):
        inputs = {"x": {"by_rank": [[1.0, 0.0, 1.0, 2.5], [1.75, 0.0, 1.75, 1.25],
                                    [0.5, 2.0, 1.0, 3.0]]}, "w": [2.0, 0.5, -1.25, 3.0]}
        with tempfile.TemporaryDirectory() as folder:
            for file in ("uneven.py", "joint.py"):
                (Path(folder) / file).symlink_to(CALLS / file)
            for name in names:
                # Only who sleeps is waited for; of the others it is known that they can never go
                # on.
                step = {"call": f"python:uneven.py:{name}", "args": ["x", "w"],
                        "simulate": "python:joint.py:all_sum"}
                content = {"world_size": 3, "inputs": inputs, "steps": [{"y": step}],
                           "loss": "(y * y).sum()", "objective": "sum",
                           "timeout_s": 1 if name.startswith("sleeps") else 100}
                (Path(folder) / f"{name}.json").write_text(json.dumps(content))
            done = subprocess.run([DISTGRAD, "run", "--allow-code", "--python", sys.executable,
                                   "--json", "report.json", "."],
                                  cwd=folder, capture_output=True, text=True, timeout=400)
            report = json.loads((Path(folder) / "report.json").read_text())
        return {re.sub(r"\W*$", "", case["name"]): case
                for case in report["cases"]}, done.stdout + done.stderr


if __name__ == "__main__":
    unittest.main()
