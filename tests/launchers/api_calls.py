"""Calls distgrad's Python API in every process of a launcher: api_calls.py FOLDER [WHAT...]. Each
process leaves what became of the calls in FOLDER/RANK.json."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import distgrad
import ranks

RANK = int(next(os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
                if name in os.environ))


class Scaled(torch.autograd.Function):
    """An all-reduce whose backward is: the cotangents' sum, times `factor` on the last rank."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        last = dist.get_rank(ctx.group) == dist.get_world_size(ctx.group) - 1
        return g * (2 if last else 1), None


def data(rank):
    return torch.arange(1.0, 13.0).reshape(3, 4).t()[:, rank % 3] * (rank + 1)


def single(n):
    w = torch.ones(4, requires_grad=True)
    sum((w * data(r)).square().sum() for r in range(n)).backward()
    return {"w": w.grad, "b": torch.full((2,), float(n))}


def step(mine, factor=1):
    """Made by each process with its own `mine`: what it holds shows where the step runs."""

    def parallel(rank, world_size):
        assert mine == rank == int(os.environ["API_TEST_PLACE"]), (mine, rank)
        w = torch.ones(4, requires_grad=True)
        (w * data(rank)).square().sum().backward()
        dist.all_reduce(w.grad)
        b = torch.ones(2)
        dist.all_reduce(b)
        return {"w": w.grad * (factor if rank == world_size - 1 else 1), "b": b}

    return parallel


def raising(rank):
    if rank == 2:
        raise ValueError("no such layer")
    dist.all_reduce(torch.ones(1))


def sleeping(rank):
    if rank == 1:
        Path(os.environ["LAUNCH_TEST_MARK"]).touch()
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


def outcome(call):
    begin = time.monotonic()
    try:
        report = call()
        found = {"kind": "Report", "text": str(report), "fields": dict(report)}
    except (AssertionError, RuntimeError, ValueError) as error:
        report = getattr(error, "report", None)
        found = {"kind": type(error).__name__, "text": str(error),
                 "wrong": [p.name for p in report.wrong] if report else []}
    return {**found, "seconds": time.monotonic() - begin}


def calls(size):
    scaled = Scaled.apply  # a closure's: the function goes to the ranks by value
    check = distgrad.check_step
    yield "wrong", lambda: check(step(RANK, 2), lambda: single(size))
    yield "part", lambda: check(step(RANK), lambda: single(2), 2)
    yield "larger", lambda: check(step(RANK), lambda: single(size), size + 1)
    yield "raises", lambda: check(raising, {"w": torch.ones(1)})
    yield "hangs", lambda: check(sleeping, {"w": torch.ones(1)}, timeout_s=4)
    yield "collective", lambda: distgrad.check(lambda x, group: scaled(x, group), "all_reduce")
    yield "right", lambda: check(step(RANK), lambda: single(size))


def main(folder, *names):
    os.environ["API_TEST_PLACE"] = str(RANK)
    if names == ("sleeping",):
        found = {"sleeping": outcome(lambda: distgrad.check_step(sleeping, {"w": torch.ones(1)},
                                                           timeout_s=200))}
    elif names == ("differently",):
        found = {"differently": outcome(lambda: distgrad.check_step(sleeping, {"w": torch.ones(1)},
                                                           2 if RANK == 1 else 3))}
    else:
        found = {name: outcome(call) for name, call in calls(int(os.environ["API_TEST_SIZE"]))
                 if not names or name in names}
    Path(folder, f"{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
