"""check_step where a rank raises, dies or hangs, or the caller is interrupted: reported with rank
and place, nothing left behind."""

import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock
from pathlib import Path

import torch
import torch.distributed as dist

PACKAGE = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PACKAGE)

import distgrad  # noqa: E402


def single():
    return {"w": torch.ones(3)}


def one_raises(rank):
    if rank == 1:
        print("about to fail")
        raise ValueError("no such layer")
    dist.all_reduce(torch.ones(1))
    return single()


def one_hangs(rank):
    if rank == 1:
        time.sleep(1000)  # here it hangs
    dist.all_reduce(torch.ones(1))
    return single()


def one_is_through(rank):
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    return single()


def one_dies(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.all_reduce(torch.ones(1))
    return single()


def sizes_differ(rank):
    """Gloo aborts rank 1, which does what it should."""
    dist.all_reduce(torch.ones(4 if rank else 2000))
    return single()


def broadcasts_differ(rank):
    """Rank 0 is through by then."""
    dist.barrier()
    dist.broadcast(torch.ones(4 if rank else 2000), 0)
    return single()


def message_is_too_long(rank):
    if rank == 0:
        dist.send(torch.ones(2000), 1)
    else:
        dist.recv(torch.ones(4), 0)
    return single()


def calls_differ(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.broadcast(torch.ones(4), 0)
    return single()


def one_is_late_for_its_group(rank):
    """Of a group whose own time-out comes before that of the check."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=3))
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(1000)  # here it sleeps
    dist.all_reduce(torch.ones(3), group=group)
    return single()


def shapes_fit_and_one_raises(rank):
    """Other shapes of as many elements, which fit."""
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(6))
    return one_raises(rank)


# A caller that waits for ranks which hang, each with a child of its own; they write their process
# ids.
INTERRUPTED = """
import os, subprocess, sys, time
sys.path.insert(0, {package!r})
import distgrad

def parallel(rank):
    child = subprocess.Popen(["sleep", "1000"])
    with open({folder!r} + "/" + str(rank), "w") as file:
        file.write(str(os.getpid()) + " " + str(child.pid))
    os.rename({folder!r} + "/" + str(rank), {folder!r} + "/rank" + str(rank))
    time.sleep(1000)

if __name__ == "__main__":
    distgrad.check_step(parallel, {{}}, 2)
"""


class Failures(unittest.TestCase):
    def failing(self, parallel, **options):
        with self.assertRaises(distgrad.RankError) as raised:
            distgrad.check_step(parallel, single, 2, **options)
        return str(raised.exception)

    def test_an_exception(self):
        text = self.failing(one_raises)
        self.assertIn("rank 1 raised:", text)
        self.assertIn("ValueError: no such layer", text)
        self.assertIn("in one_raises", text)
        self.assertIn("about to fail", text)
        self.assertNotIn("rank 0", text)  # that its peer is gone is no news

    def test_a_hang(self):
        text = self.failing(one_hangs, timeout_s=15)
        self.assertRegex(text, r"rank 1 not done after 15 s, but at:\n.*\n.* in one_hangs")
        self.assertIn("in all_reduce", text)  # rank 0

    def test_ranks_that_wait_for_one_that_is_through(self):
        with self.assertRaises(distgrad.RankError) as raised:
            distgrad.check_step(one_is_through, single, 2, timeout_s=500)
        (failure,) = raised.exception.failures
        self.assertEqual((failure["process"], failure["collective"], failure["finished"]),
                         ("rank-0", "all_reduce", ["rank-1"]))
        self.assertLess(failure["seconds"], 500)  # it was not waited for the end
        self.assertRegex(
            str(raised.exception),
            r"rank 0 not done after \d+ s, when rank 1 has finished, but in all_reduce at:")

    def test_a_crash(self):
        text = self.failing(one_dies)
        self.assertIn("rank 1 died:\nkilled by SIGSEGV", text)
        self.assertRegex(text, r"Stack \(most recent call first\):\n.* in one_dies")
        self.assertNotIn("rank 0", text)

    def test_calls_that_do_not_fit_are_named_and_not_their_victim(self):
        for parallel, calls in (
                (sizes_differ, ("all_reduce sum of float32 [2000]",
                                "all_reduce sum of float32 [4]")),
                (broadcasts_differ, ("broadcast of float32 [2000], root 0",
                                     "broadcast of float32 [4], root 0")),
                (message_is_too_long, ("send of float32 [2000], to rank 1",
                                       "recv of float32 [4], from rank 0"))):
            text = self.failing(parallel)
            what = "message" if parallel is message_is_too_long else "collective"
            begin = f"check_step: the ranks differ in what should be one {what}: "
            self.assertTrue(text.startswith(begin), text)
            for rank, call in enumerate(calls):
                self.assertRegex(text.split("\n")[0], rf"rank {rank} \(test_api_failures.py:\d+\)"
                                                      rf" is in {re.escape(call)}")
            self.assertIn("rank 1 was ended by Gloo, which was sent more than the call takes:",
                          text)
            self.assertNotIn("died", text)
            self.assertIn(f" in {parallel.__name__}\n", text)

    def test_calls_that_do_not_fit_and_hang(self):
        text = self.failing(calls_differ, timeout_s=100)
        self.assertRegex(text, r"differ in what should be one collective: .*rank 0 \(test_api_"
                               r"failures.py:\d+\) is in all_reduce sum of float32 \[4\]")
        self.assertIn("rank 1 not done", text)

    def test_who_was_late_is_shown_where_its_group_has_a_timeout_of_its_own(self):
        with self.assertRaises(distgrad.RankError) as raised:
            distgrad.check_step(one_is_late_for_its_group, single, 2)
        text = str(raised.exception)
        self.assertRegex(text, r"check_step: rank 1 \(test_api_failures.py:\d+\) has not entered"
                               r" all_reduce sum of float32 \[3\], where rank 0"
                               r" \(test_api_failures.py:\d+\) waits\n")
        self.assertIn("rank 0 raised:", text)
        self.assertRegex(text, r"rank 1 was at:\nStack .*\n.* in one_is_late_for_its_group")
        self.assertEqual([f["process"] for f in raised.exception.failures], ["rank-0"])

    def test_calls_are_no_news_where_a_rank_raised(self):
        text = self.failing(shapes_fit_and_one_raises)
        self.assertTrue(text.startswith("check_step: rank 1 raised:"), text)
        self.assertNotIn("rank 0", text)

    def test_nothing_is_left_after_an_interrupt(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text(INTERRUPTED.format(package=PACKAGE, folder=folder))
            caller = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)
            files = [Path(folder, f"rank{rank}") for rank in range(2)]
            _wait_until(lambda: all(f.exists() for f in files), 100)
            caller.send_signal(signal.SIGINT)
            self.assertIn(b"KeyboardInterrupt", caller.communicate(timeout=60)[1])
            for pid in [int(word) for f in files for word in f.read_text().split()]:
                _wait_until(lambda: not _is_alive(pid), 10)


class Arguments(unittest.TestCase):
    def test_more_ranks_than_there_is_room_for(self):
        with mock.patch.dict(os.environ, DISTGRAD_MAX_MEMORY=str(600 << 20)):
            with self.assertRaisesRegex(ValueError, "100 ranks are more than .* 600 MiB of memory"):
                distgrad.check_step(single, single, 100)

    def test_what_is_wrong_is_told_before_anything_starts(self):
        for error, arguments in ((TypeError, (None, single)), (TypeError, (single, 3)),
                                 (ValueError, (single, single, 0))):
            with self.assertRaises(error):
                distgrad.check_step(*arguments)
        with self.assertRaisesRegex(ValueError, "one of sum, mean"):
            distgrad.check_step(single, single, reduce={"w": "average"})

    def test_a_check_that_compares_nothing_fails(self):
        with self.assertRaisesRegex(AssertionError, "nothing was compared"):
            distgrad.check_step(lambda: {"w": None}, {"w": None}, 1)

    def test_a_check_at_the_top_of_a_file_does_not_start_ranks_in_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text(
                f"import sys\nsys.path.insert(0, {PACKAGE!r})\nimport distgrad\n"
                "def f():\n    return {}\ndistgrad.check_step(f, f, 1)\n")
            done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                                  timeout=100)
        self.assertIn("was called in a rank", done.stderr)
        self.assertIn('under `if __name__ == "__main__":`', done.stderr)


def _wait_until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.05)


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    unittest.main()
