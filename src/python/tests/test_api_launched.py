"""The Python API in processes that a launcher has started, one of which ends, is late or makes
another call: the others say which, and where to look."""

import os
import socket
import subprocess
import sys
import unittest
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[1])

# A rank that ends first, where it is told to; else one that calls.
PROGRAM = """
import os, sys
sys.path.insert(0, {package!r})
if {ends!r} == "at once":
    sys.exit(3)
import distgrad
from distgrad import launched
if {ends!r} == "when it has met":
    launched._leader(launched._asked_of_driver())
    os._exit(3)
if {ends!r} == "before it has met":
    launched.Team._share_addresses = lambda team: os._exit(3)
if {ends!r} == "in the middle":
    launched.team()
    os._exit(3)
try:
    distgrad.check_step(lambda: {{}}, lambda: {{}})
except launched.LaunchError as error:
    print(error)
"""

STEPS = """
import sys
sys.path.insert(0, {package!r})
import distgrad

def late(rank):
    import datetime, time, torch
    import torch.distributed as dist
    group = dist.new_group(list(range(3)), timeout=datetime.timedelta(seconds=3))
    if rank == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(3), group=group)
    return {{}}

def other_sizes(rank):
    import torch
    torch.distributed.all_reduce(torch.ones(4 if rank == 1 else 2000))
    return {{}}

try:
    distgrad.check_step({step}, lambda: {{}})
except distgrad.RankError as error:
    print(error)
"""


def printed(program_of, wait_s=60, size=3):
    """What the ranks print, by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = min(free.getsockname()[1], 60000)
    ranks = {}
    for rank in range(size):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size),
                       "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                       "DISTGRAD_LAUNCH_TIMEOUT": str(wait_s)}
        ranks[rank] = subprocess.Popen([sys.executable, "-c", program_of(rank)], env=environment,
                                       text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return {rank: process.communicate(timeout=100)[0] for rank, process in ranks.items()}


def printed_by_others(ends, ending, wait_s=60):
    """`ending` is the rank that ends."""
    said = printed(
        lambda rank: PROGRAM.format(package=PACKAGE, ends=ends if rank == ending else ""), wait_s)
    said.pop(ending)
    return said


class ARankThatEnds(unittest.TestCase):
    def assert_said(self, said, words):
        for rank, text in said.items():
            self.assertIn(words, text, f"rank {rank}")
            self.assertNotIn("EOFError", text)

    def test_before_the_others_have_met(self):
        for ends in ("at once", "when it has met"):
            said = printed_by_others(ends, 1, wait_s=8)
            missing = "rank 1 did not come to rank 0 within 8 s: it has ended before"
            self.assert_said(said, missing if ends == "at once" else "rank 1 is lost")

    def test_of_which_the_others_wait_to_be_told(self):
        self.assert_said(printed_by_others("before it has met", 0),
                         "rank 0 is lost: its process has ended, or was killed")

    def test_in_the_middle(self):
        for rank in (0, 1):
            said = printed_by_others("in the middle", rank)
            self.assert_said(said, f"rank {rank} is lost: its process has ended, or was killed")
            self.assert_said(said, "says more")


class AStep(unittest.TestCase):
    def test_says_on_all_ranks_who_was_late_and_whose_call_differs(self):
        for step, words in (("late", ("rank 1 has not entered all_reduce sum of float32 [3], where"
                                      " ranks 0, 2 (", "rank 1 was at:", " in late")),
                            ("other_sizes", (" in all_reduce sum of float32 [2000]",
                                             " in all_reduce sum of float32 [4]",
                                             " in other_sizes"))):
            said = printed(lambda rank: STEPS.format(package=PACKAGE, step=step))
            for rank, text in said.items():
                for part in words:
                    self.assertIn(part, text, f"rank {rank}")


if __name__ == "__main__":
    unittest.main()
