"""Tests python -m distgrad.gradcheck: exit codes, expressions for inputs, ranks of its own and of
torchrun.

    python src/python/tests/test_gradcheck_command.py
"""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest
from unittest import mock
from pathlib import Path

import torch

PACKAGE = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PACKAGE)

from distgrad.gradient_check import command  # noqa: E402
from distgrad.gradient_check.input_expressions import (  # noqa: E402
    InvalidExpression, split_name, value_of)

FILE = textwrap.dedent("""
    import glob
    import os
    import shutil
    import time
    import warnings

    import torch
    import torch.distributed as dist


    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clone()
            dist.all_reduce(y)
            return y

        @staticmethod
        def backward(ctx, g):
            g = g.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(g)
            return g


    class Wrong(Sum):
        @staticmethod
        def backward(ctx, g):
            return g


    def masked(x, mask, scale=1):
        return Sum.apply(x * mask) * scale


    class Layer(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 2)

        def forward(self, x):
            return Sum.apply(super().forward(x))


    class Scaled(Layer):
        def __init__(self, factor, power=1):
            super().__init__()
            self.factor = factor ** power

        def forward(self, x):
            return super().forward(self.factor * x)


    class Ranked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2) + dist.get_rank())

        def forward(self, x):
            warnings.warn("each rank says this")
            return Sum.apply(x * self.weight)


    def endless():
        while True:
            time.sleep(0.1)  # for ever


    def layer_inputs(rank):
        return torch.randn(rank + 1, 3, dtype=torch.float64, requires_grad=True), Layer().double()


    def with_layer(x, layer):
        return layer(x[:1])


    def target(a, b):
        return (Sum.apply(a) - b.detach()).square()


    def in_cpp(x):
        torch.ops.load_library(os.environ["EXAMPLE_OPERATORS"])
        return 2 * x + torch.ops.example.reduce_from_region(x, dist.group.WORLD.group_name)


    def printing(x):
        if dist.get_rank() == 1:
            print("a word of rank 1")
        raise RuntimeError("not today")


    def removing(rank, world_size):
        for folder in glob.glob(os.environ["TMPDIR"] + "/distgrad-*"):
            shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError("which nobody can be told")
""")


def value(text, rank=0, number=0):
    return value_of(text, number, rank, 4, torch.float64)


