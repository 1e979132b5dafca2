"""Thousands of cases with random faults in one run: each is reported right, and the driver's and
the zygotes' descriptors, memory and children do not grow. Takes an hour for 10,000; not part of the
test suite.

    DISTGRAD=build/.../bin/distgrad python tests/faults/random_faults.py [COUNT [SEED [JOBS]]]
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import test_faults

_LOOK_S = 0.5


def main(count=10_000, seed=1, jobs=4):
    module = test_faults.faults()
    chosen = random.Random(seed)
    at_once = [fault for fault in module.FAULTS
               if fault not in module.UNTIL_ITS_TIME and not fault.startswith("slow")]
    planted = {}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            what = (chosen.choice(("call", "collective")), chosen.choice(("forward", "backward")),
                    "right" if chosen.random() < 0.2 else chosen.choice(at_once),
                    chosen.randrange(test_faults.WORLD))
            name, function = f"{i:05}", "_".join(map(str, what))
            planted[name] = what
            Path(folder, name + ".json").write_text(
                json.dumps(test_faults.scenario(what[0], function, False)))
        command = [test_faults.DISTGRAD, "run", "--allow-code", "--python", sys.executable,
                   "--jobs", str(jobs), "--json", os.path.join(folder, "report"), folder]
        began = time.monotonic()
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True)
        seen = watched(run)
        took = time.monotonic() - began
        cases = {Path(c["id"].partition(".json")[0]).name: c
                 for c in json.loads(Path(folder, "report").read_text())["cases"]}
    wrong = judged(cases, planted, module)
    for text in wrong:
        print(text)
    print(f"{count} cases, {sum(what[2] not in module.RIGHT for what in planted.values())} with a"
          f" fault, in {took:.0f} s: {len(wrong)} reported wrongly, {count - len(cases)} missing,"
          f" {run.stderr.read().strip() or 'no complaint'}")
    for what in seen[0]:
        parts = [max(look[what] for look in seen[len(seen) * i // 4:len(seen) * (i + 1) // 4])
                 for i in range(4)]
        print(f"{what}: most in each quarter of the run {parts}")
    return bool(wrong) or len(cases) != count


def judged(cases, planted, module):
    wrong = []
    for name, what in planted.items():
        if name not in cases:
            continue
        try:
            test_faults.Faults().check(cases[name], module, *what)
        except AssertionError as error:
            wrong.append(f"{name} {what}: {error}")
    return wrong


def watched(run):
    """How much the driver and the process that starts ranks have, again and again until the run
    ends."""
    seen = []
    while run.poll() is None:
        try:
            zygotes = [int(p) for p in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text(
                ).split()]
            seen.append(
                {"the driver's descriptors": descriptors(run.pid), "its KiB": resident(run.pid),
                 "the zygotes' descriptors": sum(map(descriptors, zygotes)),
                 "their KiB": sum(map(resident, zygotes)), "the driver's children": len(zygotes)})
        except (FileNotFoundError, ProcessLookupError):
            pass  # one has just ended
        time.sleep(_LOOK_S)
    return seen


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid):
    """Of memory of its own."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
