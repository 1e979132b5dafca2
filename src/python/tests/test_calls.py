"""Programs with calls of the user's code, through the executable: verdicts, reasons, failures, bad
input."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
CALLS = Path(__file__).resolve().parent / "calls"

INPUTS = {
    "x": {"by_rank": [[1.0, 0.0, 1.0, 2.5], [1.75, 0.0, 1.75, 1.25]]},
    "w": [2.0, 0.5, -1.25, 3.0],
}

# Right programs, and a part of the reason that is given where derivative and intent differ; None:
# they match.
RIGHT = {
    "plain": None,
    "cancellation": None,
    "near_an_optimum": None,
    "logs": None,
    "dropout": None,
    "stop_gradient_target": "detach() in right.py",
    "no_grad_statistics": "no_grad in right.py",
    "no_grad_gather": "a collective under no_grad in right.py",
    "straight_through_round": "detach() in right.py",
    "quantizer": "_Quantized",
    "relu_at_zero": "kink at this value: its slope is 0 below and 2 above",
    "max_at_a_tie": "kink",
    "clamp_at_the_boundary": "kink",
    "routing": "kink",
    "where_at_a_tie": "kink",
    "sorted_ties": "kink",
    "gradient_scaling": "detach() in right.py",
    "gradient_reversal": "_Reversed",
    "guarded_log": "jumps",
    "number_as_scale": ".item() in right.py",
    "median": "kink",
    "running_mean": "two runs of the forward differ",
    "own_noise": "two runs of the forward differ",
    "ignores": "detach() in right.py",
    "scaling_hook": "but for a hook that changes the gradient: register_hook in right.py",
    "clipping_hook_beside_detach": "register_hook in right.py",
    "module_hook": "register_full_backward_hook in right.py",
    "reducing_hook": None,
    "looking_hooks": None,
    "detach_in_a_reentrant_checkpoint": "detach() in right.py",
    "dtensor": None,
    "squares_in_float32": None,
    "rms_norm": None,
    "cross_entropy_in_float32": None,
    "float32_buffer": None,
    "through_bfloat16": None,
    "autocast": None,
    "gathers_into_buffers": "too noisy at this value: it is rounded to float32 in right.py",
}

WRONG = ["identity_backward", "own_slice", "in_place", "simcse", "summed_twice",
         "identity_beside_detach", "identity_beside_ste", "identity_beside_a_function",
         "identity_beside_relu_at_zero", "identity_beside_a_hook",
         "identity_beside_a_function_and_a_look", "reducing_hook_that_averages",
         "identity_in_float32", "identity_before_a_norm_in_float32", "identity_through_bfloat16",
         "identity_that_asks_for_float32", "identity_beside_more_in_bfloat16"]


def scenario(call, simulate=None, inputs=INPUTS, loss="(y * y).sum()", **more):
    step = {"call": call, "args": ["x", "w"]}
    if simulate:
        step["simulate"] = simulate
    return {"world_size": 2, "inputs": inputs, "steps": [{"y": step}], "loss": loss,
            "objective": "sum", **more}


class Calls(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("right.py", "wrong.py", "joint.py", "broken.py"):
            (self.folder / name).symlink_to(CALLS / name)

    def enterContext(self, context):  # of Python 3.11
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def write(self, name, content):
        (self.folder / f"{name}.json").write_text(json.dumps(content))

    def run_all(self, *options, allow=True, timeout="100"):
        """(exit code, cases of the report by name, standard error)."""
        report = self.folder / "report.txt"
        command = [DISTGRAD, "run", str(self.folder), "--python", sys.executable, "--json",
                   str(report), "--timeout", timeout]
        # From elsewhere: files are sought beside the scenario.
        done = subprocess.run(command + ["--allow-code"] * allow + list(options), cwd="/",
                              capture_output=True, text=True)
        cases = json.loads(report.read_text())["cases"] if report.exists() else []
        report.unlink(missing_ok=True)
        by_name = {case["name"] + (":" + case["dtype"] if "dtype=" in case["id"] else ""): case
                   for case in cases}
        return done.returncode, by_name, done.stdout + done.stderr

    def test_right_programs_match_or_are_disputed(self):
        for name in RIGHT:
            self.write(name, scenario(f"python:right.py:{name}"))
        self.write("float32",
                   scenario("python:right.py:plain", dtype=["float32", "bfloat16", "float16"]))
        self.write("asks", scenario("python:right.py:asks_for_float32"))
        self.write("narrow", scenario("python:right.py:rms_norm", dtype=["float32", "bfloat16"]))
        code, cases, output = self.run_all()
        self.assertEqual(code, 0, output)
        for name, reason in RIGHT.items():
            case = cases[name]
            with self.subTest(name):
                self.assertEqual(case["verdict"], "match" if reason is None else "disputed",
                                 case.get("why"))
                self.assertIn(reason or "", case.get("why", ""))
        for dtype in ("float32", "bfloat16", "float16"):
            self.assertIn(cases[f"float32:{dtype}"]["verdict"], ("match", "disputed"))
        # How noisy differences are depends on the values
        for name in ("asks", "narrow:float32", "narrow:bfloat16"):
            self.assertIn(cases[name]["verdict"], ("match", "disputed"), cases[name])
        # With the element.
        self.assertIn("x[0] on rank 0: the gradient is 48, the slope of the objective",
                      cases["straight_through_round"]["why"])

    def test_mistakes_are_mismatches(self):
        for name in WRONG:
            self.write(name, scenario(f"python:wrong.py:{name}"))
        code, cases, output = self.run_all()
        self.assertEqual(code, 1, output)
        for name in WRONG:
            with self.subTest(name):
                self.assertEqual(cases[name]["verdict"], "mismatch", cases[name].get("why"))
                self.assertTrue(cases[name]["findings"])
                self.assertIsNotNone(cases[name]["gradients"]["x"]["first_difference"])
        # Held against what the user means: the straight-through gradient, of which this is a half.
        self.assertAlmostEqual(
            cases["identity_beside_ste"]["gradients"]["x"]["truth"]["by_rank"][0][0], 48, places=6)

    def test_roundings_of_narrow_dtypes_hide_no_factor(self):
        simulate = "python:wrong.py:sum_of_all"
        self.write("cast", scenario("python:wrong.py:most_through_bfloat16"))
        for name, more in (("measured", {}), ("simulated", {"simulate": simulate})):
            self.write(name, scenario("python:wrong.py:most", dtype="bfloat16", **more))
            self.write(name + "_by_rank",
                       scenario("python:wrong.py:most_by_rank", dtype="bfloat16", **more))
        self.write("float32", scenario("python:wrong.py:more_in_float32", dtype="float32"))
        code, cases, output = self.run_all()
        self.assertEqual(code, 1, output)
        texts = {name: [f["text"] for f in case["findings"]] for name, case in cases.items()}
        for name, case in cases.items():
            with self.subTest(name):
                self.assertEqual(case["verdict"], "mismatch", case)
                self.assertEqual(any("a run in float64" in note for note in case.get("notes", [])),
                                 name != "float32", case)
        for name in ("cast", "measured", "simulated"):
            self.assertIn("4/5 of the truth on every rank", " ".join(texts[name]))
        for name in ("measured_by_rank", "simulated_by_rank"):
            self.assertNotIn("of the truth on every rank", " ".join(texts[name]))

    def test_a_simulation_without_a_graph_is_no_truth(self):
        self.write("cut_off", scenario("python:right.py:plain", "python:joint.py:cut_off"))
        _, cases, output = self.run_all()
        self.assertEqual(cases["cut_off"]["verdict"], "error", output)
        self.assertIn("joint.py:cut_off returned results without a graph", str(cases["cut_off"]))

    def test_what_writes_into_an_argument_that_others_use_is_told(self):
        case = scenario("python:wrong.py:overwrites", loss="(y * y * u).sum()")
        case["steps"] = [{"u": "x * w"}, {"y": {**case["steps"][0]["y"], "args": ["u", "w"]}}]
        self.write("used", case)
        self.write("unwritten", scenario("python:right.py:plain"))
        _, cases, _ = self.run_all()
        texts = {name: [w["text"] for w in case["warnings"]] for name, case in cases.items()}
        self.assertIn("wrong.py:overwrites writes into its argument 0, a copy: other steps that use"
                      " that tensor do not see it here", " ".join(texts["used"]))
        self.assertEqual(texts["unwritten"], [])

    def test_no_gradient_passes_for_roundings_of_many_steps_and_ranks(self):
        case = scenario("python:wrong.py:nothing_through_bfloat16", world_size=4,
                        inputs={"x": {"random": {"shape": [3], "kind": "normal"}}, "w": 1.0})
        case["steps"][:0] = [{f"t{i}": "x * 1"} for i in range(14)]
        self.write("nothing", case)
        _, cases, output = self.run_all()
        self.assertEqual(cases["nothing"]["verdict"], "mismatch", output)
        self.assertNotIn(True, cases["nothing"]["gradients"]["x"]["matches"].values())

    def test_cotangents_in_another_dtype_are_named_where_the_numbers_show_it(self):
        inputs = {"x": {"by_rank": [[1.1, 2.3, 0.77], [0.3, 0.71, 1.9]]},
                  "w": [0.123, 0.456, 0.789]}
        names = ["reduced_in_bfloat16", "reduced_in_bfloat16_and_multiplied"]
        for name in names:
            self.write(name, scenario(f"python:wrong.py:{name}", inputs=inputs))
        _, cases, output = self.run_all()
        found = [[(f["rule"], f["step"]) for f in cases[name]["findings"]] for name in names]
        self.assertEqual(found, [[("precision", "y")], [("unexplained", "y")]], output)

    def test_behind_cases_that_imported_the_same_module(self):
        """These leave ranks with names for Function.apply that nobody watches: the program with a
        call gets other ranks."""
        (self.folder / "uses.py").write_text(
            "from right import all_sum, quantized\n\n\n"
            "def quantizer(x, w):\n    return all_sum(quantized(x) * w)\n")
        # So many that they have begun before the other's truth is measured
        names = [f"a{i}" for i in range(200)]
        for name in names:
            self.write(
                name, {"world_size": 2, "inputs": INPUTS, "steps": [{"y": {"all_reduce": "x * w"}}],
                       "loss": "(y * y).sum()", "objective": "sum",
                       "subjects": {f"all_reduce=python:{self.folder}/uses.py:all_sum": "match"}})
        self.write("quantizer", scenario("python:uses.py:quantizer"))
        code, cases, output = self.run_all()
        self.assertEqual([cases[name]["verdict"] for name in [*names, "quantizer"]],
                         ["match"] * 200 + ["disputed"], output)
        self.assertIn("_Quantized", cases["quantizer"]["why"])

    def test_the_truth_of_a_simulation(self):
        self.write("right", scenario("python:right.py:plain", "python:joint.py:plain",
                                     dtype=["float64", "float32", "bfloat16", "float16"]))
        self.write("narrow", scenario("python:right.py:squares_in_float32",
                                      "python:joint.py:squares_in_float32"))
        self.write("wrong", scenario("python:wrong.py:identity_backward",
                                     "python:joint.py:all_sum"))
        self.write("forward", scenario("python:right.py:plain", "python:joint.py:all_sum"))
        self.write("mixed", {**scenario("python:right.py:plain", "python:joint.py:plain",
                                        loss="(z * z).sum()"),
                             "steps": [{"y": {"call": "python:right.py:plain", "args": ["x", "w"],
                                              "simulate": "python:joint.py:plain"}},
                                       {"z": {"all_gather": "y * (rank + 1)", "dim": 0}}]})
        single_device = {"steps": [{"t": "torch.tanh(x[0] * w[0] + x[1] * w[1])"}],
                         "loss": "2.0 * (t * t).sum()"}
        self.write("guards", scenario("python:right.py:plain", "python:joint.py:plain",
                                      single_device=single_device))
        code, cases, output = self.run_all()
        self.assertEqual(code, 1, output)
        for dtype in ("float64", "float32"):
            self.assertEqual(cases[f"right:{dtype}"]["verdict"], "match",
                             cases[f"right:{dtype}"].get("why"))
        for dtype in ("bfloat16", "float16"):  # in which tanh saturates: no accusation
            self.assertIn(cases[f"right:{dtype}"]["verdict"], ("match", "disputed"))
        self.assertEqual([f["rule"] for f in cases["wrong"]["findings"]][0], "objective")
        self.assertEqual([f["rule"] for f in cases["forward"]["findings"]][0], "forward")
        self.assertEqual(cases["narrow"]["verdict"], "match", cases["narrow"].get("why"))
        self.assertEqual(cases["mixed"]["verdict"], "match")
        self.assertEqual(cases["guards"]["verdict"], "match", cases["guards"]["findings"])

    def two_calls(self, first, second, simulates=True):
        """x -> y -> z, where the loss takes y as well, with rank-dependent losses on 3 ranks."""
        joint = {"right.py:plain": "joint.py:plain",
                 "wrong.py:identity_backward": "joint.py:all_sum"}

        def call(code, value):
            step = {"call": "python:" + code, "args": [value, "w"]}
            return {**step, "simulate": "python:" + joint[code]} if simulates else step

        random = {"random": {"shape": [2, 3], "kind": "normal"}}
        return {"world_size": 3, "inputs": {"x": random, "w": {**random, "layout": "replicate"}},
                "steps": [{"y": call(first, "x")}, {"v": "y * 2 + x"}, {"z": call(second, "y")}],
                "loss": "((rank + 1) * (z * z + v)).sum()", "objective": "sum"}

    def test_the_call_whose_backward_is_wrong_is_named(self):
        right, wrong = "right.py:plain", "wrong.py:identity_backward"
        for simulates in (True, False):
            self.write(f"first_{simulates}", self.two_calls(wrong, right, simulates))
            self.write(f"second_{simulates}", self.two_calls(right, wrong, simulates))
        code, cases, output = self.run_all()
        self.assertEqual(code, 1, output)
        for name, case in cases.items():
            with self.subTest(name):
                step = "y" if name.startswith("first") else "z"
                found = [(f["rule"], f["step"]) for f in case["findings"]]
                self.assertEqual(found, [("unexplained", step)])
                text = case["findings"][0]["text"]
                self.assertIn(f"What arrives at step {step} is right, and what it gives is not: "
                              "look at the backward of python:", text)
                self.assertIn(f"{wrong} (step {step})", text)

    def test_explain_shows_the_way_through_calls(self):
        self.write("two", self.two_calls("right.py:plain", "wrong.py:identity_backward", False))
        done = subprocess.run([DISTGRAD, "explain", str(self.folder / "two.json"), "--allow-code",
                               "--python", sys.executable, "--full"], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        blocks = re.split(r"\n(?=  \w)", done.stdout.split("The program")[1])
        of = {block.split()[0]: block for block in reversed(blocks) if block.strip()}
        self.assertIn(">>> the cotangents part here", of["z"])
        self.assertNotIn("ranks'", of["z"])
        self.assertIn("cotangent, true", of["y"])
        self.assertIn("cotangent, ranks'", of["y"])
        self.assertNotIn(">>>", of["y"])
        # Of random inputs, too, the true gradient is the case's own.
        _, cases, _ = self.run_all()
        for number in cases["two"]["gradients"]["x"]["truth"]["by_rank"][1][0]:
            self.assertRegex(of["x"].split("gradient, ranks'")[0], f"{number:.7g}"[:8])

    def test_a_loss_may_be_a_call_and_inputs_may_be_laid_out(self):
        loss = {"call": "python:right.py:loss", "args": ["y", "rank"]}
        self.write("loss", scenario("python:right.py:plain", loss=loss))
        weights = {"x": INPUTS["x"], "w": {"value": [2.0, 0.5, -1.25, 3.0], "layout": "replicate"}}
        self.write("replicated", scenario("python:right.py:plain", inputs=weights))
        self.write("synchronised", scenario("python:right.py:plain", inputs=weights,
                                            sync={"w": "mean"}, objective="mean"))
        large = {"x": {"expr": "torch.cos(torch.arange(300) * (1.0 + rank))"},
                 "w": {"expr": "torch.sin(torch.arange(300) * 0.3)", "layout": "replicate"}}
        self.write("large", scenario("python:right.py:plain", inputs=large, dtype="float32"))
        code, cases, output = self.run_all()
        self.assertEqual(code, 0, output)
        self.assertEqual({name: case["verdict"] for name, case in cases.items()},
                         dict.fromkeys(("loss", "replicated", "synchronised", "large"), "match"))

    def test_all_objectives_that_the_gradients_are_right_for_are_told(self):
        self.write("one_loss", {"world_size": 2, "inputs": INPUTS, "steps": [], "objective": "sum",
                                "loss": {"call": "python:wrong.py:identity_backward_in_a_loss",
                                         "args": ["x", "w"]}})
        done = subprocess.run([DISTGRAD, "run", str(self.folder), "--python", sys.executable,
                               "--allow-code"], capture_output=True, text=True)  # without a report
        self.assertRegex(done.stdout, '(?s)the objective "mean" .* and "replicated" ', done.stderr)

    def test_what_breaks_costs_its_case_only(self):
        for name in ("raises", "raises_odd_text", "raises_a_book", "exits", "dies", "blocks",
                     "leaves_a_thread", "leaves_another_dtype_and_folder"):
            self.write(name, scenario(f"python:broken.py:{name}", "python:joint.py:all_sum",
                                      timeout_s=3))
        self.write("z_right", scenario("python:right.py:plain", "python:joint.py:plain"))
        code, cases, output = self.run_all(timeout="8")
        self.assertEqual(code, 3, output)
        kinds = {name: case.get("error", {}).get("kind") for name, case in cases.items()}
        self.assertEqual(kinds["raises"], "exception")
        self.assertEqual(cases["raises"]["error"]["step"], "y")
        self.assertIn("no such luck", cases["raises"]["error"]["message"])
        self.assertIn("broken.py", cases["raises"]["error"]["message"])
        self.assertEqual(kinds["exits"], "exception")
        self.assertIn("half a pair: \ufffd, and", cases["raises_odd_text"]["error"]["message"])
        self.assertNotIn("\x1b", output)
        book = cases["raises_a_book"]["error"]["message"]
        self.assertLess(len(book), 20_000)
        self.assertIn("characters left out", book)
        self.assertIn("the end", book)
        self.assertEqual(kinds["dies"], "crash")
        self.assertEqual(kinds["blocks"], "hang")
        self.assertIn("left a thread running", str(cases["leaves_a_thread"]["warnings"]))
        left = str(cases["leaves_another_dtype_and_folder"]["warnings"])
        self.assertIn("default dtype changed: torch.float32 before, torch.float16 after", left)
        self.assertIn("the current folder changed", left)
        self.assertEqual(cases["z_right"]["verdict"], "match")

    def test_bad_input_is_one_clear_line(self):
        unknown = {"y": {"call": "python:right.py:plain", "args": ["x", "ww"]}}
        lines = {
            "no_file": (scenario("python:rihgt.py:plain"), "no such file"),
            "no_name": (scenario("python:right.py:plian"), "did you mean plain?"),
            "no_tensor": (scenario("python:broken.py:gives_a_tuple", "python:joint.py:all_sum"),
                          "returned a tuple"),
            "none": (scenario("python:broken.py:none_on_rank_1", "python:joint.py:all_sum"),
                     "broken.py:none_on_rank_1 returned None; a call gives one tensor"),
            "expression": ({**scenario("python:right.py:plain"), "steps": [unknown]},
                           'unknown name "ww"; did you mean "w"?'),
            "vector_loss": (scenario("python:right.py:plain", loss="y * y"),
                            "the loss has 4 elements"),
        }
        for name, (content, _) in lines.items():
            self.write(name, content)
        code, _, output = self.run_all()
        for name, (_, text) in lines.items():
            with self.subTest(name):
                self.assertIn(text, " ".join(output.split()), output)
        self.assertIn("expression.json:1:", output)
        self.assertEqual(code, 3)  # of no_tensor and none; the others are the user's errors

    def test_code_runs_only_when_it_is_allowed(self):
        self.write("plain", scenario("python:broken.py:writes_a_file"))
        code, cases, _ = self.run_all(allow=False)
        self.assertEqual((code, cases["plain"]["verdict"]), (4, "skipped"))
        self.assertIn("--allow-code", cases["plain"]["why"])
        self.assertFalse((self.folder / "ran").exists())
        code, cases, _ = self.run_all("--subject", "torch_nn")
        self.assertEqual(cases["plain"]["verdict"], "skipped")
        self.assertIn("the ranks are Python's", cases["plain"]["why"])


if __name__ == "__main__":
    unittest.main()
