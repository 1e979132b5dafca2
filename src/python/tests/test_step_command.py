"""Tests `distgrad step`, and the files to which check_gradients' reports are written.

    DISTGRAD=build/bin/distgrad python src/python/tests/test_step_command.py
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

DISTGRAD = os.environ.get("DISTGRAD") or "distgrad"
STEPS = """
import torch
import torch.distributed as dist
from torch import nn


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor, x = factor, x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return ctx.factor * g, None


class Rows(nn.Linear):
    def forward(self, x):
        return Sum.apply(super().forward(x), self.factor)


def cut(rank, factor):
    torch.manual_seed(1)
    x, head = torch.randn(5, 4).double(), nn.Linear(3, 2).double()
    torch.manual_seed(10 + rank)
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), Rows(6, 3, bias=False), nn.Tanh()).double()
    model[2].factor = factor
    model.append(head)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return model, step


def right(rank):
    return cut(rank, 1)


def doubled(rank):
    return cut(rank, 2)


def detaches(rank):
    torch.manual_seed(3)
    x, model = torch.randn(5, 4).double(), nn.Linear(4, 4).double()

    def step():
        model.zero_grad()
        loss = (model(x) - model(2 * x).detach()).square().mean()
        loss.backward()
        return loss

    return model, step


def in_float32(rank):
    torch.manual_seed(3)
    x, model = torch.randn(5, 4), nn.Linear(4, 4)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            p.grad *= 1.02
        return loss

    return model, step


def keeps(rank):
    model, step = cut(rank, 1)
    runs = []

    def keeping():
        loss = step()
        runs.append(1)
        for p in model.parameters():
            p.grad *= len(runs)
        return loss

    return model, keeping


def no_pair():
    return nn.Linear(2, 2)


def gradients(rank):
    model, step = cut(0, 1)
    return {"w": torch.ones(3) * (1 + rank)}


def single():
    return {"w": torch.ones(3)}
