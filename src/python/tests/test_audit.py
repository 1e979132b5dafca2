"""Audits of code that most of the battery is lost on, through the driver that $DISTGRAD names."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
HOPELESS = Path(__file__).resolve().parent / "subjects" / "hopeless.py"


def audit(subject, **environment):
    """(exit code, the first collective's row of the JSON)."""
    done = subprocess.run([DISTGRAD, "audit", subject, "--python", sys.executable, "--json", "-"], capture_output=True,
                          text=True, check=False, env={**os.environ, **environment})
    if not done.stdout:
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout)["collectives"][0]


class Audit(unittest.TestCase):
    def test_what_always_raises_is_asked_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            calls = Path(folder) / "calls"
            code, row = audit(f"all_reduce=python:{HOPELESS}:raises_in_backward", CALLS=str(calls))
            self.assertEqual((code, row["offered"], row["rule"]), (1, True, "it raises in backward"))
            self.assertIn("on rank", row["errors"][0])
            self.assertIn("in backward (2-ranks): KeyError: 'bucket 7'", row["errors"][0])
            self.assertEqual(sorted(calls.read_text().split()), ["2", "3"])  # world sizes, a call each

    def test_what_is_refused_along_dim_0_is_asked_along_the_others(self):
        code, row = audit(f"all_gather=python:{HOPELESS}:along_one")
        self.assertEqual((code, row["right_for"]), (0, ["sum"]))
        self.assertEqual(row["aspects"]["ranks"]["state"], "refused")
        self.assertEqual((row["aspects"]["dim"]["state"], row["aspects"]["dim"]["right"]), ("ok", 2))


if __name__ == "__main__":
    unittest.main()
