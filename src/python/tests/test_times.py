"""When Python is started, and where its time goes, through the driver that $DISTGRAD names."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DRIVER = os.environ.get("DISTGRAD", "distgrad")
SCENARIO = {"world_size": 2, "inputs": {"x": 1.0}, "steps": [{"y": {"all_reduce": "x"}}],
            "loss": "y * y", "objective": "sum"}


class Times(unittest.TestCase):
    def test_python_is_started_for_subjects_in_python_only(self):
        with tempfile.TemporaryDirectory() as folder:
            python = Path(folder, "python3")
            python.write_text(
                f'#!/bin/sh\necho started >> "{folder}/started"\nexec "{sys.executable}" "$@"\n')
            python.chmod(0o755)
            Path(folder, "s.json").write_text(json.dumps(SCENARIO))

            def run(*options):
                environment = {**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]}
                done = subprocess.run([DRIVER, "run", "s.json", "--verbose", *options], cwd=folder,
                                      env=environment, capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                return done.stdout, Path(folder, "started").exists()

            text, was_started = run()
            self.assertFalse(was_started)
            self.assertNotIn("Ranks in Python", text)
            text, was_started = run("--subject", "python:reference")
            self.assertTrue(was_started)
            phases = ("starting the interpreter S, importing torch S, importing the subject S,"
                      " connecting groups S, in cases besides S")
            wanted = ("Ranks in Python: " + phases.replace("S", r"[\d.e-]+ s")
                      + r" \(of each the slowest process\)\.")
            self.assertEqual(len(re.findall(wanted, text)), 1, text)


if __name__ == "__main__":
    unittest.main()