"""


class StepCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "steps.py").write_text(STEPS)

    def step(self, function, *options, ranks=3):
        return subprocess.run([DISTGRAD, "step", f"{self.folder}/steps.py:{function}", "--ranks",
                               str(ranks), "--python", sys.executable, *options], cwd=self.folder,
                              capture_output=True, text=True, check=False)

    def refused(self, *options):
        """Returns the one line that a wrong command line prints."""
        done = subprocess.run([DISTGRAD, "step", *options, "--python", sys.executable],
                              cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr

    def found_in(self, sarif):
        return json.loads(sarif.read_text())["runs"][0]["results"]

    def assert_placed(self, result, line):
        """Asserts that the result points at the first such line of the user's file."""
        place = result["locations"][0]["physicalLocation"]
        self.assertEqual(place, {"artifactLocation": {"uri": "steps.py", "uriBaseId": "%SRCROOT%"},
                                 "region": {"startLine": STEPS.split("\n").index(line) + 1}})

    def test_right_wrong_and_disputed(self):
        done = self.step("right", "--objective", "replicated")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step: 5 gradients, all right, on 3 ranks (gloo), for the loss that all",
                      done.stdout)
        done = self.step("detaches", "--objective", "replicated")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 of 2 gradients disputed", done.stdout)
        self.assertEqual(self.step("detaches", "--objective", "replicated", "--strict").returncode,
                         1)
        done = self.step("detaches", "--objective", "replicated", "--strict", "--detached", "all")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_wrong_step_in_every_format(self):
        files = {name: self.folder / f"report.{name}"
                 for name in ("json", "html", "junit", "markdown", "sarif")}
        done = self.step("doubled", "--objective", "replicated",
                         *(word for name, path in files.items() for word in (f"--{name}", path)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("0.weight, 0.bias, 2.weight\n    p.grad is 2 times the derivative",
                      done.stdout)
        report = json.loads(files["json"].read_text())
        self.assertEqual(report["verdict"], "wrong")
        self.assertEqual([(place["module"], place["state"]) for place in report["places"]],
                         [("4", "right"), ("3", "right"), ("2", "right"), ("1", "wrong"),
                          ("0", "wrong")])
        cases = {case.get("name"): [child.tag for child in case] for case in
                 xml.etree.ElementTree.parse(files["junit"]).iter("testcase")}
        self.assertEqual(cases, {"steps.py:0.weight": ["failure"],
                                 "steps.py:0.bias": ["failure"],
                                 "steps.py:2.weight": ["failure"], "steps.py:4.weight": [],
                                 "steps.py:4.bias": []})
        found = self.found_in(files["sarif"])
        self.assertEqual({result["ruleId"] for result in found}, {"scaled"})
        self.assert_placed(found[0], "    def step():")
        for text in (found[0]["message"]["text"], files["junit"].read_text()):
            self.assertIn("Where:\n- Backward departs between the outputs of 2 and 1: the",
                          text)
        page = files["html"].read_text()
        self.assertIn("in the order of backward", page)
        self.assertIn("backward departs here: the cotangent is 2 times the right one", page)
        self.assertIn("steps.py:doubled --ranks 3", page, "what the user ran")
        self.assertIn("3 not as expected, of 5 parameters", files["markdown"].read_text())

    def test_a_step_in_float32_is_run_in_float64(self):
        done = self.step("in_float32", "--objective", "replicated", "--float64")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("p.grad is 1.02 times the derivative", done.stdout)

    def test_what_is_kept_from_run_to_run_has_its_own_name(self):
        done = self.step("keeps", "--objective", "replicated", "--sarif", "step.sarif")
        self.assertEqual(done.returncode, 1, done.stderr)
        results = self.found_in(self.folder / "step.sarif")
        self.assertEqual({result["ruleId"] for result in results}, {"nondeterministic"})

    def test_beside_a_single_run(self):
        sarif, junit = self.folder / "report.sarif", self.folder / "report.xml"
        done = self.step("gradients", "--single", "single", "--sarif", sarif, "--junit", junit)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("step: 1 of 1 gradient is wrong", done.stdout)
        (found,) = self.found_in(sarif)
        self.assert_placed(found, "def gradients(rank):")
        for text in (found["message"]["text"], junit.read_text()):
            self.assertIn("Where:\n- ", text)

    def test_bad_input(self):
        self.assertIn("no such file: nope.py", self.refused("nope.py:f"))
        self.assertIn("(did you mean doubled?)", self.refused("steps.py:doubld"))
        self.assertIn("\"steps.py\" is not FILE:FUNCTION", self.refused("steps.py"))
        self.assertIn("which function?", self.refused())
        self.assertIn("with `single` nothing is measured",
                      self.refused("steps.py:gradients", "--single", "single", "--copies", "w"))
        self.assertIn("give a smaller world_size", self.refused("steps.py:right", "--ranks",
                                                                "100000"))
        self.assertIn("--html - : name a file", self.refused("steps.py:right", "--html", "-"))
        self.assertIn("--ranks is a number of ranks, not 0",
                      self.refused("steps.py:right", "--ranks", "0"))
        self.assertIn("--objective \"max\": there are mean, sum, replicated",
                      self.refused("steps.py:right", "--objective", "max"))
        (self.folder / "imports.py").write_text("from steps import *")
        self.assertTrue(self.refused("imports.py:nothere", "--ranks", "2").startswith(
            "step: imports.py has no 'nothere'"))
        (self.folder / "report.json").write_text("{}")
        self.assertIn("is no report of check_gradients",
                      self.refused("--report", "report.json", "--html", "x.html"))
        done = self.step("no_pair")
        self.assertEqual(done.returncode, 3)
        self.assertIn("ranks 0, 1, 2 raised:\nTypeError: the function returned a Linear; without"
                      " `single` it is to return (model, step)", done.stderr)


if __name__ == "__main__":
    unittest.main()
