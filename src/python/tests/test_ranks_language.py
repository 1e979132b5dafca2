"""Expressions on a rank in Python: what passes between Python and the library that evaluates
them."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distgrad.ranks.language import Expression, InvalidExpression  # noqa: E402


def values():
    return {"x": torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64, requires_grad=True),
            "xs": [torch.ones(2), torch.zeros(1)], "rank": 1}


def value(text, dtype=torch.float64):
    return Expression(text, values()).value(values(), dtype)


class Values(unittest.TestCase):
    def test_are_pythons(self):
        for text, right in (("rank + 1", 2), ("rank / 2", 0.5), ("rank == 1", True),
                            ("[rank, 2]", [1, 2]), ("x.shape[0]", 2), ("x.sum().item()", 2.5)):
            with self.subTest(text):
                got = value(text)
                self.assertEqual((type(got), got), (type(right), right))
        self.assertEqual([t.tolist() for t in value("[x[0], xs[1]]")], [[1, -2], [0]])

    def test_stay_in_the_graph(self):
        scope = values()
        Expression("(x * x).sum() * rank", scope).evaluate(scope, torch.float64).backward()
        self.assertEqual(scope["x"].grad.tolist(), [[2, -4], [6, 1]])

    def test_numbers_are_tensors_only_where_asked(self):
        three = Expression("rank + 2", values())
        self.assertEqual(
            three.evaluate(values(), torch.bfloat16, accept_number=True).dtype, torch.bfloat16)
        with self.assertRaisesRegex(InvalidExpression, "this is an int, not a tensor"):
            three.evaluate(values(), torch.float64)

    def test_constructors_have_the_dtype_and_device(self):
        before = torch.get_default_dtype()
        ones = Expression("torch.ones(2)", {})
        self.assertEqual(ones.evaluate({}, torch.float16).dtype, torch.float16)
        self.assertTrue(ones.evaluate({}, torch.float32, device=torch.device("meta")).is_meta)
        self.assertEqual(torch.get_default_dtype(), before)

    def test_names_are_those_that_are_used(self):
        self.assertEqual(Expression("sum([t * rank for t in xs])", values()).names, {"xs", "rank"})


class Errors(unittest.TestCase):
    def test_of_text(self):
        for text, why in (("y + 1", '"y"'), ("x.add_(1)", "add_"), ("1 +", "")):
            with self.subTest(text), self.assertRaisesRegex(InvalidExpression, why):
                Expression(text, values())

    def test_of_values(self):
        with self.assertRaisesRegex(InvalidExpression, "inconsistent tensor size|size mismatch"):
            value("x[0] @ torch.ones(3)")

    def test_what_python_raises_inside_stays_what_it_is(self):
        """torch.utils.checkpoint stops a second forward so."""

        class Stop(Exception):
            pass

        def stop(_):
            raise Stop

        with self.assertRaises(Stop), torch.autograd.graph.saved_tensors_hooks(stop, stop):
            value("x * x")


if __name__ == "__main__":
    unittest.main()
