"""For tests that run the executable in a folder of their own."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
SUM = {
    "world_size": 2,
    "inputs": {"x": {"by_rank": [1.0, 2.0]}},
    "steps": [{"y": {"all_reduce": "x", "op": "sum"}}],
    "loss": "y * y",
    "objective": "sum",
    "subjects": {"reference": "match"},
}


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text)

    def run_it(self, *arguments, timeout=100, both=True, **options):
        done = subprocess.run([DISTGRAD, *arguments], cwd=self.folder,
                              stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                              text=True, timeout=timeout, **options)
        return done.returncode, (done.stdout or "") + (done.stderr if both else "")

    def write_call(self, name, file, function, **more):
        code = f"python:{file}:"
        step = {"call": code + function, "args": ["x"], "simulate": code + "every_rank"}
        self.write(name, {**SUM, "steps": [{"y": step}], **more})

    def run_code(self, *arguments, **options):
        return self.run_it("run", "--allow-code", "--python", sys.executable, *arguments, **options)
