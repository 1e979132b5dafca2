"""Measures the processor time of check_step beside that of a plain script that starts the same
ranks with torch.multiprocessing, runs the same single step, and compares nothing.

    DISTGRAD=build/release-2.15.0/bin/distgrad python tests/steps/cost.py [--repeat 3]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS = 4
PLAIN = """
import os, sys, tempfile
sys.path.insert(0, {here!r})
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from steps import Run
from families import data_parallel, whole_data_parallel


def be_rank(rank, ranks, folder, how):
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    data_parallel(Run(0, torch.float32, rank, ranks))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(be_rank, ({ranks}, folder, sys.argv[1]), {ranks},
                           start_method=sys.argv[1])
    whole_data_parallel(Run(0, torch.float32))
"""
CHECKED = """
import sys
sys.path.insert(0, {here!r}), sys.path.insert(0, {python!r})
import torch
import distgrad
from steps import Run
from families import data_parallel, whole_data_parallel


def parallel(rank, world_size):
    return data_parallel(Run(0, torch.float32, rank, world_size))


def single():
    return whole_data_parallel(Run(0, torch.float32))


if __name__ == "__main__":
    distgrad.check_step(parallel, single, {ranks}, timeout_s=300)
"""


def seconds_of(script, *arguments):
    before = os.times()
    subprocess.run([sys.executable, script, *arguments], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL,
                   env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    after = os.times()
    return (after.children_user + after.children_system - before.children_user
            - before.children_system)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        scripts = {}
        for name, text in (("plain", PLAIN), ("checked", CHECKED)):
            scripts[name] = Path(folder, name + ".py")
            scripts[name].write_text(text.format(
                here=str(HERE), python=str(HERE.parents[1] / "src" / "python"), ranks=RANKS))
        runs = {"spawned": (scripts["plain"], "spawn"), "forked": (scripts["plain"], "fork"),
                "check_step": (scripts["checked"],)}
        least = {name: min(seconds_of(*run) for _ in range(repeat)) for name, run in runs.items()}
    for name, seconds in least.items():
        print(f"{name:10} {seconds:6.1f} s of processor time, {least['check_step'] / seconds:.2f}"
              " times in check_step")


if __name__ == "__main__":
    main()
