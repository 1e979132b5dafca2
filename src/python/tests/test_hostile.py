"""Attacks through the executable: files that forge commands or never end, output that cannot be written, code that wants out."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
SUM = {"world_size": 2, "inputs": {"x": {"by_rank": [1.0, 2.0]}}, "steps": [{"y": {"all_reduce": "x", "op": "sum"}}],
       "loss": "y * y", "objective": "sum", "subjects": {"reference": "match"}}

# Tells what it can see, and leaves a process behind, in a session of its own.
CURIOUS = """
import os, subprocess, sys
def look(x, w):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", os.environ.get("MARK", "")], start_new_session=True)
    devices = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    processes = [open(f"/proc/{p}/cmdline").read() for p in os.listdir("/proc") if p.isdigit()]
    others = sum("unittest" in words for words in processes)
    privileges = [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")]
    raise ValueError(f"devices={devices} others={others} secret={os.environ.get('SECRET')} privileges={privileges}")
def every_rank(xs, ws):
    return [x * w for x, w in zip(xs, ws)]
"""


class Hostile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, content):
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def run_it(self, *arguments, timeout=100, **options):
        done = subprocess.run([DISTGRAD, *arguments], cwd=self.folder, stdout=options.pop("stdout", subprocess.PIPE),
                              stderr=subprocess.PIPE, text=True, timeout=timeout, **options)
        return done.returncode, (done.stdout or "") + done.stderr

    def test_no_line_is_a_command_of_the_runner(self):
        for name in ("a.json", "b\n::error::forged.json", "\x1b[31m\u202e.json"):
            self.write(name, {**SUM, "steps": SUM["steps"] + [{"z": "::stop-commands::abcdef"}]})
        self.write("c\n::error::forged.json", SUM)
        for command in (["run", "."], ["run", "--simulate", "."], ["golden", "check", "."], ["explain", "a.json"],
                        ["explain", "c\n::error::forged.json"], ["repro", "a.json"], ["list", "scenarios", "."],
                        ["list", "cases", "."], ["compare", "a.json", "c\n::error::forged.json"], ["::error::x"]):
            with self.subTest(command):
                _, output = self.run_it(*command)
                self.assertTrue(output)
                for line in output.split("\n"):
                    self.assertFalse(line.lstrip().startswith(("::", "stop-commands")), line)
                    self.assertNotIn("\x1b", line)
                    self.assertNotIn("\u202e", line)

    def test_files_that_never_end_are_refused(self):
        os.mkfifo(self.folder / "pipe.json")
        for path in ("pipe.json", "/dev/zero", "/proc/self/status"):
            code, output = self.run_it("run", path, timeout=30)
            self.assertEqual(code, 2, output)
            self.assertIn("is no regular file", output)

    def test_output_that_cannot_be_written_is_no_success(self):
        self.write("a.json", SUM)
        for command in (["run", "a.json"], ["list", "collectives"], ["version"], ["help"]):
            with open("/dev/full", "w") as full:
                code, output = self.run_it(*command, stdout=full)
            self.assertEqual(code, 2, output)
            self.assertIn("cannot write standard output", output)

    def test_the_whole_may_have_a_time(self):
        self.write("slow.json", {**SUM, "timeout_s": 604800, "steps": [{"y": {"call": "python:slow.py:sleep", "args": ["x"], "simulate": "python:slow.py:all"}}]})
        self.write("slow.py", "import time\ndef sleep(x):\n    time.sleep(1000)\n\ndef all(xs):\n    return xs\n")
        slow = ["run", "--allow-code", "--python", sys.executable, "--json", "r.json"]
        code, output = self.run_it(*slow, "--max-timeout", "0.2", "slow.json")
        self.assertEqual(code, 3, output)
        self.assertIn("not done after 0.2 s", output)
        code, output = self.run_it(*slow, "--total-timeout", "1", "slow.json")
        self.assertEqual(code, 142, output)
        self.assertIn("the time of --total-timeout is over; 0 of 1 cases were finished", output)

    def test_limits_are_checked(self):
        self.write("a.json", SUM)
        for option, value in (("--max-timeout", "0"), ("--total-timeout", "nan"), ("--max-memory", "lots"), ("--max-memory", "5")):
            code, output = self.run_it("run", option, value, "a.json")
            self.assertEqual(code, 2, output)
            self.assertIn(option, output)

    def test_memory_beyond_the_limit_is_an_error_of_the_case(self):
        self.write("a.json", {**SUM, "steps": SUM["steps"] + [{"z": "torch.zeros(134217728).sum() * y"}],
                              "loss": "z"})
        self.write("b.json", SUM)
        code, output = self.run_it("run", "--max-memory", "512M", "a.json", "b.json")
        self.assertEqual(code, 2, output)
        self.assertIn("can't allocate memory", output)
        self.assertIn("1 as expected, 1 invalid file", output)

    def test_in_the_sandbox_there_is_nothing_to_see(self):
        self.write("a.json", SUM)
        code, output = self.run_it("run", "--sandbox", "a.json")
        if code == 2 and "this system does not let distgrad" in output:
            self.skipTest(output)
        self.assertEqual(code, 0, output)
        self.write("curious.py", CURIOUS)
        step = {"call": "python:curious.py:look", "args": ["x", "x"], "simulate": "python:curious.py:every_rank"}
        self.write("look.json", {**SUM, "steps": [{"y": step}]})
        mark = f"distgrad-left-behind-{os.getpid()}"
        for sandbox in ([], ["--sandbox"]):
            code, output = self.run_it("run", *sandbox, "--allow-code", "--python", sys.executable, "look.json",
                                       env={**os.environ, "SECRET": "token", "MARK": mark})
            self.assertEqual(code, 3, output)
            told = " ".join(output.split())
            if sandbox:
                self.assertIn("devices=['lo'] others=0 secret=None privileges=['1']", told)
            else:
                self.assertIn("secret=token privileges=['0']", told)
            running = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
            self.assertNotIn(mark, running, "a daemon is left behind")


if __name__ == "__main__":
    unittest.main()
