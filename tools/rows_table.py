#!/usr/bin/env python3
"""Holds the rule sets `torch_nn` and `torch_functional` against the modules of torch that they
stand for.

    tools/rows_table.py --distgrad build/bin/distgrad --python PATH [--short]

The audit's battery and the scenarios of collectives run with the rule set (ranks in C++) and with
the real module (ranks in Python, with the torch of --python). Case by case both must raise or
neither, and give the same gradients. The driver must be built with the torch of the same version,
since rows depend on it. What is known to differ, and why, is KNOWN; every other difference is
printed, and the exit status is 1. So is an entry of KNOWN that nothing differs by any more.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

MODULES = {
    "torch_nn": "torch.distributed.nn.functional",
    "torch_functional": "torch.distributed._functional_collectives",
}
# The short form: of each collective and op these trials, which include all in which something is
# known to differ.
SHORT = ("2-ranks", "3-ranks", "blocks", "root-1-of-a-subgroup", "dim-1", "uneven",
         "transposed-cotangent", "two-zeros", "ties")


@dataclass(frozen=True)
class Known:
    subject: str
    cases: str  # a regular expression over the case's name
    outcome: str | tuple  # how the real module's outcome begins
    why: str
    before: tuple = (99,)  # torch's version, as (2, 15)
    since: tuple = (0,)


# Each is reported in docs/findings.md, but for what Gloo lacks and for shapes that the module does
# not take.
_GROUPS = "(blocks|out-of-order|strided|unequal|root-1-of-a-subgroup)"
KNOWN = (
    Known("torch_nn", "premul_sum", "skipped",
          "torch's Gloo has no premul_sum; the row tells what the module does on NCCL"),
    Known("torch_nn", "(all_gather|gather).*uneven|scatter.*(uneven|splits)", "skipped",
          "the module takes one shape only"),
    Known("torch_functional", "(all_gather|reduce_scatter).*(uneven|splits)", "skipped",
          "the module takes one shape only"),
    Known("torch_functional", "premul_sum", "skipped",
          "torch's Gloo has no premul_sum, and reduce_scatter takes the op as text"),
    Known("torch_nn",
          f"(all_gather|all_to_all)/{_GROUPS}|all_gather_group|all_to_all_group|layouts_on_a_mesh",
          "exception: ValueError",
          "all_to_all, and so all_gather's backward, takes ranks of a subgroup for global ones"),
    Known("torch_nn", f"^(gather|scatter)/{_GROUPS}", "exception: ValueError",
          "gather and scatter compare the rank in the group with the global root"),
    Known("torch_nn",
          "^broadcast/(blocks|strided|out-of-order|unequal|root-1-of-a-subgroup)|broadcast_group"
          "|sync_where_one_part", "mismatch",
          "broadcast's backward compares the rank in the group with the global root",
          before=(2, 15)),
    Known("torch_nn", "reduce_scatter[a-z_]*/uneven|reduce_scatter_splits",
          ("crash", "exception: RuntimeError", "desync: the ranks differ"),
          "reduce_scatter's backward gathers chunks of one size only"),
    Known("torch_nn", "^gather/(dim-|expanded-|sliced-|transposed-)|gather_dim1_root2|gather_ones",
          "mismatch", "gather's backward scatters cotangents that are not contiguous"),
    Known("torch_nn", "^all_gather/transposed-cotangent", "mismatch",
          "all_gather's backward receives into transposed buffers"),
    Known("torch_nn", "^reduce_[a-z]+/transposed-cotangent|reduce_transposed_cotangent", "mismatch",
          "reduce's backward broadcasts between transposed and contiguous buffers"),
)


def run(options, paths, subject, folder):
    """The cases of a report by their names, without subject and python."""
    report = os.path.join(folder, "report.json")
    command = [options.distgrad, "run", *paths, "--subject", subject, "--timeout", "60",
               "--json", report]
    if subject.startswith("python:"):
        command += ["--python", options.python]
    # Its exit status tells of expectations, which are not the question here.
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not os.path.exists(report):
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}")
    with open(report) as file:
        cases = json.load(file)["cases"]
    os.remove(report)
    return {name_of(case, subject, folder): case for case in cases}


def name_of(case, subject, folder):
    file, _, rest = case["id"].partition(":")
    fields = [f for f in rest.split(",")
              if f and not f.startswith(("subject=", "python=", "--subject"))]
    name = os.path.relpath(file, folder) if file.startswith(folder) else os.path.relpath(file)
    return name.removesuffix(".json") + "".join(":" + f for f in fields)


def outcome(case):
    """One line: the verdict, and of an error its kind and first line."""
    if case["verdict"] != "error":
        return case["verdict"]
    return f"{case['error']['kind']}: {case['error']['message'].splitlines()[0]}"


def close(a, b, tolerance):
    """Ranks may add in another order; the driver's bounds have judged the gradients against the
    truth already."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b))
    if type(a) in (int, float) and type(b) in (int, float):
        return a == b or abs(a - b) <= tolerance * max(1, abs(a), abs(b))
    return a == b


