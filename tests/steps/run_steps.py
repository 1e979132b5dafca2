"""Runs the steps on Gloo ranks and asks `distgrad compare`, which must accuse no right step and
catch every wrong one.

    DISTGRAD=build/release-2.15.0/bin/distgrad python tests/steps/run_steps.py [--seeds 3] [--dtype
    bfloat16] [--show NAME]

Every step is compared with a single run in its own dtype and with one in float32. The exit code is
1 if a verdict is wrong.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "python"))

import torch
import torch.distributed as dist

from catalogue import RIGHT, WRONG
from colleagues import RIGHT as OTHERS
from distgrad.saving import save_gradients
from families import sharded
from parallel_layers import dtensor, hsdp
from sequences import ulysses
from steps import Run, tensor_parallel
from trainers import fsdp_loop, planned

DISTGRAD = os.environ.get("DISTGRAD", "distgrad")
STEPS = ({("right", name): step for name, step in {**RIGHT, **OTHERS}.items()}
         | {("wrong", name): step for name, step in WRONG.items()})


def folder_of(root, key, seed, what):
    return os.path.join(root, *key, str(seed), what).replace(" ", "_")


def be_rank(rank, world_size, root, dtype, seeds):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), GLOO_SOCKET_IFNAME="lo")
    store = dist.FileStore(os.path.join(root, f"store{world_size}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    # The groups of a DeviceMesh cannot be destroyed, so its steps come last.
    for key, step in sorted(STEPS.items(), key=lambda item: _has_mesh(item[1])):
        for seed in seeds if world_size in step.worlds else ():
            found = step.parallel(Run(seed, dtype, rank, world_size))
            save_gradients(found, folder_of(root, key, seed, f"{world_size}_ranks"))
            end_groups()
    dist.barrier()


def _has_mesh(step):
    return getattr(step.parallel, "func", step.parallel) in (tensor_parallel, sharded, ulysses,
                                                             dtensor, hsdp, fsdp_loop, planned)


def end_groups():
    """Destroys process groups, so that the next step has only its own."""
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD and group.group_desc == "undefined":
            dist.destroy_process_group(group)


def be_single(root, dtype, seeds):
    for key, step in STEPS.items():
        for seed in seeds:
            for what in {dtype, torch.float32}:
                save_gradients(step.single(Run(seed, what)), folder_of(root, key, seed, str(what)))


def forked(function, *arguments):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_for(pids):
    """Waits for all processes, and kills all as soon as one fails, as others would wait for it."""
    left = set(pids)
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if status:
            for other in left:
                os.kill(other, 9)
            sys.exit("a rank failed")


def compare(reference, observed, options):
    done = subprocess.run([DISTGRAD, "compare", *options, reference, observed], capture_output=True,
                          text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"distgrad compare: exit code {done.returncode}\n{done.stderr}")
    return done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--show", default=None,
                        help="print the reports of the steps whose name contains this")
    parser.add_argument("--keep", help="leave the gradients in this folder")
    parser.add_argument("--options", default="", help="of distgrad compare")
    options = parser.parse_args()
    dtype, seeds = getattr(torch, options.dtype), range(options.seeds)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or temporary
        os.makedirs(root, exist_ok=True)
        pids = [forked(be_single, root, dtype, seeds)]
        for world_size in (2, 4):
            pids += [forked(be_rank, rank, world_size, root, dtype, seeds)
                     for rank in range(world_size)]
            wait_for(pids)
            pids = []
        sys.exit(judge(root, dtype, seeds, options))


def judge(root, dtype, seeds, options):
    counts = {"right": [0, 0], "wrong": [0, 0]}
    for key, step in STEPS.items():
        for seed in seeds:
            for world_size in step.worlds:
                for reference in sorted({str(dtype), "torch.float32"}):
                    done = compare(folder_of(root, key, seed, reference),
                                   folder_of(root, key, seed, f"{world_size}_ranks"),
                                   options.options.split())
                    good = (done.returncode == 0) == (key[0] == "right")
                    counts[key[0]][0 if good else 1] += 1
                    is_shown = options.show is not None and options.show in key[1]
                    if not good or is_shown:
                        print(
                            f"{'good' if good else 'BAD '}  {key[0]}: {key[1]}, seed {seed}, "
                            f"{world_size} ranks, against"
                            f" {reference}\n{done.stdout}")
    print(f"{options.dtype}: {sum(counts['right'])} comparisons of right steps,"
          f" {counts['right'][1]} accused; {sum(counts['wrong'])} of wrong ones,"
          f" {counts['wrong'][1]} missed")
    return 1 if counts["right"][1] + counts["wrong"][1] else 0


if __name__ == "__main__":
    main()
