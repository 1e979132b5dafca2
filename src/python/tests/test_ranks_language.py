"""The scenario language in Python: means what Python means, and nothing outside the language
runs."""

import os
import sys
import unittest
import warnings
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]

import allow_list_table  # noqa: E402
from distgrad.ranks.language import Expression, InvalidExpression  # noqa: E402

TABLE = FOLDER.parents[1] / "rank/expression/testdata" / "python_equality.txt"


def names(dtype):
    x = torch.tensor([[0.5, -1.25, 2.0], [3.0, 0.75, -0.5]], dtype=dtype, requires_grad=True)
    return {
        "x": x,
        "y": torch.tensor([1.5, 0.25, -2.0], dtype=dtype, requires_grad=True),
        "s": torch.tensor(1.75, dtype=dtype),
        "i": torch.tensor([2, 0, 1]),
        "m": torch.tensor([[True, False, True], [False, True, False]]),
        "xs": [torch.tensor(v, dtype=dtype) for v in ([1.0, 2.0], [3.0, 5.0], [-1.0, 0.5])],
        "rank": 1,
        "world_size": 3,
    }


def plainly(text, dtype):
    """What Python says, without any of our code; None where it refuses."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        value = eval(text, {"torch": torch, **names(dtype)})
        return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
    except Exception:
        return None
    finally:
        torch.set_default_dtype(before)


class AllowList(unittest.TestCase):
    def test_is_that_of_the_driver(self):
        made = (FOLDER.parent / "distgrad" / "ranks" / "allow_list.py").read_text()
        self.assertEqual(made, allow_list_table.generated(),
                         "python3 src/python/tests/allow_list_table.py makes it")


class Meaning(unittest.TestCase):
    """The same table that the driver's front end is held to."""

    def compare(self, dtype):
        texts = [line for line in TABLE.read_text().splitlines()
                 if line and not line.startswith("#")]
        self.assertGreater(len(texts), 450)
        for text in texts:
            scope = names(dtype)
            with self.subTest(text), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = plainly(text, dtype)
                if expected is None:
                    with self.assertRaises(InvalidExpression):
                        Expression(text, scope).evaluate(scope, dtype, accept_number=True)
                    continue
                value = Expression(text, scope).evaluate(scope, dtype, accept_number=True)
                self.assertEqual((value.dtype, value.shape), (expected.dtype, expected.shape))
                self.assertTrue(torch.equal(value.nan_to_num(7), expected.nan_to_num(7)))

    def test_float64(self):
        self.compare(torch.float64)

    def test_bfloat16(self):
        self.compare(torch.bfloat16)

    def test_leaves_the_default_dtype_alone(self):
        before = torch.get_default_dtype()
        Expression("torch.ones(2)", []).evaluate({}, torch.float16)
        with self.assertRaises(InvalidExpression):
            Expression("torch.ones(2) @ torch.ones(3)", []).evaluate({}, torch.float16)
        self.assertEqual(torch.get_default_dtype(), before)

    def test_says_which_names_it_uses(self):
        known = ["x", "t", "rank", "parts"]
        self.assertEqual(Expression("sum([t * rank for t in x])", known).names, {"x", "rank"})
        self.assertEqual(Expression("[t for t in t][0]", known).names, {"t"})