class Expressions(unittest.TestCase):
    def test_tensors(self):
        self.assertEqual(value("arange(6.).reshape(2, 3) + rank", 2).tolist(),
                         [[2, 3, 4], [5, 6, 7]])
        self.assertEqual(value("torch.ones(2).flip(0) * world_size").tolist(), [4, 4])
        self.assertEqual(value("randn(4, 3)").shape, (4, 3))
        self.assertEqual(value("rand(rank + 1, 2) > 0.5", 2).dtype, torch.bool)
        self.assertEqual(value("randint(5, [3])").dtype, torch.int64)
        self.assertEqual([t.tolist() for t in value("[ones(2), zeros(1)]")], [[1, 1], [0]])
        self.assertEqual(value("ones(2).float()").dtype, torch.float32)

    def test_others(self):
        self.assertIsNone(value("None"))
        self.assertEqual(value("'sum'"), "sum")
        self.assertEqual((value("3"), value("rank * 2", 2), value("True")), (3, 4, True))

    def test_random_ones_differ_by_rank_and_input(self):
        drawn = [value("randn(5)", rank, number) for rank in (0, 1) for number in (0, 1)]
        for i, x in enumerate(drawn):
            self.assertTrue(torch.equal(x, value("randn(5)", i // 2, i % 2)))
            self.assertFalse(any(torch.equal(x, y) for y in drawn[:i]))

    def test_names(self):
        self.assertEqual(split_name("mask=ones(3)"), ("mask", "ones(3)"))
        self.assertEqual(split_name("rank==0"), (None, "rank==0"))
        self.assertEqual(split_name(" ones(3)"), (None, "ones(3)"))

    def test_what_has_no_value(self):
        for text, why in (("open('x')", "name 'open' is not defined"), ("", "is empty"),
                          ("1 +", "invalid syntax"), ("randn('a')", "must be tuple of ints"),
                          ("x = 1", "invalid syntax"), ("randn(10**12)", "memory")):
            with self.subTest(text), self.assertRaisesRegex(InvalidExpression, why):
                value(text)

    def test_leaves_torch_as_it_was(self):
        before = torch.get_default_dtype(), torch.random.get_rng_state()
        value("randn(3)")
        self.assertEqual(torch.get_default_dtype(), before[0])
        self.assertTrue(torch.equal(torch.random.get_rng_state(), before[1]))


def code_of(arguments):
    try:
        return command.main(arguments)
    except SystemExit as left:
        return left.code


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        Path(cls.folder, "mine.py").write_text(FILE)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def call(self, *arguments, before=()):
        environment = dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1",
                           GLOO_SOCKET_IFNAME="lo")
        done = subprocess.run([sys.executable, "-m", *before, "distgrad.gradcheck", *arguments],
                              cwd=self.folder, capture_output=True, text=True, env=environment,
                              timeout=200)
        return done.returncode, done.stdout, done.stderr

    def test_right_with_names_and_constants(self):
        code, out, err = self.call("mine.py:masked", "--ranks", "3", "--input", "randn(2, 3)",
                                   "--constant", "rand(2, 3) > 0.5", "--input", "scale=2")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("gradcheck: right on 3 ranks (gloo, float64)", out)

    def test_wrong_as_json(self):
        code, out, _ = self.call("mine.py:Wrong", "--ranks", "2", "--input", "randn(2)", "--json",
                                 "-")
        report = json.loads(out)
        self.assertEqual(code, 1)
        self.assertEqual([f["name"] for f in report["findings"]], ["identity-backward"])
        self.assertEqual(report["findings"][0]["measured"], ["x̄_r = ȳ_r"])
        self.assertEqual(report["findings"][0]["coefficients"], [["1", "0"], ["0", "1"]])

    def test_limits_and_what_is_left_behind(self):
        Path(self.folder, "endless.py").write_text(textwrap.dedent("""
            import subprocess, time
            import torch


            def sleeps(x):
                subprocess.Popen(["sleep", "98765"], start_new_session=True)
                time.sleep(1000)
        """))
        code, _, err = self.call("endless.py:sleeps", "--ranks", "2", "--input", "ones(2)",
                                 "--total-timeout", "2")
        self.assertEqual((code, err.splitlines()[-1]),
                         (142, "gradcheck: the time of --total-timeout is over"))
        self.assertNotIn("sleep 98765", subprocess.run(["ps", "ax", "-o", "args"],
                                                       capture_output=True, text=True).stdout)
        code, _, err = self.call("endless.py:sleeps", "--input", "ones(2)", "--max-timeout", "-1")
        self.assertEqual((code, err),
                         (2, "gradcheck: --max-timeout is a number of seconds above 0, not -1\n"))

    def test_more_ranks_than_there_is_room_for(self):
        with mock.patch.dict(os.environ, DISTGRAD_MAX_MEMORY=str(600 << 20)):
            code, out, err = self.call("mine.py:Sum", "--ranks", "100", "--input", "randn(2)")
        self.assertEqual((code, out), (2, ""))
        self.assertRegex(err, r"^gradcheck: 100 ranks are more than this machine has room for, \d+"
                         r" at most: the stacks .*, and there are 600 MiB of memory; give fewer"
                         r" --ranks\n$")

    def test_no_line_is_a_command_of_the_runner(self):
        Path(self.folder, "evil.py").write_text(
            "def f(x):\n    print('::error::printed ##[error]')\n"
            "    raise ValueError('x\\n  ::error::raised \\x1b[31m \\u202e')\n")
        for arguments in (["evil.py:f", "--input", "ones(2)"],
                          ["a\n::error::b.py:f", "--input", "ones(2)"],
                          ["evil.py:f", "--input", "ones(2)\n::error::q"]):
            code, out, err = self.call(*arguments, "--ranks", "2")
            self.assertIn(code, (2, 3))
            for line in (out + err).split("\n"):
                self.assertFalse(line.lstrip().startswith("::"), line)
                self.assertNotRegex(line, "##\\[|\x1b|\u202e")
        self.assertIn("no such file: a\\n::error::b.py",
                      self.call("a\n::error::b.py:f", "--input", "ones(2)")[2])

    def test_what_an_import_raises_has_its_lines(self):
        Path(self.folder, "broken.py").write_text("import math\nraise ValueError('a\\n::b')\n\n\n"
                                                "def f(x):\n    return x\n")
        code, _, err = self.call("broken.py:f", "--ranks", "2", "--input", "1.0")
        self.assertEqual(code, 2)
        self.assertRegex(err, "^gradcheck: importing broken.py raised ValueError: a\\\\n::b\n"
                         "  File \".*/broken.py\", line 2, in <module>\n")

    def test_output_that_cannot_be_written_is_no_verdict(self):
        environment = dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1",
                           GLOO_SOCKET_IFNAME="lo")
        for more in ([], ["--json", "-"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([sys.executable, "-m", "distgrad.gradcheck", "mine.py:Sum",
                                       "--ranks", "2", "--input", "ones(2)", *more],
                                      cwd=self.folder, stdout=full, stderr=subprocess.PIPE,
                                      text=True, env=environment)
            self.assertEqual(
                (done.returncode, done.stderr),
                (2, "gradcheck: cannot write standard output: No space left on device\n"))

    def test_inputs_of_a_function_with_a_module(self):
        code, out, _ = self.call("mine.py:with_layer", "--ranks", "2", "--inputs", "layer_inputs")
        self.assertEqual(code, 0)
        self.assertIn("grad(layer.weight)_r", out)

    def test_what_it_cannot_run(self):
        mine = os.path.join(self.folder, "mine.py")
        for arguments, words in (
                ([f"{mine}:Sun", "--input", "ones(2)"], "mine.py has no 'Sun'; it has Sum"),
                (["mien.py:Sum", "--input", "ones(2)"], "no such file: mien.py"),
                ([f"{mine[:-3]}s.py:Sum", "--input", "ones(2)"],
                 "mines.py (did you mean mine.py?)"),
                (["nosuchpackage.losses:Sum", "--input", "ones(2)"],
                 "no module named 'nosuchpackage'"),
                ([f"{mine}:Scaled", "--ranks", "2", "--input", "ones(1, 3)"],
                 f"write the call out, '{mine}:Scaled(factor=...)'"),
                ([f"{mine}:Scaled(factor=1, powr=2)", "--ranks", "2", "--input", "ones(1, 3)"],
                 "unexpected keyword argument 'powr'"),
                ([f"{mine}:Sum"], "no inputs: give --input EXPR"),
                ([f"{mine}:Sum", "--input", "open('x')"],
                 "--input open('x'): name 'open' is not defined"),
                ([f"{mine}:Sum", "--input", "arange(3)"], "no input requires grad on any rank"),
                ([f"{mine}:Sum", "--input", "randn(3, dtype=complex128)"],
                 "--input randn(3, dtype=complex128) is complex: check a function of real"),
                ([f"{mine}:Sum", "--input", "ones(2)", "--ranks", "100", "--backend", "nccl"],
                 "100 ranks need a GPU each"),
                ([f"{mine}:Sum", "--input", "randn(2"], "--input randn(2: '(' was never closed"),
                ([f"{mine}:Sum", "--input", "ones(2)", "--inputs", "made"],
                 "--inputs makes all inputs"),
                ([f"{mine}:Sum", "--input", "ones(2)", "--directions", "0"],
                 "--directions is to be 1 at least"),
                ([f"{mine}:Sum", "--input", "ones(2)", "--rtol", "-1"],
                 "--rtol is to be from 0 to 1, not -1"),
                ([f"{mine}:Sum", "--input", "ones(2)", "--timeout", "-1"],
                 "--timeout is a number of seconds above 0"),
                ([f"{mine}:masked", "--ranks", "2", "--input", "ones(2)", "--input", "skale=2"],
                 "masked has no parameter 'skale'; it has x, mask, scale"),
                ([f"{mine}:Sum", "--ranks", "2", "--input", "y=ones(2)"],
                 "Sum has no parameter 'y'; it has x"),
                ([f"{mine}:Sum", "--input", "ones(2)", "--objective", "avg"],
                 "gradcheck: --objective: invalid choice: 'avg' (choose from"),
                (["Sum", "--input", "ones(2)"], "'Sum' is not FILE:FUNCTION"),
                ([f"{mine}:Sum", "--ranks", "0", "--input", "ones(2)"],
                 "--ranks is a number of ranks"),
        ):
            with self.subTest(words):
                out, err = io.StringIO(), io.StringIO()
                # The command runs in this process, so that torch is imported once.
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    code = code_of(arguments)
                self.assertEqual((code, out.getvalue()), (2, ""), err.getvalue())
                self.assertIn(words, err.getvalue())
                self.assertEqual(len(err.getvalue().strip().split("\n")), 1)

    def test_what_is_detached(self):
        arguments = ["mine.py:target", "--ranks", "2", "--input", "ones(2)", "--input", "ones(2)"]
        code, out, _ = self.call(*arguments)
        self.assertEqual((code, "gradcheck: disputed on 2 ranks" in out), (0, True), out)
        line = re.search(r"--detached (mine.py:\d+)", out)[1]
        code, out, _ = self.call(*arguments, "--strict")
        self.assertEqual((code, "gradcheck: disputed on 2 ranks" in out), (1, True), out)
        code, out, _ = self.call(*arguments, "--strict", "--detached", line)
        self.assertEqual((code, "gradcheck: right on 2 ranks" in out), (0, True), out)

    def test_what_needs_the_process_group_is_made_once_it_is_there(self):
        for name in ("Ranked", "Ranked()"):
            code, out, err = self.call(f"mine.py:{name}", "--ranks", "3", "--input", "randn(2)")
            self.assertEqual((code, "gradcheck: right on 3 ranks" in out), (0, True), out + err)
        self.assertTrue(err.startswith("rank-0, rank-1, rank-2 printed:\n"), err)
        self.assertEqual(err.count("UserWarning: each rank says this"), 1, err)

    def test_the_forward_of_a_function_in_cpp_detaches_nothing(self):
        library = Path(os.environ["DISTGRAD"]).parents[1] / "tests" / "example_operators.so"
        with mock.patch.dict(os.environ, {"EXAMPLE_OPERATORS": str(library)}):
            code, out, _ = self.call("mine.py:in_cpp", "--ranks", "3", "--input", "randn(2)")
        self.assertEqual(code, 1, out)
        self.assertIn("missing-reduction", out)
        self.assertIn("right      x̄_r = Σ_k ȳ_k + 2 ȳ_r", out)
        self.assertNotIn("detach", out)

    def test_a_compiled_function_is_not_disturbed(self):
        Path(self.folder, "compiled.py").write_text(textwrap.dedent("""
            import torch
            from mine import Sum


            @torch.compile(backend="aot_eager")
            def centred(x):
                y = Sum.apply(x * x)
                return (y - y.detach().mean()) * torch.relu(x)
        """))
        code, out, err = self.call("compiled.py:centred", "--ranks", "2", "--input", "randn(4)")
        self.assertEqual((code, err), (0, ""))  # torch.compile must not warn of distgrad's code.
        self.assertIn("detached    at compiled.py:9: detach()", out)

    def test_a_report_that_cannot_be_written(self):
        code, out, err = self.call("mine.py:Sum", "--ranks", "2", "--input", "ones(2)", "--json",
                                   "no/such/folder.json")
        self.assertEqual((code, err),
                         (2, "gradcheck: --json no/such/folder.json: No such file or directory\n"))
        self.assertIn("gradcheck: right", out)

    def test_inputs_that_raise(self):
        code, out, _ = self.call("mine.py:Sum", "--ranks", "2", "--inputs", "printing", "--json",
                                 "-")
        self.assertEqual((code, json.loads(out)["verdict"]), (3, "error"))
        self.assertIn("rank-0, rank-1: TypeError: printing() missing 1", json.loads(out)["text"])

    def test_a_rank_that_can_leave_no_word_says_why(self):
        with (tempfile.TemporaryDirectory() as temporary,
              mock.patch.dict(os.environ, TMPDIR=temporary)):
            code, out, _ = self.call("mine.py:Sum", "--ranks", "2", "--inputs", "removing")
        self.assertEqual(code, 3)
        self.assertRegex(out, r"rank-\d.*: ended with exit status 1; it wrote: "
                              r"\S+/distgrad-\S+ cannot be written: No such file or directory\n")

    @unittest.skipUnless("DISTGRAD" in os.environ, "needs the built distgrad")
    def test_from_the_executable(self):
        called = subprocess.run([os.environ["DISTGRAD"], "gradcheck", "mine.py:Wrong", "--python",
                                 sys.executable, "--input", "scale=2", "--constant", "ones(1)"],
                                cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(
            (called.returncode, called.stdout, called.stderr),
            (2, "", "gradcheck: --constant ones(1): arguments without a name come first\n"))
        called = subprocess.run([os.environ["DISTGRAD"], "gradcheck", "mine.py:Wrong", "--python",
                                 sys.executable, "--input", "ones(1)", "--ranks=2"],
                                cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(called.returncode, 1, called.stderr)
        self.assertIn("gradcheck: wrong on 2 ranks", called.stdout)

    def test_a_function_that_raises(self):
        code, out, err = self.call("mine.py:printing", "--ranks", "2", "--input", "ones(2)")
        self.assertEqual(code, 3)
        self.assertIn("ranks 0, 1, forward: RuntimeError: not today", out)
        self.assertIn("a word of rank 1", err)

    def test_a_call_that_is_written_out(self):
        code, out, _ = self.call("mine.py:Scaled(factor=3, power=2)", "--ranks", "2", "--input",
                                 "randn(1, 3)")
        self.assertEqual((code, "grad(weight)_r" in out), (0, True), out)

    def test_a_name_is_looked_for_before_anything_is_started(self):
        with mock.patch.object(command, "_started", side_effect=AssertionError):
            for name in ("mine.py:Sum", "missing.py:Sum"):
                with self.subTest(name), contextlib.redirect_stderr(io.StringIO()):
                    place = os.path.join(self.folder, name).replace("Sum", "Sun")
                    self.assertEqual(command.main([place, "--input", "ones(2)"]), 2)

    def test_where_inputs_hang(self):
        code, _, err = self.call("mine.py:Sum", "--ranks", "2", "--inputs", "endless",
                                 "--total-timeout", "15")
        self.assertEqual(code, 142)
        self.assertIn("rank-0, rank-1 was at", err)
        self.assertIn("in endless", err)
        self.assertNotIn("runpy", err)

    def test_one_rank_of_torchrun_says_what_is_wrong(self):
        code, out, err = self.call("mine.py:Scaled", "--input", "randn(2, 3)",
                                   before=["torch.distributed.run", "--nproc-per-node", "2",
                                           "--standalone", "--local-addr", "127.0.0.1", "-m"])
        self.assertEqual((code != 0, err.count("gradcheck: mine.py:Scaled is made of")), (True, 1))

    def test_a_rank_that_does_not_come_is_named(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=port, DISTGRAD_LAUNCH_TIMEOUT="1"):
            code, out, err = self.call("mine.py:Sum", "--input", "randn(2)")
        self.assertEqual((code, out, err),
                         (3, "", "gradcheck: rank 1 of the launcher's 2 did not come to"
                          f" 127.0.0.1:{port} within 1 s\n"))

    def test_ranks_of_torchrun(self):
        code, out, _ = self.call("mine.py:Sum", "--input", "randn(2, 3)",
                                 before=["torch.distributed.run", "--nproc-per-node", "2",
                                         "--standalone", "--local-addr", "127.0.0.1", "-m"])
        self.assertEqual((code, out.count("gradcheck: right on 2 ranks")), (0, 1))


if __name__ == "__main__":
    unittest.main()
