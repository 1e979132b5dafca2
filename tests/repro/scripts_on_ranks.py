"""Runs reproduction scripts and compares their numbers with distgrad's report of the same cases.

    DISTGRAD=build/bin/distgrad python tests/repro/scripts_on_ranks.py [--every K] [--offset I]
    PATH...

One process for each world size imports torch and forks the ranks, which then go through all
scripts: each script by itself would pay the import once a rank. Exit code 1 where any number
differs.
"""

import argparse
import inspect
import json
import math
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch.distributed as dist

DISTGRAD = os.environ.get("DISTGRAD", "distgrad")
SECONDS = 60  # for one script
# Without it (before torch 2.12 or so) scripts with groups whose ranks are out of order cannot run:
# docs/repro.md.
KEEPS_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters
# What a wrong rule gives is not bounded by the report: sums may be taken in another order.
SLACK = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}


def file_of(case_id):
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", case_id) + ".py"


def tensor(value):
    """Of a report's nested list, whose numbers may be words."""
    if isinstance(value, list):
        return torch.stack([tensor(item) for item in value]) if value else torch.zeros(0)
    return torch.tensor(float(value))


def close(ours, theirs, bound, slack):
    if ours is None or theirs is None:
        return (ours is None or not ours.any()) and (theirs is None or not theirs.any())
    ours, theirs = ours.double().flatten(), theirs.double().flatten()
    return ours.shape == theirs.shape and bool(
        torch.isclose(ours, theirs, rtol=slack, atol=bound, equal_nan=True).all())


def problems_with(case, gradients, true):
    """Of one script, whose ranks observed `gradients` and whose truth is `true`."""
    found = []
    for name, reported in case["gradients"].items():
        if "by_rank" not in reported.get("observed", {}) or "shape" in json.dumps(reported):
            continue  # summarised
        truth = reported["truth"]
        wanted = truth.get("by_rank", [truth.get("full")])
        mine = true[name] if "by_rank" in truth else [true[name]]
        bound = reported["bound"] if math.isfinite(float(reported["bound"])) else math.inf
        exact = bound == 0 and reported["max_abs_error"] == 0
        for part, (a, b) in enumerate(zip(mine, wanted)):
            if not close(a, tensor(b), bound, 0 if exact else 1e-12):
                found.append(f"{name}: truth {part}: {a.tolist()}, reported {b}")
        for rank, b in enumerate(reported["observed"]["by_rank"]):
            a = gradients[rank][name]
            if not close(a, None if b is None else tensor(b), bound,
                         0 if exact else SLACK[case["dtype"]]):
                found.append(f"{name}: rank {rank}: {a if a is None else a.tolist()}, reported {b}")
    return found


def compiled(path):
    with open(path) as file:
        return compile(file.read(), path, "exec")


def load(code):
    names = {"__name__": "repro_script"}
    exec(code, names)
    return names


