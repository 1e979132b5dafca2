"""Asks check_gradients about the steps of measured_cases.py and measured_unseen.py, on 4 Gloo ranks
that live through all of them: every right step must be called right, and of every wrong one exactly
the wrong parameters must be named, with their factor.

    python tests/steps/run_measured.py [--all] [--only NAME]... [--dtype float32]
                                       [--backend nccl] [--right] [--show] [--where]

By default it runs a fixed part of them, in float64. The exit code is 1 if an answer is wrong.
"""

import argparse
import fnmatch
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "python"))

import torch
import torch.distributed as dist

import distgrad
from measured_cases import CASES
from measured_unseen import CASES as UNSEEN
from run_steps import end_groups, forked, wait_for

RANKS = 4
# These are the quickest that show one thing each: wrappers, reductions, clipping, layers cut by
# hand and by DTensors, sequences, experts, pairs, pipelines; each has mistakes of every kind.
USUAL = (
    "ddp", "ddp frozen bias", "ddp batch norm", "ddp no_sync", "ddp comm hook",
    "ddp scaled by ranks", "ddp head ignored", "ddp last micro-batch only", "by hand, sums",
    "by hand, dropout from the global state", "by hand, norm forgotten", "by hand, reduced twice",
    "by hand, rank 0 alone", "ddp, clipped by torch", "fsdp, clipped by hand", "scale left in",
    "megatron", "megatron sequence", "megatron no f, residual", "sequence, norm left", "ring",
    "pipeline", "pipeline, tied left", "clip", "clip, identity backward", "complex, imaginary left",
    "gate zeroed", "flat shards, norm left", "experts, balance over ranks",
    "shared keys, reduced over tp", "critic with a penalty on gradients", "fsdp", "dtensor plan")


def be_rank(rank, folder, cases, options):
    dtype, bad = getattr(torch, options.dtype), 0
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    if options.backend == "nccl":  # The ranks share a GPU, as with distgrad's --share-gpu.
        os.environ.update(NCCL_HOSTID=f"measured-{rank}", NCCL_SOCKET_IFNAME="lo",
                          NCCL_NET="Socket", NCCL_IB_DISABLE="1", NCCL_MNNVL_ENABLE="0")
        torch.set_default_device("cuda:0")
    dist.init_process_group(options.backend, store=store, rank=rank, world_size=RANKS)
    for case in cases:
        begin = time.monotonic()
        try:
            model, step = case.make(rank, RANKS, dtype)
            report = distgrad.check_gradients(model, step, case.objective, pieces=case.pieces,
                                              raise_exception=False)
            found = {**report.to_dict(), "text": str(report)}
        except Exception:
            found = {"verdict": "error", "text": traceback.format_exc(), "wrong": [],
                     "parameters": [], "where": [], "disputed": []}
        if rank == 0:
            bad += tell(case, found, time.monotonic() - begin, options)
        end_groups()
    if rank == 0:
        Path(folder, "bad").write_text(str(bad))
    dist.barrier()


def tell(case, found, took_s, options):
    """Prints the answer; returns whether it is wrong."""
    said = complaint(case, found)
    print(f"{'BAD ' if said else 'ok  '} {case.name}  {took_s:.1f} s,"
          f" {found.get('runs', 0)} runs{'  ' + said if said else ''}")
    if said or options.show:
        print(found["text"])
    if options.where and not case.right:
        print(f"     meant: {case.kind}, {case.place}: {case.note}")
        for wrong in found["wrong"]:
            print("     said:", ", ".join(wrong["parameters"])[:60], "|", " ".join(wrong["text"]))
        print("     where:", " ".join(found["where"]))
    sys.stdout.flush()
    return bool(said)


def complaint(case, found):
    """Returns what is wrong with the answer, or "" if it is right."""
    if case.right:
        return "" if found["verdict"] == "right" else f"called {found['verdict']}"
    disputed = set(found["disputed"])  # A mistake that is a detach may also be meant.
    if found["verdict"] not in ("wrong", *(["disputed"] if "detached" in case.name else [])):
        return f"called {found['verdict']}"
    named = disputed | {name for wrong in found["wrong"] for name in wrong["parameters"]}
    meant = {name for name in found["parameters"]
             if any(fnmatch.fnmatchcase(name, pattern) for pattern in case.wrong)}
    open_ = {*found["undecided"], *found["too_small"], *found["not_asked"], *found["ambiguous"]}
    if extra := named - meant:
        return f"accuses {', '.join(sorted(extra))}, which are right"
    if left := meant - named - open_:
        return f"does not name {', '.join(sorted(left))}"
    factors = [f for wrong in found["wrong"] for f in wrong["factors"].values()]
    if case.factor is not None and not (factors and all(
            abs(f - case.factor) <= 0.02 * max(abs(f), abs(case.factor)) for f in factors)):
        return f"the factors are {factors}, and {case.factor} is right"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--backend", default="gloo", help="nccl: on a GPU, which the ranks share")
    parser.add_argument("--right", action="store_true", help="only those that are right")
    parser.add_argument("--show", action="store_true", help="print all reports")
    parser.add_argument("--where", action="store_true", help="print the mistakes and their places")
    options = parser.parse_args()
    cases = [*CASES, *UNSEEN]
    if unknown := set(USUAL) - {case.name for case in cases}:
        sys.exit(f"no case is called {', '.join(sorted(unknown))}")
    wanted = options.only or (None if options.all else USUAL)
    cases = [case for case in cases
             if RANKS in case.worlds and (wanted is None or case.name in wanted)
             and (case.right or not options.right)]
    # The groups of a DeviceMesh cannot be destroyed, so its steps come last.
    cases.sort(key=lambda case: any(word in case.name for word in ("fsdp", "dtensor", "hsdp")))
    with tempfile.TemporaryDirectory() as folder:
        wait_for([forked(be_rank, rank, folder, cases, options) for rank in range(RANKS)])
        bad = int(Path(folder, "bad").read_text())
    print(f"{len(cases) - bad} of {len(cases)} as they should be")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
