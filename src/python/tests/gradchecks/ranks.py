"""Runs functions on ranks for the tests of gradcheck. The ranks are forked from a process that has
imported torch.

    results = run(body, world_size)      # by rank, what body() returned: picklable
"""

import os
import pickle
import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distgrad.child_processes import ChildProcesses, join_group  # noqa: E402
from distgrad.ranks.process import wait_for_a_free_core  # noqa: E402


def run(body, world_size=4, timeout_s=250, may_die=()):
    """Returns what body() returned on each rank, with None for a rank that may die. Raises
    RuntimeError with tracebacks if a rank raised or is not done."""
    names = [f"rank-{rank}" for rank in range(world_size)]
    needed = [name for rank, name in enumerate(names) if rank not in may_die]
    with tempfile.TemporaryDirectory() as folder:
        processes = ChildProcesses(folder, names, timeout_s,
                                   lambda name: _be(name, body, world_size, folder), needed)
        failures = [f for f in processes.run() if f["process"] in needed]
        if failures:
            raise RuntimeError("\n".join(f"{f['process']}, {f['kind']}: {f['text']}\n{f['output']}"
                                         for f in failures))
        return [_result(folder, f"rank-{rank}") if rank not in may_die else None
                for rank in range(world_size)]


def _be(name, body, world_size, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wait_for_a_free_core()
    join_group(int(name.rpartition("-")[2]), world_size, "gloo", folder, 100)
    outcome = body()
    with open(os.path.join(folder, name), "wb") as file:
        pickle.dump(outcome, file)


def _result(folder, name):
    with open(os.path.join(folder, name), "rb") as file:
        return pickle.load(file)