def run_scripts(rank, world_size, scripts, store, place, queue, to_rank_0):
    """One rank. `scripts` are (case, code), compiled once for all ranks; `to_rank_0` is a pipe for
    each rank, as a collective of pickled objects takes longer than most scripts."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank,
                            world_size=world_size)
    for index, (case, code) in enumerate(scripts):
        place[rank] = index
        try:
            script = load(code)
            if "connect" in script:
                script["connect"](rank)
            mine = script["observed"](rank)
            if rank > 0:
                to_rank_0[rank][1].send_bytes(pickle.dumps(mine))
            else:
                everything = [mine] + [pickle.loads(end.recv_bytes()) for end, _ in to_rank_0[1:]]
            if "measure" in script:
                script["measure"](rank)
            if rank == 0:
                _, gradients = zip(*everything)
                found = problems_with(case, gradients, script["truth"]()[1])
                rows = list(script["rows"](gradients, script["truth"]()[1]))
                same = all(torch.isclose(torch.zeros_like(w) if s is None else s.double(), w,
                                         rtol=0, atol=b, equal_nan=True).all()
                           for _, _, s, w, b in rows)
                gradients_match = case["verdict"] == "match" or all(
                    g["matches"].get(case["objective"], True) for g in case["gradients"].values())
                if same != gradients_match and case["verdict"] != "disputed":
                    found.append(f"the table says {'equal' if same else 'different'}, the report"
                                 f" {case['verdict']}")
                queue.put((index, found))
            for group in script.get("process_groups", {}).values():
                dist.destroy_process_group(group)
        except Exception:
            queue.put((index, [f"rank {rank}: {traceback.format_exc()}"]))
            queue.close()
            queue.join_thread()
            os._exit(1)
    place[rank] = len(scripts)
    queue.close()
    queue.join_thread()
    os._exit(0)  # no tear-down, which waits for the others


def run_world(world_size, scripts):
    """Yields (case id, problems)."""
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(scripts):
        queue, place = context.Queue(), context.Array("i", world_size)
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        left = scripts[done:]
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=run_scripts,
                                     args=(r, world_size, left, folder + "/store", place, queue,
                                           pipes))
                     for r in range(world_size)]
            for process in ranks:
                process.start()
            last, moved, finished = -1, time.monotonic(), 0
            while finished < len(left):
                try:
                    index, found = queue.get(timeout=0.5)
                    if index < finished:
                        continue
                    yield left[index][0]["id"], found
                    finished, moved = index + 1, time.monotonic()
                    if found and found[0].startswith("rank "):
                        break
                except Exception:  # nothing in the queue
                    dead = [p.exitcode for p in ranks if p.exitcode not in (None, 0, 1)]
                    if dead or time.monotonic() - moved > SECONDS:
                        at = [min(p, len(left) - 1) for p in place]
                        yield left[finished][0]["id"], [f"stuck or dead ({dead}), the ranks being"
                                                        f" at {[left[i][0]['id'] for i in at]}"]
                        finished += 1
                        break
            done += finished
            for process in ranks:
                process.kill()
                process.join()


def can_run(path):
    with open(path) as file:
        return KEEPS_ORDER or "sort_ranks" not in file.read()


def check(paths, every=1, offset=0, options=(), shared=()):
    """`options` are of `distgrad run`, `shared` of `distgrad repro`, too. Returns (scripts run,
    cases not run, {case id: problems})."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        subprocess.run([DISTGRAD, "run", "--full", "--quiet", "--json", report, *options, *shared,
                        *paths], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(report) as file:
            cases = json.load(file)["cases"]
        cases = [c for c in cases if c["verdict"] in ("match", "mismatch", "disputed")]
        cases = cases[offset::every]
        subprocess.run([DISTGRAD, "repro", "-o", folder + "/", *shared, *(c["id"] for c in cases)],
                       check=True)
        by_size = {}
        for case in cases:
            by_size.setdefault(case["world_size"], []).append(
                (case, os.path.join(folder, file_of(case["id"]))))
        missing = [case["id"] for scripts in by_size.values() for case, path in scripts
                   if not os.path.exists(path)]
        found, count = {}, 0
        for world_size, scripts in sorted(by_size.items()):
            for case_id, problems in run_world(
                    world_size, [(case, compiled(path)) for case, path in scripts
                                 if os.path.exists(path) and can_run(path)]):
                count += 1
                if problems:
                    found[case_id] = problems
        return count, missing, found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--option", action="append", default=[],
                        help="of distgrad run, as in --option=--subject=torch_nn")
    parser.add_argument("paths", nargs="+")
    arguments = parser.parse_args()
    count, missing, found = check(arguments.paths, arguments.every, arguments.offset,
                                  arguments.option)
    for case_id, problems in found.items():
        print(case_id, *problems[:3], sep="\n    ")
    for case_id in missing:
        print("no script:", case_id)
    print(f"{count} scripts, {len(found)} with other numbers than the report, {len(missing)} cases"
          " without one")
    return 1 if found or missing else 0


if __name__ == "__main__":
    sys.exit(main())
