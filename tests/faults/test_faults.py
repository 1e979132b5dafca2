"""One rank does something else than the others: reported are the right rank, the step, the
direction and the kind, long before the case's time is over; and where it only is slow, nothing is.
With --all every fault on every rank, without it on one each."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from wording import is_in

HERE = Path(__file__).parent
DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
ALL = "--all" in sys.argv
CODE = f"python:{HERE / 'faulty.py'}:"
WORLD = 4
PLACES = [("call", "forward"), ("call", "backward"),
          ("collective", "backward")] + ALL * [("collective", "forward")]

# What is reported of them, where it is no desync.
KINDS = {
    **dict.fromkeys(("leaves", "leavesearly", "onemore", "asyncmore", "ring", "stopped", "asleep",
                     "asleepinc", "spins"), "hang"),
    **dict.fromkeys(("raises", "raisesbetween", "exits"), "exception"),
    **dict.fromkeys(("ends", "killed", "segfault", "aborts"), "crash"),
}
# Some words of the message.
WORDS = {
    "order": "rank {odd} (faulty.py:{_gather}) is in all_gather of float64 [4]; ranks {others} "
             "(faulty.py:{_sum}) are in all_reduce sum",
    "op": "is in all_reduce max of float64 [4]; ranks {others}",
    "shape": "is in all_reduce sum of float64 [2]; ranks {others}",
    "dtype": "is in all_reduce sum of int32 [4]; ranks {others}",
    "root": "is in broadcast of float64 [4], root 1; ranks {others}",
    "group": "in the group of ranks ",
    "barrier": "is in barrier; ranks {others}",
    "leaves": "rank {odd} has finished the case and never entered all_reduce",
    "onemore": "where rank {odd} (faulty.py:{_sum}) waits",
    "unsent": "rank {odd} (faulty.py:{_wait_for_a_message}) is in recv of float64 [4], from rank "
              "{next}; ranks {others}",
    "untaken": "rank {odd} (faulty.py:{_send_what_nobody_takes}) is in send of float64 [4], to "
               "rank {next}; ranks {others}",
    "asleep": "in _sleep: time.sleep(10_000), asleep) has not entered all_reduce",
    # With the line, where Python got to write it.
    "asleepinc": "asleep) has not entered all_gather",
    "spins": "in _spin: while True: pass, busy) has not entered all_reduce",
    "stopped": "rank {odd} (stopped) has not entered all_reduce",
    "ends": "exited with status 7",
    "killed": "killed by SIGKILL",
    "raises": "ValueError: planted",
}


def faults():
    sys.path.insert(0, str(HERE))
    import faulty

    return faulty


def line_of(function):
    return function.__code__.co_firstlineno + 1 + bool(function.__doc__)


def scenario(place, function, is_told_late):
    steps, subject = [{"y": {"all_reduce": "x"}}], f"all_reduce={CODE}{function}"
    if place == "call":
        steps, subject = [{"y": {"call": CODE + function, "args": ["x"],
                                 "simulate": CODE + "every_rank"}}], "reference"
    return {"world_size": WORLD, "inputs": {"x": {"expr": "torch.arange(4.) + rank"}},
            "steps": steps, "loss": "(y * y).sum()", "objective": "sum",
            "subjects": {subject: "match"}, "timeout_s": 2 if is_told_late else 1000}


class Faults(unittest.TestCase):
    def test_the_odd_rank_is_named(self):
        module = faults()
        planted = {}
        with tempfile.TemporaryDirectory() as folder:
            for i, ((place, phase), fault) in enumerate(itertools.product(PLACES, module.FAULTS)):
                for odd in range(WORLD) if ALL else [i % WORLD]:
                    function = f"{place}_{phase}_{fault}_{odd}"
                    planted[function] = (place, phase, fault, odd)
                    late = fault in module.UNTIL_ITS_TIME
                    (Path(folder) / f"{function}.json").write_text(
                        json.dumps(scenario(place, function, late)))
            done = subprocess.run([DISTGRAD, "run", "--allow-code", "--python", sys.executable,
                                   "--jobs", "4", "--json", "-", folder],
                                  capture_output=True, text=True)
        cases = {Path(c["id"].partition(".json")[0]).name: c
                 for c in json.loads(done.stdout)["cases"]}
        self.assertEqual(cases.keys(), planted.keys(), done.stderr)
        for name, what in planted.items():
            with self.subTest(name):
                self.check(cases[name], module, *what)

    def check(self, case, module, place, phase, fault, odd):
        error = case.get("error") or {}
        if fault in module.RIGHT:
            self.assertEqual(error, {})
            # Another function than the scenario's
            self.assertIn(case["verdict"], ("match", "mismatch"))
            return
        self.assertEqual((error.get("kind"), error.get("rank"), error.get("step")),
                         (KINDS.get(fault, "desync"), odd, "y"), error)
        words = {"next": (odd + 1) % WORLD, **{f.__name__: line_of(f) for f in
                                               vars(module).values() if hasattr(f, "__code__")}}
        text = WORDS.get(fault, "")
        self.assertTrue(is_in(text, error["message"], odd, WORLD, **words),
                        (text, error["message"]))
        if error["kind"] != "exception":  # whose stack says it
            self.assertIn(f"step y{' (all_reduce)' if place == 'collective' else ''}, {phase}",
                          error["message"])
        if fault not in module.UNTIL_ITS_TIME:
            self.assertNotIn("not done after", error["message"])


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--all"])
