"""How many processes are started, and that none is left.

    python src/python/tests/test_child_processes.py
"""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PACKAGE)

from distgrad.rank_room import why_no_room  # noqa: E402

MIB = 1 << 20
SECONDS = f"{os.getpid()}000"  # no other test sleeps as long
ENDED = """
import os, signal, subprocess, sys, time
sys.path.insert(0, {package!r})
from distgrad.child_processes import ChildProcesses

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the caller ignores it


def end():
    os.kill(os.getpid(), signal.{name})


def work(name):
    subprocess.Popen(["sleep", {seconds!r}], start_new_session=True)
    time.sleep(100)


{when}
ChildProcesses({folder!r}, ["a", "b", "c"], 100, work).run()
"""

IN_ANOTHER_THREAD = """
import threading
forked, sent = threading.Event(), threading.Event()
threading.Thread(target=lambda: [forked.wait(), end(), sent.set()], daemon=True).start()
os.register_at_fork(after_in_parent=lambda: [forked.set(), sent.wait()])
"""


def ended(name, when):
    """(the exit code, what it wrote) of a process that a signal ends."""
    with tempfile.TemporaryDirectory() as folder:
        script = ENDED.format(package=PACKAGE, folder=folder, name=name, when=when, seconds=SECONDS)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                              timeout=60)
    return done.returncode, done.stdout + done.stderr


class Ended(unittest.TestCase):
    def test_a_signal_in_a_fork_is_not_lost(self):
        for name, code in (("SIGTERM", 143), ("SIGINT", 130)):
            with self.subTest(name):
                self.assertEqual(ended(name, "os.register_at_fork(after_in_parent=end)"),
                                 (code, ""))
        # Where another thread gets it, which does not block it
        code, _ = ended("SIGTERM", IN_ANOTHER_THREAD)
        self.assertEqual(code, 143)

    def test_nothing_is_left_after_a_signal(self):
        later = "import threading\nthreading.Timer(1, end).start()"
        self.assertEqual(ended("SIGTERM", later), (143, ""))
        self.assertNotIn(SECONDS, subprocess.run(["ps", "ax", "-o", "args"],
                                                       capture_output=True, text=True).stdout)


class Room(unittest.TestCase):
    def test_what_there_is_room_for(self):
        memory = (20000 * MIB, 8 * MIB, 0, 0)
        self.assertEqual(why_no_room(600, 1, memory), "")
        self.assertEqual(
            why_no_room(1000, 1, memory),
            "1000 ranks are more than this machine has room for, 624 at most: the stacks of a"
            " rank's threads take 32 MiB, and there are 20000 MiB of memory")
        descriptors = (0, 8 * MIB, 1024, 0)
        self.assertEqual(why_no_room(513, 2, descriptors), "")
        self.assertIn("513 at most: a rank has 2 connections to each other, and a process may have"
                      " 1024 (ulimit -Hn)", why_no_room(514, 2, descriptors))
        self.assertIn("32 at most: each has 4 threads, and there may be 128",
                      why_no_room(33, 1, (0, 8 * MIB, 0, 128)))

    def test_the_least_there_can_be(self):
        none = (MIB, 8 * MIB, 1, 1)
        self.assertEqual(why_no_room(1, 1, none), "")
        self.assertIn("1 at most", why_no_room(2, 1, none))
        self.assertEqual(why_no_room(1 << 20, 2, (0, 8 * MIB, 0, 0)), "")


if __name__ == "__main__":
    unittest.main()
