"""As test_faults.py, in ranks without Python: an operator of a shared library in which one rank
does something else than the others."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
OPERATORS = os.environ.get("FAULTY_OPERATORS") or "faulty_operators.so"
WORLD = 4
FAULTS = re.findall(r'^ +\{"(\w+)",', (Path(__file__).parent / "faulty.cpp").read_text(),
                    re.MULTILINE)
RIGHT = ("right", "slow")
# It may come yet: told when the case's time is over
UNTIL_ITS_TIME = ("asleep", "spins")
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


def scenario(function, is_told_late):
    return {
        "world_size": WORLD,
        "inputs": {"x": {"expr": "torch.arange(4.) + rank"}},
        "steps": [{"y": {"all_reduce": "x"}}],
        "loss": "(y * y).sum()",
        "objective": "sum",
        "subjects": {f"all_reduce=library:{OPERATORS}:faulty::{function}": "match"},
        "timeout_s": 2 if is_told_late else 1000,
    }


class Faults(unittest.TestCase):
    def test_the_odd_rank_is_named(self):
        planted = {}
        with tempfile.TemporaryDirectory() as folder:
            for phase in ("forward", "backward"):
                for i, fault in enumerate(FAULTS):
                    odd = (i + (phase == "backward")) % WORLD
                    planted[f"{phase}_{fault}_{odd}"] = (phase, fault, odd)
            for function, (_, fault, _) in planted.items():
                (Path(folder) / f"{function}.json").write_text(
                    json.dumps(scenario(function, fault in UNTIL_ITS_TIME)))
            done = subprocess.run([DISTGRAD, "run", "--allow-code", "--jobs", "4", "--json", "-",
                                   folder], capture_output=True, text=True)
        cases = {case["name"]: case for case in json.loads(done.stdout)["cases"]}
        self.assertEqual(cases.keys(), planted.keys(), done.stderr)
        self.assertGreater(len(planted), 40)
        for name, what in planted.items():
            with self.subTest(name):
                self.check(cases[name], *what)

    def check(self, case, phase, fault, odd):
        error = case.get("error") or {}
        if fault in RIGHT:
            self.assertEqual((error, case["verdict"]), ({}, "match"))
            return
        kind, text = SHIFTED.get((phase, fault),
                                 (KINDS.get(fault, "desync"), WORDS.get(fault, "")))
        self.assertEqual((error.get("kind"), error.get("rank"), error.get("step")),
                         (kind, odd, "y"), error)
        words = {"odd": odd, "others": ", ".join(str(r) for r in range(WORLD) if r != odd),
                 "next": (odd + 1) % WORLD}
        self.assertIn(text.format(**words), error["message"])
        if (phase, fault) in SHIFTED:
            self.assertIn("step y (all_reduce), backward", error["message"])
        elif kind != "exception":
            self.assertIn(f"step y (all_reduce), {phase}", error["message"])
        self.assertEqual("not done after" in error["message"], fault in UNTIL_ITS_TIME, error)


if __name__ == "__main__":
    unittest.main()
