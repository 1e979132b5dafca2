"""Programs on a rank in Python: what passes between Python and the library that runs them."""

import sys
import unittest
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from small_driver import message_of  # noqa: E402

from distgrad.ranks.program import (  # noqa: E402
    InvalidAt, InvalidExpression, Program)

X = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)


def text(words, pointer=""):
    return {"text": words, "pointer": pointer}


def called(*arguments):
    return {"name": "y", "pointer": "", "call": {"code": "python:f.py:f", "simulate": "",
                                                 "args": [text(a) for a in arguments]}}


def program(steps=(), loss="x.sum()", dtype="float64"):
    return {"world_size": 2, "dtype": dtype, "groups": [], "steps": list(steps),
            "inputs": [{"name": "x", "pointer": "", "value": X,
                        "layout": [{"axis": "", "kind": "local"}]}],
            "loss": text(loss, "/loss")}


class Calls:
    """Notes what code is called with, and gives `gives`."""

    def __init__(self, gives=None):
        self.gives = gives

    def code(self, index, arguments, on_gradient, is_shared, _):
        self.given = index, arguments, on_gradient, is_shared
        return self.gives() if self.gives else torch.zeros(1)

    def collective(self, index, operand, on_gradient, is_shared):
        self.given = index, operand, on_gradient, is_shared
        return operand * 2


def forward(what, calls=None, x=None, device="cpu"):
    run = Program(message_of(what), calls)
    x = X.clone().requires_grad_() if x is None else x
    return (*run.forward(1, [x], getattr(torch, what["dtype"]), torch.device(device)), run, x)


class Values(unittest.TestCase):
    def test_of_arguments_are_pythons(self):
        calls, right = Calls(), [2, 0.5, True, [1, 2], 2, 2.5]
        forward(program([called("rank + 1", "rank / 2", "rank == 1", "[rank, 2]", "x.shape[0]",
                                "x.sum().item()", "[x[0], x[1] * 2]", "x", "x.detach()")]), calls)
        index, arguments, on_gradient, is_shared = calls.given
        self.assertEqual((index, arguments[:6]), (0, right))
        self.assertEqual([type(a) for a in arguments[:6]], [type(a) for a in right])
        self.assertEqual([t.tolist() for t in arguments[6]], [[1, -2], [6, 1]])
        self.assertEqual(on_gradient, [False] * 4 + [True] * 5)
        self.assertEqual(is_shared, [False] * 7 + [True, True])

    def test_stay_in_the_graph_and_reach_what_others_wait_in(self):
        step = {"name": "y", "pointer": "", "collective": {
            "kind": "all_reduce", "operand": text("x * x"), "group": "", "op": "sum", "factor": 1.0,
            "root": 0}}
        calls = Calls()
        loss, (y,), (reached,), run, x = forward(program([step], "y.sum() * rank"), calls)
        self.assertEqual((y.tolist(), calls.given[2:]), ((2 * X * X).tolist(), (True, False)))
        run.end_of(loss, [reached], 3.0).backward()
        self.assertEqual(x.grad.tolist(), (12 * X).tolist())

    def test_users_code_runs_in_the_modes_of_who_runs_the_program(self):
        seen = []

        class Notes(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(getattr(func, "__name__", ""))
                return func(*args, **(kwargs or {}))

        def gives():
            torch.set_default_device("meta")
            return X.tanh()

        try:
            with Notes():
                forward(program([called()]), Calls(gives))
                self.assertIn("tanh", seen)
                self.assertTrue(torch.empty(1).is_meta)
                self.assertIn("empty", seen)
        finally:
            torch.set_default_device("cpu")
        self.assertEqual(torch._C._len_torch_function_stack(), 1)  # that of the default device

    def test_constructors_have_the_dtype_and_device(self):
        before = torch.get_default_dtype()
        loss, *_ = forward(program(loss="torch.ones(2)", dtype="bfloat16"))
        self.assertEqual(loss.dtype, torch.bfloat16)
        self.assertTrue(forward(program(loss="torch.ones(2)"), device="meta")[0].is_meta)
        self.assertEqual(torch.get_default_dtype(), before)


class Errors(unittest.TestCase):
    def test_of_the_text_say_where(self):
        for words, why in (("z + 1", 'unknown name "z"'), ("x.add_(1)", "add_"), ("1 +", "")):
            with self.subTest(words), self.assertRaisesRegex(InvalidAt, why) as raised:
                Program(message_of(program(loss=words)), None)
            self.assertEqual(raised.exception.pointer, "/loss")
            self.assertIn("^", raised.exception.caret)

    def test_of_values_are_this_ranks(self):
        with self.assertRaisesRegex(InvalidExpression, "inconsistent tensor size|size") as raised:
            forward(program(loss="x[0] @ torch.ones(3)"))
        self.assertNotIsInstance(raised.exception, InvalidAt)

    def test_what_python_raises_inside_stays_what_it_is(self):
        """torch.utils.checkpoint stops a second forward so."""

        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop

        with self.assertRaises(Stop):
            forward(program([called()]), Calls(stop))
        with self.assertRaises(Stop), torch.autograd.graph.saved_tensors_hooks(stop, stop):
            forward(program(loss="(x * x).sum()"))


if __name__ == "__main__":
    unittest.main()
