"""As test_faults.py, in ranks without Python: an operator of a shared library in which one rank
does something else than the others."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from wording import is_in

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
OPERATORS = os.environ.get("FAULTY_OPERATORS") or "faulty_operators.so"
WORLD = 4
FAULTS = re.findall(r'^ +\{"(\w+)",', (Path(__file__).parent / "faulty.cpp").read_text(),
                    re.MULTILINE)
RIGHT = ("right", "slow")
# It may come yet: reported when the case's time is over, in which the others have to come to where
# they wait, on a busy machine, too.
UNTIL_ITS_TIME = ("asleep", "spins", "elsewhere")
ITS_TIME = 8
# What is reported of them, where it is no desync.
KINDS = {
    **dict.fromkeys(("stopped", "asleep", "spins"), "hang"),
    **dict.fromkeys(("raises", "raisesbetween"), "exception"),
    **dict.fromkeys(("exits", "ends", "killed", "segfault", "aborts"), "crash"),
}
# Where one collective more or less shows depends on what comes after it: behind a forward comes the
# backward, and behind that nothing.
SHIFTED = {
    ("forward", "leaves"): ("desync", "rank {odd} is in all_reduce sum of float64 [4]; ranks "
                                      "{others} are in all_gather"),
    ("forward", "onemore"): ("desync", "rank {odd} is in all_reduce sum of float64 [4]; ranks "
                                       "{others} are in all_gather"),
    ("backward", "leaves"): ("hang", "rank {odd} has finished the case and never entered"),
    ("backward", "onemore"): ("hang", "where rank {odd} waits"),
}
# Some words of the message.
IN_SUM = "ranks {others} are in all_reduce sum of float64 [4]"
WORDS = {
    "order": "rank {odd} is in all_gather of float64 [4]; " + IN_SUM,
    "kind": "rank {odd} is in broadcast of float64 [4], root 0; " + IN_SUM,
    "shape": "rank {odd} is in all_reduce sum of float64 [2]; " + IN_SUM,
    "dtype": "rank {odd} is in all_reduce sum of int32 [4]; " + IN_SUM,
    "op": "rank {odd} is in all_reduce max of float64 [4]; " + IN_SUM,
    "bits": "rank {odd} is in all_reduce sum of int64 [4]; " + IN_SUM,
    "root": "rank {odd} is in broadcast of float64 [4], root 1; ranks {others} are in broadcast "
            "of float64 [4], root 0",
    "barrier": "rank {odd} is in barrier; " + IN_SUM,
    "skips": "rank {odd} is in all_gather of float64 [4]; " + IN_SUM,
    "unsent": "rank {odd} is in recv of float64 [4], from rank {next}; " + IN_SUM,
    "asleep": "rank {odd} (asleep) has not entered all_gather of float64 [4], where ranks {others}",
    "spins": "rank {odd} (busy) has not entered all_reduce sum",
    "stopped": "rank {odd} (stopped) has not entered all_reduce sum",
    "exits": "exited with status 0",
    "ends": "exited with status 7",
    "killed": "killed by SIGKILL",
    "segfault": "killed by SIGSEGV",
    "aborts": "killed by SIGABRT",
    "raises": "planted",
}


# With collectives of distgrad's own before and behind it, what the odd rank comes to next is seen,
# too: as {(phase, fault): (step, words)}, of faults that are reported otherwise then.
AMONG_OTHERS = {
    ("forward", "leaves"): ("w", "rank {odd} is in all_reduce sum of float64 [16]; ranks {others} "
                                 "are in all_gather of float64 [4]"),
    ("backward", "leaves"): ("v", "rank {odd} is in all_reduce sum of float64 [4, 4]; ranks "
                                  "{others} are in all_gather of float64 [4]"),
    ("forward", "leavesearly"): ("y", "rank {odd} is in all_reduce sum of float64 [4]; ranks "
                                      "{others} are in all_gather of float64 [4]"),
    ("backward", "root"): ("y", WORDS["root"]),
    ("forward", "op"): ("y", WORDS["op"]),
    ("forward", "right"): None,
}


def scenario(function, is_told_late, is_among_others=False):
    subject, steps = f"all_reduce=library:{OPERATORS}:faulty::{function}", [{"y": {
        "all_reduce": "x"}}]
    if is_among_others:
        subject += "+all_gather=reference+reduce_scatter=reference"
        steps = [{"v": {"all_gather": "x"}}, {"y": {"all_reduce": "v.sum(0)"}},
                 {"w": {"reduce_scatter": "y.repeat(4)"}}]
    return {
        "world_size": WORLD,
        "inputs": {"x": {"expr": "torch.arange(4.) + rank"}},
        "steps": steps,
        "loss": "(y * y).sum()" + " + (w * w).sum() + (v * v).sum()" * is_among_others,
        "objective": "sum",
        "subjects": {subject: "match"},
        "timeout_s": ITS_TIME if is_told_late else 1000,
    }


class Faults(unittest.TestCase):
    def test_the_odd_rank_is_named(self):
        planted = {}
        with tempfile.TemporaryDirectory() as folder:
            for phase in ("forward", "backward"):
                for i, fault in enumerate(FAULTS):
                    odd = (i + (phase == "backward")) % WORLD
                    planted[f"{phase}_{fault}_{odd}"] = (phase, fault, odd)
            cases = self.run_all(folder, {
                function: scenario(function, fault in UNTIL_ITS_TIME)
                for function, (_, fault, _) in planted.items()})
        self.assertGreater(len(planted), 40)
        for name, what in planted.items():
            with self.subTest(name):
                self.check(cases[name], *what)

    def run_all(self, folder, scenarios):
        for name, value in scenarios.items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(value))
        done = subprocess.run([DISTGRAD, "run", "--allow-code", "--jobs", "4", "--json", "-",
                               folder], capture_output=True, text=True)
        cases = {case["name"]: case for case in json.loads(done.stdout)["cases"]}
        self.assertEqual(cases.keys(), scenarios.keys(), done.stderr)
        return cases

    def test_among_collectives_of_distgrads_own(self):
        odd = {what: 1 + i % 3 for i, what in enumerate(AMONG_OTHERS)}
        odd["backward", "root"] = 3  # where nothing breaks
        with tempfile.TemporaryDirectory() as folder:
            cases = self.run_all(folder, {
                f"{phase}_{fault}_{rank}": scenario(f"{phase}_{fault}_{rank}", False, True)
                for (phase, fault), rank in odd.items()})
        for what, rank in odd.items():
            case = cases["_".join(map(str, (*what, rank)))]
            with self.subTest(case["name"]):
                if AMONG_OTHERS[what] is None:
                    self.assertEqual(case["verdict"], "match", case)
                    continue
                step, words = AMONG_OTHERS[what]
                error = case["error"]
                self.assertEqual((error["kind"], error["rank"], error["step"]),
                                 ("desync", rank, step), error)
                self.assertTrue(is_in(words, error["message"], rank, WORLD), error["message"])
                self.assertNotIn("not done after", error["message"])

    def check(self, case, phase, fault, odd):
        error = case.get("error") or {}
        if fault in RIGHT:
            self.assertEqual((error, case["verdict"]), ({}, "match"))
            return
        if fault == "elsewhere":  # for whom it waits there is not known, so nobody is blamed
            self.assertIn(f"not done after {ITS_TIME} s: ranks 0-3 wait in step y "
                          f"(all_reduce), {phase}", error["message"])
            return
        kind, text = SHIFTED.get((phase, fault),
                                 (KINDS.get(fault, "desync"), WORDS.get(fault, "")))
        self.assertEqual((error.get("kind"), error.get("rank"), error.get("step")),
                         (kind, odd, "y"), error)
        self.assertTrue(is_in(text, error["message"], odd, WORLD, next=(odd + 1) % WORLD),
                        (text, error["message"]))
        if (phase, fault) in SHIFTED:
            self.assertIn("step y (all_reduce), backward", error["message"])
        elif kind != "exception":
            self.assertIn(f"step y (all_reduce), {phase}", error["message"])
        self.assertEqual("not done after" in error["message"], fault in UNTIL_ITS_TIME, error)


if __name__ == "__main__":
    unittest.main()