def observed(case):
    return {name: entry["observed"] for name, entry in case["gradients"].items()}


def difference(row, real):
    """What differs, as a line; None where nothing does. What raises must raise in both; the words
    are each one's own."""
    if (row["verdict"] == real["verdict"] == "error"
            and row["error"]["kind"] == real["error"]["kind"] == "exception"):
        return None
    if row["verdict"] != real["verdict"]:
        return outcome(real)
    tolerance = {"bfloat16": 0.05, "float16": 0.01}.get(row["dtype"], 1e-5)
    is_close = close(observed(row), observed(real), tolerance)
    return None if is_close else f"{outcome(real)} with other gradients"


def explain(subject, name, text, version, used):
    for known in KNOWN:
        fits = known.subject == subject and known.since <= version < known.before
        if fits and re.search(known.cases, name) and text.startswith(known.outcome):
            used.add(known)
            return known
    return None


def compare(options, paths, subject, folder, used):
    rows = run(options, paths, subject, folder)
    reals = run(options, paths, "python:" + MODULES[subject], folder)
    unexplained, explained, same = [], collections.Counter(), collections.Counter()
    for name in sorted(rows.keys() | reals.keys()):
        if name not in rows or name not in reals:
            unexplained.append(f"{name}: only one of them has this case")
            continue
        text = difference(rows[name], reals[name])
        if text is None:
            same[rows[name]["verdict"]] += 1
        elif known := explain(subject, name, text, options.version, used):
            explained[known] += 1
        else:
            unexplained.append(
                f"{name}: row {outcome(rows[name])}; torch {text}: {reals[name]['why'][:200]}")
    report(subject, same, explained, unexplained)
    return unexplained or same["match"] == 0  # where nothing ran, nothing was compared


def report(subject, same, explained, unexplained):
    alike = ", ".join(f"{count} {verdict}" for verdict, count in sorted(same.items()))
    print(f"{subject} and {MODULES[subject]}: alike in {sum(same.values())} cases ({alike})")
    for known, count in explained.items():
        print(f"  {count} known to differ: {known.why}")
    for line in unexplained:
        print("  DIFFERENT " + line[:400])


def write_battery(options, folder):
    subprocess.run([options.distgrad, "audit", "reference", "--battery", folder], check=True)
    for parent, _, files in os.walk(folder):
        for file in files:
            left_out = options.short and file.removesuffix(".json") not in SHORT
            if left_out or not re.fullmatch(options.only, os.path.basename(parent)):
                os.remove(os.path.join(parent, file))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distgrad", required=True, help="the driver")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--subject", choices=MODULES, action="append", help="only this rule set")
    parser.add_argument("--short", action="store_true", help="a few trials of each collective")
    parser.add_argument("--only", default=".*", metavar="REGEX",
                        help="only the battery of these, as all_reduce_(sum|avg)")
    options = parser.parse_args()
    text = subprocess.check_output([options.python, "-c", "import torch; print(torch.__version__)"],
                                   text=True)
    options.version = tuple(int(part) for part in text.split(".")[:2])
    used, failed = set(), False
    with tempfile.TemporaryDirectory() as folder:
        write_battery(options, folder)
        is_part = options.short or options.only != ".*"
        paths = [folder] if is_part else [folder, "scenarios/collectives"]
        for subject in options.subject or MODULES:
            failed |= bool(compare(options, paths, subject, folder, used))
    for known in KNOWN if options.only == ".*" else ():
        asked = options.subject is None or known.subject in options.subject
        if asked and known.since <= options.version < known.before and known not in used:
            print(f"nothing differs any more by: {known.why}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