class Refusals(unittest.TestCase):
    TEXTS = """
        __import__('os').system('true')
        open('/tmp/x')
        torch.save(x, 'f')
        torch.load('f')
        torch.ops.aten.add_(x, x)
        torch.nn.functional.relu(x, True)
        torch.nn.functional.relu(x, inplace=True)
        torch.nn.functional.embedding(i, x, None, 1.0)
        torch.relu(x, out=x)
        torch.zeros(3, device='cpu')
        x.to('cuda')
        x.add_(1)
        x.__class__
        x.__class__.__init__
        x.grad
        x.data
        x.numpy()
        x.values()
        x.register_hook(x.sum)
        (x.add_)(1)
        [x.add_][0](1)
        torch
        torch.sum
        torch.sum.__globals__
        torch.nn.functional.torch.save(x, 'f')
        torch.linalg.torch.save(x, 'f')
        (lambda: x)()
        [x for torch in xs]
        [x for sum in xs]
        (y := x)
        f'{x}'
        'abc'
        'a'.join(xs)
        ['a' for t in x]
        {1: 2}
        {1}
        (t for t in x)
        [a for a in x for b in x]
        [*xs]
        torch.stack(*xs)
        torch.sum(**x)
        0 < rank < 3
        x is x
        rank is not None
        1j * x
        not_a_name
        x[lambda: 0]
        x; x
        x = 1
        x\N{KELVIN SIGN}
        max(x, key=abs)
        getattr(x, 'sum')
        print(x)
        type(x)
        await x
        yield x
    """

    def test_before_anything_runs(self):
        for text in map(str.strip, self.TEXTS.strip().splitlines()):
            with self.subTest(text), self.assertRaises(InvalidExpression):
                Expression(text, names(torch.float64))

    def test_of_what_would_take_for_ever(self):
        scope = names(torch.float64)
        for text in (
            "10 ** 10 ** 10 * x",
            "(1 << 10 ** 9) * x",
            "9223372036854775807 * 3 * x",
            "torch.tensor([0] * 10 ** 9)",
            "torch.tensor(10 ** 9 * [0])",
            "torch.tensor([t for t in range(10 ** 9)])",
            "x.expand(10 ** 9, 2, 3)[0] + sum([1 for t in torch.zeros(1).expand(10 ** 9)])",
        ):
            with self.subTest(text), self.assertRaises(InvalidExpression):
                Expression(text, scope).evaluate(scope, torch.float64)

    def test_of_a_quotient_that_does_not_fit(self):
        """The processor would end the process."""
        scope = {"least": torch.tensor([7, -2**63]), "least32": torch.tensor([-2**31]).int()}
        for text, what in (
            ("torch.div(least, -1, rounding_mode='trunc')", "-9223372036854775808 / -1"),
            ("torch.divide(least, torch.tensor([[1], [-1]]), rounding_mode='trunc')", "int64"),
            ("least.div(other=-1, rounding_mode='trunc')", "int64"),
            ("least32.div(-1, rounding_mode='trunc')", "int32"),
        ):
            with self.subTest(text), self.assertRaisesRegex(InvalidExpression, what):
                Expression(text, scope).evaluate(scope, torch.float64)
        for text, right in (
            ("torch.div(least, -2, rounding_mode='trunc')", [-3, 2**62]),
            ("torch.div(least32, torch.tensor([-1]), rounding_mode='trunc')", [2**31]),
            ("(least * 0.5).div(-1, rounding_mode='trunc')", [-3, 2**62]),
        ):
            with self.subTest(text):
                value = Expression(text, scope).evaluate(scope, torch.float64)
                self.assertEqual(value.tolist(), right)

    def test_of_more_memory_than_there_is_for_one_expression(self):
        with self.assertRaisesRegex(InvalidExpression, "memory"):
            Expression("torch.ones(2 ** 30)", []).evaluate({}, torch.float64)
        self.assertEqual(Expression("torch.ones(2)", []).evaluate({}, torch.float64).numel(), 2)

    def test_of_nesting_beyond_measure(self):
        for text in ("(" * 300 + "x" + ")" * 300, "-" * 5000 + "x", "[" * 1000, "x" + ".T" * 3000,
                     "+".join("x" * 9000)):
            with self.subTest(text[:10]), self.assertRaises(InvalidExpression):
                Expression(text, ["x"])

    def test_leaves_nothing_behind_that_text_could_reach(self):
        os.environ.pop("DISTGRAD_TOUCHED", None)
        with self.assertRaises(InvalidExpression):
            Expression("torch.os.environ.update(DISTGRAD_TOUCHED='1')", ["x"])
        self.assertNotIn("DISTGRAD_TOUCHED", os.environ)


if __name__ == "__main__":
    unittest.main()
