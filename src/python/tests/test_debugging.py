"""breakpoint() and pdb.set_trace() in a subject, at a terminal and without one."""

import os
import pathlib
import pty
import select
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

DISTGRAD = os.environ["DISTGRAD"]

SUBJECT = """
import pdb

import torch.distributed as dist


def all_reduce(x, group):
    secret = 40 + dist.get_rank(group)
    STOP
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y
"""
SCENARIO = """{ "world_size": 2, "inputs": { "x": 1.0 },
  "steps": [ { "y": { "all_reduce": "x" } } ], "loss": "y", "objective": "sum" }"""


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command, folder):
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execv(command[0], command)
        self._seen = b""

    def expect(self, text, seconds=60):
        """What was printed up to and with the text."""
        end = time.monotonic() + seconds
        while text.encode() not in self._seen:
            if not select.select([self._fd], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {text!r} after {seconds} s, but:\n{self._seen.decode()}")
            try:
                self._seen += os.read(self._fd, 4096)
            except OSError:
                raise AssertionError(
                    f"no {text!r} before the end, but:\n{self._seen.decode()}") from None
        at = self._seen.index(text.encode()) + len(text)
        before, self._seen = self._seen[:at], self._seen[at:]
        return before.decode()

    def type(self, line):
        os.write(self._fd, line.encode() + b"\n")

    def end(self):
        """The exit code."""
        while True:
            try:
                if not os.read(self._fd, 4096):
                    break
            except OSError:  # the terminal's other side is closed
                break
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


class Debugging(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "s.json").write_text(SCENARIO)

    def command(self, stop):
        (self.folder / "subject.py").write_text(textwrap.dedent(SUBJECT).replace("STOP", stop))
        return [DISTGRAD, "run", "s.json", "--timeout", "100", "--python", sys.executable,
                "--subject", "all_reduce=python:subject.py:all_reduce"]

    def debug(self, stop):
        terminal = Terminal(self.command(stop), self.folder)
        prompts = set()
        for _ in range(2):
            terminal.expect("(Pdb rank ")
            rank = int(terminal.expect(" of 2) ")[0])
            prompts.add(rank)
            terminal.type("p 'value', secret + 1")
            terminal.expect(f"('value', {41 + rank})")
            terminal.expect(" of 2) ")
            terminal.type("c")
        # Identity-backward, where a match is expected of a subject that the file does not name
        terminal.expect("1 not")
        self.assertEqual(terminal.end(), 1)
        self.assertEqual(prompts, {0, 1})

    def test_a_breakpoint_on_every_rank(self):
        self.debug("breakpoint()")

    def test_pdb_by_name(self):
        self.debug("pdb.set_trace()")

    def test_without_a_terminal_the_case_says_so(self):
        done = subprocess.run(self.command("breakpoint()"), cwd=self.folder, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("distgrad runs without a terminal", done.stdout)


if __name__ == "__main__":
    unittest.main()
