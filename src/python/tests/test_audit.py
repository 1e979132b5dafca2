"""Audits through the driver that $DISTGRAD names: what is wrong is found and named, what is right
passes."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
SUBJECTS = Path(__file__).resolve().parent / "subjects"
HOPELESS = SUBJECTS / "hopeless.py"
AUDITED = SUBJECTS / "audited.py"
MATERIAL = SUBJECTS.parents[3] / "tests" / "steps" / "measured_material.py"
FORMS = ("list", "tuple", "cat", "last")  # audited.FORMS
ASPECTS = ("dim", "dtype", "shape", "groups", "cotangent", "graph", "operand")


def run(*arguments, **environment):
    return subprocess.run([DISTGRAD, *map(str, arguments), "--python", sys.executable],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})


def audited(subject, *options, **environment):
    """(exit code, the JSON)."""
    done = run("audit", subject, "--json", "-", *options, **environment)
    if not done.stdout:
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout)


def audit(subject, *options, **environment):
    """(exit code, the first collective's row of the JSON)."""
    code, answer = audited(subject, *options, **environment)
    return code, answer["collectives"][0]


def only(*aspects, ranks=(2, 3)):
    """The options for these aspects beside the plain cases on so many ranks: what a test does not
    look at would only take time."""
    left_out = [aspect for aspect in ASPECTS if aspect not in aspects]
    return "--without", ",".join(left_out + [f"{n}-ranks" for n in range(1, 6) if n not in ranks])


class Audit(unittest.TestCase):
    def test_what_always_raises_is_asked_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            calls = Path(folder) / "calls"
            code, row = audit(f"all_reduce=python:{HOPELESS}:raises_in_backward", CALLS=str(calls))
            self.assertEqual((code, row["offered"], row["rule"]),
                             (1, True, "it raises in backward"))
            self.assertIn("on rank", row["errors"][0])
            self.assertIn("in backward (2-ranks): KeyError: 'bucket 7'", row["errors"][0])
            # World sizes, a call for each op, since no parameter takes one
            self.assertEqual(sorted(calls.read_text().split()), ["2"] * 5 + ["3"] * 5)

    def test_what_works_along_the_last_dim_alone_is_handed_its_operand_so(self):
        code, row = audit(f"all_gather=python:{HOPELESS}:along_one")
        self.assertEqual((code, row["right_for"]), (0, ["sum", "mean"]))
        self.assertEqual((row["aspects"]["ranks"]["state"], row["aspects"]["dim"]["state"]),
                         ("ok", "ok"))

    def test_a_function_without_a_dim_is_not_broken_by_another_dim(self):
        code, row = audit(f"python:{HOPELESS}:reduce_scatter", *only("dim"))
        self.assertEqual((code, row["errors"], row["aspects"]["dim"]["state"]),
                         (0, [], "partly refused"))
        self.assertIn("has no parameter for the dimension and raises", row["refused"][0])

    def test_a_backward_that_forgets_to_swap_the_sizes_is_wrong(self):
        code, row = audit(f"all_to_all=python:{AUDITED}:exchange", *only("shape", "groups"))
        self.assertEqual((code, row["right_for"], row["errors"]),
                         (0, ["sum", "mean", "replicated"], []))
        code, row = audit(f"all_to_all=python:{AUDITED}:exchange_back_the_same_way",
                          *only("shape", "groups"))
        self.assertEqual((code, row["wrong"]), (1, True))
        self.assertEqual(row["aspects"]["shape"]["state"], "WRONG")
        self.assertEqual(row["aspects"]["groups"]["state"], "ok")

    def test_what_goes_to_several_ranks_is_added_up_unless_it_is_for_rings_alone(self):
        for function, code, state in (("send", 0, "ok"), ("send_around", 0, "refused"),
                                      ("send_around_and_wait", 0, "refused"),
                                      ("send_and_keep_the_last_gradient", 1, "WRONG")):
            got, row = audit(f"send_recv=python:{AUDITED}:{function}", *only())
            self.assertEqual((got, row["wrong"], row["aspects"]["root"]["state"]),
                             (code, code == 1, state), function)

    def test_a_wrong_line_shows_the_formula_of_a_case_that_fails(self):
        for function, formula in (("wrong_in_subgroups", "x̄_r = ȳ_r"),
                                  ("wrong_for_odd_shapes", "x̄_r = 5 Σ_k ȳ_k")):
            code, row = audit(f"all_reduce=python:{AUDITED}:{function}", "--op", "sum",
                              *only("groups", "shape"))
            self.assertEqual((code, row["wrong"]), (1, True), function)
            self.assertEqual(row["measured"]["formula"], formula, function)
            self.assertEqual(row["measured"]["right"], "x̄_r = Σ_k ȳ_k", function)

    def test_a_line_that_breaks_in_an_aspect_alone_keeps_its_formula(self):
        code, row = audit(f"all_reduce=python:{AUDITED}:cut_off_backward", "--aspects",
                          "double-backward")
        self.assertEqual((code, row["rule"]), (1, "adjoint, but not in double-backward"))
        self.assertEqual(row["measured"]["formula"], "x̄_r = Σ_k ȳ_k")

    def test_a_parallel_region_is_entered_in_every_aspect(self):
        code, row = audit(f"copy=python:{AUDITED}:enter", "--strict", "--objective", "replicated")
        self.assertEqual((code, row["right_for"], row["rule"]), (0, ["replicated"], "sum-to-all"))
        for aspect in ("groups", "dtype", "shape", "cotangent", "operand", "graph"):
            self.assertGreater(row["aspects"][aspect]["judged"], 0, aspect)
        code, row = audit(f"copy=python:{AUDITED}:enter_the_world", *only("groups"))
        self.assertEqual((code, row["wrong"]), (1, True))
        self.assertEqual((row["aspects"]["ranks"]["state"], row["aspects"]["groups"]["state"]),
                         ("ok", "WRONG"))

    def test_a_cotangent_that_is_overwritten_is_seen(self):
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_over_cotangent", "--op", "sum",
                          *only("cotangent"))
        self.assertEqual((code, row["rule"]), (1, "stale-or-aliased"))
        self.assertEqual(row["aspects"]["cotangent"]["right"],
                         row["aspects"]["cotangent"]["tried"] - 2)

    def test_a_gradient_that_the_next_backward_overwrites_is_seen(self):
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_into_one_buffer", "--op", "sum",
                          *only("cotangent", "graph"))
        self.assertEqual((code, row["rule"]), (1, "stale-or-aliased"))
        self.assertEqual((row["aspects"]["graph"]["right"], row["aspects"]["graph"]["tried"]),
                         (2, 3))
        self.assertIn("one buffer", row["explanation"])
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_over_one_buffer", "--op", "sum",
                          *only("cotangent", "graph"))
        self.assertEqual((code, row["aspects"]["graph"]["state"]), (0, "ok"))

    def test_a_cotangent_that_is_overwritten_where_one_loss_is_computed_is_named(self):
        code, row = audit(f"copy=python:{AUDITED}:enter_over_cotangent", *only("cotangent"))
        self.assertEqual((code, row["wrong"]), (1, True))
        self.assertEqual(row["rule"], "stale-or-aliased", row["explanation"])

    def test_a_detour_over_a_narrower_dtype_is_named_where_one_loss_is_computed(self):
        code, row = audit(f"copy=python:{AUDITED}:enter_in_float32",
                          *only("groups", "cotangent", "operand", "graph"))
        self.assertEqual((code, row["rule"]), (1, "precision"), row["explanation"])
        self.assertIn("by no more than float32 rounds", row["explanation"])
        self.assertEqual(row["measured"]["formula"], "x̄_r = Σ_k ȳ_k")

    def test_an_operand_that_is_written_into_is_seen(self):
        for name in ("sum_into_operand", "sum_into_data"):
            code, row = audit(f"all_reduce=python:{AUDITED}:{name}", "--op", "sum",
                              *only("operand"))
            self.assertEqual((code, row["rule"]), (1, "adjoint, but it writes into its operand"),
                             name)
            self.assertEqual(row["aspects"]["operand"]["state"], "WRONG")
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_of_a_clone", "--op", "sum",
                          *only("operand"))
        self.assertEqual((code, row["aspects"]["operand"]["state"]), (0, "ok"))
        for name, words in (("sum_in_place", "returned None, so that"),
                            ("sum_and_return_operand", "it returns its operand")):
            # Its verdict is not asked for: dist.all_reduce of an operand that is not contiguous is
            # undefined.
            _, row = audit(f"all_reduce=python:{AUDITED}:{name}", "--op", "sum",
                           *only("operand"))
            self.assertIn(words, "".join(row["refused"]))

    def test_shares_of_the_gradient_of_what_all_ranks_hold(self):
        for name in ("hand_on_rank_0", "hand_on_parts"):
            code, row = audit(f"copy=python:{AUDITED}:{name}",
                              *only("groups", "cotangent", "operand", "graph"))
            self.assertEqual((code, row["right_for"], row["signature"], row["rule"]),
                             (0, ["shares"], "R->I", "adjoint"), name)
            for aspect in ("groups", "cotangent", "operand", "graph"):
                self.assertEqual(row["aspects"][aspect]["state"], "ok", f"{name}: {aspect}")
        code, row = audit(f"copy=python:{AUDITED}:hand_on_too_much", *only(ranks=(3,)))
        self.assertEqual((code, row["wrong"], row["right_for"]), (1, True, []))

    def test_a_forward_that_reads_memory_is_told_apart_from_a_wrong_one(self):
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_of_memory", "--op", "sum",
                          *only("operand"))
        self.assertEqual((code, row["rule"]), (1, "contiguity"))
        self.assertIn("transposed-operand", row["explanation"])
        self.assertEqual((row["right_for"], row["measured"]["formula"]),
                         ([], "x̄_r = Σ_k ȳ_k"), "of the cases that are right")
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_of_values", "--op", "sum",
                          *only("operand"))
        self.assertEqual((code, row["aspects"]["operand"]["state"]), (0, "ok"))

    def test_a_cotangent_may_lie_otherwise_on_one_rank_alone(self):
        options = "--op", "sum", *only("cotangent", ranks=(3,))
        for name in ("sum_of_contiguous_cotangents", "sum_of_values"):
            code, row = audit(f"all_reduce=python:{AUDITED}:{name}", *options)
            self.assertEqual((code, row["aspects"]["cotangent"]["state"]), (0, "ok"), name)
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_of_cloned_cotangents", *options)
        self.assertEqual((code, row["rule"], row["right_for"]), (1, "contiguity", []))
        cell = row["aspects"]["cotangent"]
        self.assertEqual((cell["state"], cell["right"]), ("WRONG", cell["judged"] - 1))
        self.assertIn("which is not contiguous on rank 0. Collectives take tensors in the",
                      row["explanation"])
        # The other ranks wait for the one that raises, and the case ends.
        code, row = audit(f"all_reduce=python:{AUDITED}:sum_of_viewed_cotangents", *options)
        self.assertEqual((code, row["rule"]), (1, "adjoint, but it raises in backward"))
        self.assertIn("view size is not compatible", row["explanation"])

    def test_a_cotangent_arrives_as_it_lies_in_whatever_form_the_result_is(self):
        names = {"all_gather": [(f"gather_{form}", f"gather_memory_{form}") for form in FORMS],
                 "all_to_all": [("swap", "swap_memory")]}
        options = only("cotangent", ranks=(3,))
        for kind, functions in names.items():
            for right, wrong in functions:
                code, row = audit(f"{kind}=python:{AUDITED}:{right}", *options)
                self.assertEqual((code, row["aspects"]["cotangent"]["state"]), (0, "ok"), right)
                code, row = audit(f"{kind}=python:{AUDITED}:{wrong}", *options)
                self.assertEqual((code, row["rule"]), (1, "contiguity"), wrong)
                self.assertEqual(row["aspects"]["cotangent"]["state"], "WRONG", wrong)

    def test_the_objectives_are_those_of_run(self):
        for objective in ("sum", "mean", "replicated"):
            code, answer = audited("reference", "--objective", objective, "--collective",
                                   "all_gather,reduce_scatter", "--op", "sum,max")
            self.assertEqual((code, answer["summary"]["wrong"], answer["summary"]["offered"]),
                             (0, 0, 3), objective)

    def test_what_the_formulas_rest_on(self):
        text = " ".join(run("audit", f"all_reduce=python:{AUDITED}:product", "--op", "product",
                            *only(ranks=(3,))).stdout.split())
        self.assertIn("x̄_0[0,0] is not finite; x̄_0[0,1] = 0;", text)
        self.assertIn("Measured on 3 ranks with a basis of 54 cotangents and 4 random ones. ", text)
        text = " ".join(run("audit", "reference", "--collective", "all_gather,reduce_scatter",
                            "--op", "sum", *only(ranks=(3,))).stdout.split())
        self.assertRegex(text, r"The first line was measured on 3 ranks with .*; --json has the"
                         " numbers of the others")

    def test_an_average_in_backward_is_ddps_division_once_more(self):
        code, row = audit(f"all_reduce=python:{AUDITED}:divided", "--op", "sum", *only())
        self.assertEqual((code, row["right_for"], row["wrong_for"]),
                         (1, ["replicated"], ["sum", "mean"]))
        self.assertEqual(audit(f"all_reduce=python:{AUDITED}:divided", "--op", "sum", "--objective",
                               "mean", *only())[0], 1)
        with tempfile.TemporaryDirectory() as folder:
            subject = f"all_reduce=python:{AUDITED}:divided"
            run("audit", subject, "--op", "sum", "--objective", "mean", "--world-size", "3",
                "--battery", folder)
            self.assertEqual(run("run", "--allow-code", f"{folder}/3-ranks.json").returncode, 1)
            self.assertIn('"objective": "mean"', Path(folder, "3-ranks.json").read_text())

    def test_a_function_that_takes_no_op_is_audited_as_what_it_computes(self):
        right = "adjoint", ["sum", "mean"]
        for name, op, rule, right_for in (("mean", "avg", *right), ("maximum", "max", *right),
                                          ("mean_of_a_sum", "avg", "forgotten-op", []),
                                          ("half", "sum", "forward", []),
                                          ("total", "sum", *right)):
            with self.subTest(name):
                _, answer = audited(f"all_reduce=python:{SUBJECTS}/one_op.py:{name}",
                                    *only(ranks=(1, 2, 3)))
                offered = [row for row in answer["collectives"] if row["offered"]]
                self.assertEqual([(row["op"], row["rule"], row["right_for"]) for row in offered],
                                 [(op, rule, right_for)])

    def test_every_function_of_a_file_is_tried(self):
        code, answer = audited(f"python:{SUBJECTS}/two_gathers.py", *only())
        rows = {row["function"].rpartition(":")[2]: row for row in answer["collectives"]}
        self.assertEqual(list(rows), ["all_gather_with_grad", "GatherLayer"])
        self.assertEqual((rows["all_gather_with_grad"]["right_for"],
                          rows["GatherLayer"]["right_for"]), (["sum", "mean"], ["replicated"]))
        self.assertEqual(code, 1)
        self.assertIn("what to pass for `bits` is not known", answer["unusable"][0])
        self.assertRegex(answer["unusable"][1], "Pooled: its name does not say which")
        self.assertEqual(len(answer["unusable"]), 2)
        self.assertIn("broadcast", answer["lacking"])
        self.assertNotIn("all_gather", answer["lacking"])
        self.assertEqual(audited(f"python:{SUBJECTS}/two_gathers.py", "--strict", *only())[0], 1)

    def test_a_single_function_is_audited_and_not_the_reference_besides(self):
        code, answer = audited(f"python:{SUBJECTS}/two_gathers.py:all_gather_with_grad", *only())
        self.assertEqual([row["collective"] for row in answer["collectives"]], ["all_gather"])
        self.assertEqual(answer["lacking"], [])

    def test_the_users_mistakes(self):
        two_gathers = f"python:{SUBJECTS}/two_gathers.py"
        for arguments, words in (
                ([two_gathers, "--collective", "all_reduce"], "what to pass for `bits`"),
                ([f"python:{SUBJECTS}/no_such_file.py"], "no such file"),
                ([f"all_gather={two_gathers}:GatherLayer", "--collective", "reduce"],
                 "runs other collectives"),
                (["torch_nn", "--without", "shapes"], "did you mean \"shape\""),
                (["torch_nn", "--op", "maximum"], "unknown \"maximum\""),
        ):
            done = run("audit", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(words, done.stderr)

    def test_strict_and_what_is_left_out(self):
        gather = f"all_gather=python:{SUBJECTS}/two_gathers.py:all_gather_with_grad"
        few = only("groups", ranks=(2, 4, 5))
        code, answer = audited(gather, *few)
        self.assertEqual((code, answer["summary"]["tried_in_part"]), (0, 1))
        done = run("audit", gather, "--strict", *few)
        self.assertEqual(done.returncode, 1)
        self.assertIn("strict: not everything was tried", done.stdout)
        code, answer = audited(gather, "--strict", *only())
        self.assertEqual((code, answer["summary"]["tried_in_part"]), (0, 0))
        code, _ = audited(f"all_gather=python:{SUBJECTS}/two_gathers.py:GatherLayer", "--strict",
                          *only())
        self.assertEqual(code, 1, "it is wrong for DistributedDataParallel")


class Clock(unittest.TestCase):
    SCENARIO = {"world_size": 2, "inputs": {"x": [1.0, 2.0]}, "steps": [{"y": {"all_reduce": "x"}}],
                "loss": "(y * y).sum()", "objective": "sum"}

    def run_with(self, name, *scenarios):
        with tempfile.TemporaryDirectory() as folder:
            for i, more in enumerate(scenarios or ({},)):
                Path(folder, f"{i}.json").write_text(json.dumps({**self.SCENARIO, **more}))
            return run("run", folder, "--timeout", "6", "--subject",
                       f"all_reduce=python:{SUBJECTS}/slow.py:{name}")

    def test_a_sum_that_breaks_along_another_dim_is_no_other_op(self):
        # It cuts along dim 0 alone, and evenly, without asking whether it can.
        code, answer = audited(f"reduce_scatter=python:{MATERIAL}:ReduceScatter.apply",
                               *only("dim"))
        self.assertEqual(code, 0, answer)
        self.assertEqual([row["op"] for row in answer["collectives"] if row["offered"]], ["sum"])

    def test_import_and_setup_are_no_part_of_a_case(self):
        done = self.run_with("all_reduce")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_collective_that_hangs_is_still_seen(self):
        done = self.run_with("all_reduce_that_hangs")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("not done after 6 s", done.stdout)


if __name__ == "__main__":
    unittest.main()
