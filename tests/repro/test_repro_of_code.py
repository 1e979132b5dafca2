"""`distgrad repro` of what users hand over: their own functions, modules with a setup, whole steps.
Each script's numbers are compared with the report's."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import scripts_on_ranks

DISTGRAD = os.environ["DISTGRAD"]
LIBRARY = os.environ.get("DISTGRAD_EXAMPLE_OPERATORS", "")
CODE = pathlib.Path(__file__).resolve().parent / "code"
SHARED = ["--allow-code", "--python", sys.executable]
DRAWN = {"random": {"shape": [4], "kind": "normal"}}


def collective(kind, subject, loss="(y * y).sum() * (rank + 1)", operand="x.sin()", **options):
    world = {key: options.pop(key) for key in ("world_size", "groups", "dtype") if key in options}
    return {"world_size": 2, "inputs": {"x": DRAWN}, "steps": [{"y": {kind: operand, **options}}],
            "loss": loss, "objective": "sum", "subjects": {subject: "match"}, **world}


def call(function, simulate=None, steps=(), loss="y.sum() * (rank + 1)", inputs=None, **more):
    step = {"call": f"python:{CODE}/layer.py:{function}", "args": ["x", "w", "rank + 1"]}
    if simulate:
        step["simulate"] = f"python:{CODE}/layer.py:{simulate}"
    inputs = inputs or {"x": DRAWN, "w": {"random": {"shape": [4], "kind": "normal"},
                                          "layout": "replicate"}}
    return {"world_size": 2, "inputs": inputs, "steps": [{"y": step}, *steps], "loss": loss,
            "objective": "mean", **more}


def alone(function, inputs):
    return {"world_size": 2, "inputs": inputs, "steps": [],
            "loss": {"call": f"python:{CODE}/layer.py:{function}", "args": ["x"]},
            "objective": "mean"}


BUFFERS, COMM = f"python:{CODE}/with-buffers.py", f"python:{CODE}/comm.py"
MEAN_OF_SQUARES = "(y * y).mean() * (rank + 1)"
SCENARIOS = {
    "setup": collective("all_reduce", f"python:{CODE}/all_reduce.py", world_size=4,
                        groups={"tp": [[0, 2], [1, 3]]}, group="tp"),
    "output": collective("all_gather", BUFFERS, dim=0),
    "output_stacked": collective("all_gather", BUFFERS),
    "outputs": collective("all_to_all", BUFFERS, splits=[[1, 3], [2, 2]]),
    "output_of_chunks": collective("reduce_scatter", BUFFERS),
    "gather_list": collective("gather", BUFFERS, dim=0, root=1),
    "scatter_list": collective("scatter", BUFFERS, root=1),
    "written_out": collective(
        "all_gather", f"all_gather={COMM}:_AllGather.apply(torch.cat([x for _ in '+@'[:1]]))",
        dim=0),
    "written_out_waited": collective(
        "all_reduce", f"all_reduce={COMM}:all_reduce(x, {{'a,': async_op}}['a,'])@async"),
    "written_out_output": collective(
        "all_gather", f"all_gather={BUFFERS}:_AllGather.apply(x, output, group)", dim=0),
    "checkpoint": collective("all_gather", COMM + "@checkpoint", dim=0),
    "reentrant": collective("all_gather", COMM + "@checkpoint-reentrant", dim=0),
    "autocast": collective("all_gather", COMM + "@autocast", operand="torch.outer(x, x) @ x", dim=0,
                           dtype="float32"),
    "async": collective("all_reduce", COMM + ":all_reduce@async"),
    "async_output": collective("reduce_scatter", BUFFERS + "@async"),
    "async_in_place": collective("all_reduce", "python:in_place@async", op="max"),
    "async_exchange": collective("all_to_all", "python:in_place@async", splits=[[1, 3], [2, 2]]),
    "async_messages": collective("send_recv", "python:in_place@async", pairs=[[0, 1]]),
    "compile": collective("all_gather", COMM + "@compile", dim=0),
    "builtin": collective("all_reduce", "python:in_place"),
    "beside": collective("all_reduce", f"all_gather={COMM}:all_gather"),
    "torch_splits": collective("all_to_all", "python:torch.distributed.nn.functional",
                               splits=[[1, 3], [2, 2]]),
    "call": call("rows", "all_rows", dtype="float32"),
    "call_measured": call("rows"),
    "call_random": call("layer", steps=[{"leaf": {"all_gather": "y * x", "dim": 0}}],
                        loss="leaf.square().sum() + x.sum()"),
}
if LIBRARY:
    SCENARIOS["library"] = collective("all_reduce", f"all_reduce=library:{LIBRARY}:example::halved")
# What cannot be told from differences alone.
REFUSED = {
    "detached": (alone("detached", {"x": DRAWN}), "held fixed (detach() in"),
    "kinked": (alone("kinked", {"x": [0.0, 1.0]}), "the loss has a kink at this value"),
    "narrowed": (alone("narrowed", {"x": DRAWN}), "the code casts to bfloat16 in"),
    "large": (alone("square", {"x": {"random": {"shape": [200]}}}), "it has 400 elements"),
}


class OfCode(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, scenarios):
        for name, scenario in scenarios.items():
            (self.folder / f"{name}.json").write_text(json.dumps(scenario))

    def test_the_numbers_are_those_of_the_report(self):
        self.write(SCENARIOS)
        count, missing, found = scripts_on_ranks.check([str(self.folder)], shared=SHARED)
        self.assertEqual(missing, [])
        self.assertEqual(found, {}, "\n".join(f"{case}: {'; '.join(problems)}"
                                              for case, problems in found.items()))
        self.assertEqual(count, len(SCENARIOS))

    def test_the_script_stands_alone(self):
        self.write({"call_measured": SCENARIOS["call_measured"]})
        script = self.folder / "repro.py"
        subprocess.run([DISTGRAD, "repro", *SHARED, self.folder / "call_measured.json", "-o",
                        script], check=True)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300,
                              cwd="/")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"x            rank 0  \[.*<-- differs")

    def test_what_cannot_be_measured_is_reported(self):
        self.write({name: scenario for name, (scenario, _) in REFUSED.items()})
        done = subprocess.run([DISTGRAD, "repro", *SHARED, self.folder, "-o",
                               f"{self.folder}/scripts/"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), len(REFUSED), done.stderr)
        for name, (_, text) in REFUSED.items():
            self.assertTrue(any(f"{name}.json" in line and text in line for line in lines),
                            done.stderr)


if __name__ == "__main__":
    unittest.main()
