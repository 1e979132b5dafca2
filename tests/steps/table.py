"""Asks check_step about the planted mistakes (planted.py, strangers.py, colleagues.py,
released.py, outsiders.py), and writes a table.

    DISTGRAD=build/release-2.15.0/bin/distgrad python tests/steps/table.py
    [--released | --outsiders] [--only TEXT ...] [--show] [--dtype float32] [--write FILE]

The exit code is 1 if a mistake is missed, placed wrongly, or, with --only, not named nor placed.
"""

import argparse
import importlib
import json
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch.distributed.fsdp  # noqa: E402, F401: once, for all that are forked
import torch.distributed.tensor.parallel  # noqa: E402, F401

import distgrad  # noqa: E402
from distgrad import step_host, step_process, stepping  # noqa: E402


def run_forked(folder, request):
    """Does what stepping._run_processes does in a fork of this process, which runs no autograd, so
    that torch is imported once."""
    step_host.write_request(folder, request)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            step_process.main(folder, str(parent))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    failures = json.loads(Path(folder, "outcome").read_text())
    if failures:
        raise distgrad.RankError(stepping._failure_text(failures), failures)


stepping._run_processes = run_forked


import colleagues  # noqa: E402
import outsiders  # noqa: E402
import released  # noqa: E402
from outsiders import ALL  # noqa: E402

WORLDS = {name: planted.step.worlds[-1] for name, planted in ALL.items()}


def ask(name, dtype):
    """Returns check_step's report of the planted mistake, or None if it passes. Its functions look
    the step up by name in each process."""
    world_size = WORLDS[name]

    def parallel(rank, world_size):
        import torch

        from steps import Run
        from outsiders import ALL

        return ALL[name].step.parallel(Run(0, getattr(torch, dtype), rank, world_size))

    def single():
        import torch

        from steps import Run
        from outsiders import ALL

        return ALL[name].step.single(Run(0, getattr(torch, dtype)))

    try:
        distgrad.check_step(parallel, single, world_size, timeout_s=200)
    except AssertionError as error:
        return error.report


def answer_of(report):
    """Returns what is kept of a report."""
    if report is None:
        return {"stage": "passes", "where": ["passes"], "text": ""}
    departure = {"stage": report.where.get("stage", "unknown")}
    return {"stage": departure["stage"], "where": report.where["text"], "text": str(report)}


def judged(planted, answer):
    """Returns (named, placed, misplaced)."""
    text = " ".join(answer["text"].split())
    named = bool(re.search(planted.names, text))
    is_there = answer["stage"] == planted.stage or {answer["stage"], planted.stage} in _ALIKE
    placed = is_there and bool(re.search(planted.place, " ".join(answer["where"])))
    return named, placed, not (named or placed) and answer["stage"] in ("forward", "backward") and (
        not is_there)


# These stages count as one: behind the last module that both runs have, a call's backward belongs
# to the loss, and shares that nobody adds up may be blamed on either stage.
_ALIKE = [{"loss", "backward"}, {"after", "backward"}, {"loss", "weights"}, {"loss", "after"},
          {"loss", "forward"}]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--released", action="store_true",
                        help="those in steps with released packages alone (released.py)")
    parser.add_argument("--outsiders", action="store_true",
                        help="those in steps of the fifth hand alone (outsiders.py)")
    parser.add_argument("--unseen", action="store_true",
                        help="those alone that no report was improved on")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--show", action="store_true")
    parser.add_argument(
        "--results",
        help="a JSON file that results are added to, and taken from where they are there")
    parser.add_argument("--write", help="a file that the table is written to")
    options = parser.parse_args()
    hand = (released if options.released else outsiders if options.outsiders else colleagues)
    every = colleagues.ALL if hand is colleagues else hand.PLANTED
    names = [n for n in (hand.UNSEEN if options.unseen else every)
             if (not options.only or any(text in n for text in options.only))]
    names = [n for n in names if not _is_left_out(n)]
    kept = Path(options.results) if options.results else None
    results = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for name in names:
        if name not in results:
            results[name] = answer_of(ask(name, options.dtype))
            if kept:
                kept.write_text(json.dumps(results))
        answer = results[name]
        named, placed, misplaced = judged(ALL[name], answer)
        what = "MISPLACED" if misplaced else "named" if named else "placed" if placed else "neither"
        print(f"{what:10}{name}: {answer['where'][0]}", flush=True)
        if options.show:
            print(answer["text"], "\n", flush=True)
    found = [judged(ALL[name], results[name]) for name in names]
    good, wrong = sum(n or p for n, p, _ in found), sum(m for *_, m in found)
    missed = sum(results[name]["stage"] == "passes" for name in names)
    summary = (f"{len(found)} mistakes in {options.dtype}: {sum(n for n, *_ in found)} named,"
               f" {good} named or placed, {wrong} placed wrongly, {missed} missed")
    print(summary)
    if options.write:
        Path(options.write).write_text(
            "\n".join([summary + ".", "", *rows(names, results, found)]) + "\n")
    return 1 if wrong or missed or (options.only and good < len(found)) else 0


def _is_left_out(name):
    """Returns whether the mistake's step needs a package that is missing. It imports what the step
    needs, once for all forked processes."""
    if missing := released.missing(name):
        print(f"{'left out':10}{name}: {', '.join(missing)} is not installed", flush=True)
        return True
    for module in released.modules(name):
        importlib.import_module(module)
    return False


def rows(names, results, found):
    """Returns the table's lines with a row for each step: how many of its mistakes are caught,
    named, only placed, neither, and placed wrongly."""
    steps = {}
    for name, (named, placed, misplaced) in zip(names, found):
        row = steps.setdefault(name.partition(":")[0], [0] * 6)
        counts = (True, results[name]["stage"] != "passes", named, placed and not named,
                  not (named or placed or misplaced), misplaced)
        steps[name.partition(":")[0]] = [n + bool(c) for n, c in zip(row, counts)]
    steps["all"] = [sum(row[i] for row in steps.values()) for i in range(6)]
    return ["| step | mistakes | caught | named | placed | neither | placed wrongly |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(f"| {step} | {' | '.join(map(str, row))} |" for step, row in steps.items())]


if __name__ == "__main__":
    sys.exit(main())
