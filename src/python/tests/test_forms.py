"""Audits of functions that take, or give, more or another form than a tensor of two dimensions: the
right one passes, in every aspect that its signature allows, and the wrong one beside it is caught
and named."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
WORLDS = "1-ranks,4-ranks,5-ranks"
FORMS = Path(__file__).resolve().parent / "subjects" / "forms.py"


def run(kind, name, *options):
    return subprocess.run([DISTGRAD, "audit", f"{kind}=python:{FORMS}:{name}", "--python",
                           sys.executable, *options], capture_output=True, text=True, check=False)


def audit(kind, name, without):
    done = run(kind, name, "--json", "-", "--without", without)
    if not done.stdout:
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout)["collectives"][0]


class Forms(unittest.TestCase):
    def check(self, kind, name, wrong_rule, *aspects):
        code, row = audit(kind, name, f"{WORLDS},dtype,values,shape,strided,unequal")
        # A slice whose backward gathers is right for one loss alone.
        self.assertEqual((code, row["rule"], row["errors"]),
                         (1, "gather", []) if kind == "slice" else (0, "adjoint", []), name)
        for aspect in ("ranks", "cotangent", "graph", *aspects):
            self.assertEqual(row["aspects"][aspect]["state"], "ok", f"{name}: {aspect}")
        code, row = audit(kind, name + "_own",
                          f"{WORLDS},dtype,values,shape,groups,operand,dim,graph,root,cotangent")
        self.assertEqual(row["rule"], wrong_rule, name)
        return code

    def test_an_assertion_without_a_text_is_shown(self):
        text = " ".join(run("all_reduce", "on_gpus_only", "--op", "sum").stdout.split())
        self.assertIn("raises: AssertionError: assert x.is_cuda", text)

    def test_a_tensor_among_other_things(self):
        self.check("all_gather", "gather_and_count", "own-slice", "groups")
        self.check("all_gather", "gather_as_dict", "own-slice", "groups")

        self.check("all_gather", "gather_and_copy", "own-slice", "groups")

    def test_a_list_with_the_operand_in_its_own_place(self):
        without = f"{WORLDS},dtype,values,shape,operand,dim"
        code, row = audit("all_gather", "gather_around_own", without)
        self.assertEqual((code, row["right_for"], row["rule"], row["errors"]),
                         (1, ["replicated"], "own-slice", []))
        code, row = audit("all_gather", "gather_around_own_own", without)
        self.assertEqual((code, row["right_for"]), (1, []))

    def test_labels_beside_the_tensor(self):
        self.check("all_gather", "gather_with_labels", "own-slice", "groups")

    def test_four_dimensions(self):
        self.check("all_gather", "gather_heads", "own-slice", "groups")

    def test_the_last_dimension(self):
        self.check("all_gather", "gather_last", "own-slice", "groups", "dim")
        self.assertEqual(self.check("slice", "slice_last", "wrong-slice", "groups", "dim"), 1)

    def test_a_group_of_its_own_that_is_not_there(self):
        self.check("all_gather", "gather_in_a_group", "own-slice", "groups")

    def test_a_group_of_its_own_that_is_missed_in_backward(self):
        without = f"{WORLDS},dtype,values,shape,operand,cotangent,graph"
        code, row = audit("copy", "enter", without)
        self.assertEqual((code, row["right_for"], row["signature"]), (1, ["replicated"], "I->R"))
        code, row = audit("copy", "enter_own", without)
        self.assertEqual((code, row["right_for"]), (0, ["sum", "mean"]))

    def test_an_exchange_that_gives_another_shape(self):
        for name in ("exchange_stacked", "exchange_flat"):
            self.assertEqual(self.check("all_to_all", name, "wrong-slice", "groups", "operand"), 1)

    def test_a_buffer_that_is_filled_off_root(self):
        self.assertEqual(self.check("scatter", "scatter_pieces", "wrong-slice"), 1)

    def test_hints_that_can_be_pasted(self):
        for kind, name, words in (("all_gather", "Comm.all_gather",
                                   "forms.Comm(...).all_gather(x, bits=...)"),
                                  ("all_gather", "with_axis_text",
                                   "forms.with_axis_text(x, axis=..., bits=...)"),
                                  ("all_gather", "with_axis_group",
                                   "forms.with_axis_group(x, axis=group, bits=...)")):
            done = run(kind, name)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
