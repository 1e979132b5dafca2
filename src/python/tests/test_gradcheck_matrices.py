"""Tests gradcheck's predicates and formulas on matrices, without processes or collectives.

    python src/python/tests/test_gradcheck_matrices.py
"""

import random
import sys
import unittest
from fractions import Fraction
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distgrad.gradient_check.blocks import Pair, as_fraction, coefficient  # noqa: E402
from distgrad.gradient_check.formulas import Names, bar, bases_of, formula  # noqa: E402
from distgrad.gradient_check.predicates import (exchanged_on, mistake_in,  # noqa: E402
                                                objectives)

M = 3  # elements
EYE = torch.eye(M, dtype=torch.float64)
ZERO = torch.zeros(M, M, dtype=torch.float64)


def pair(right, measured, **more):
    """Returns the Pair of grids of blocks, or of numbers that multiply the identity."""
    right, measured = ([[b if isinstance(b, torch.Tensor) else float(b) * EYE for b in row]
                        for row in grid] for grid in (right, measured))
    room = [[torch.full_like(block, 1e-9) for block in row] for row in right]
    return Pair(right, measured, room, **more)


def ones(n):
    return [[1] * n for _ in range(n)]


def grid(n, block):
    return [[block(r, k) for k in range(n)] for r in range(n)]


def measured_formula(p):
    found = formula(p.measured, p.room, bases_of(p), Names())
    return found and found[0]


def right_formula(p):
    return formula(p.right, p.room, bases_of(p), Names())[0]


def first(p):
    return mistake_in(p)


class Formulas(unittest.TestCase):
    def assert_formula(self, coefficients, *lines):
        p = pair(ones(len(coefficients)), coefficients)
        self.assertEqual(measured_formula(p), list(lines))

    def test_of_all_ranks_alike(self):
        self.assert_formula(ones(4), "x̄_r = Σ_k ȳ_k")
        self.assert_formula(grid(4, lambda r, k: 0.25), "x̄_r = 1/4 Σ_k ȳ_k")
        self.assert_formula(grid(3, lambda r, k: -1), "x̄_r = -Σ_k ȳ_k")
        self.assert_formula(grid(3, lambda r, k: 0), "x̄_r = 0")

    def test_of_the_own_rank(self):
        self.assert_formula(grid(4, lambda r, k: 4 * (r == k)), "x̄_r = 4 ȳ_r")
        self.assert_formula(grid(4, lambda r, k: 1 + (r == k)), "x̄_r = Σ_k ȳ_k + ȳ_r")
        self.assert_formula(grid(4, lambda r, k: r != k), "x̄_r = Σ_{k≠r} ȳ_k")
        self.assert_formula(grid(4, lambda r, k: 0.5 + 1.5 * (r == k)),
                            "x̄_r = 1/2 Σ_{k≠r} ȳ_k + 2 ȳ_r")

    def test_of_neighbours(self):
        self.assert_formula(grid(4, lambda r, k: k == (r + 1) % 4), "x̄_r = ȳ_{r+1}")
        self.assert_formula(grid(5, lambda r, k: k in (r, (r + 2) % 5)), "x̄_r = ȳ_r + ȳ_{r+2}")
        self.assert_formula(grid(4, lambda r, k: k <= r), "x̄_r = Σ_{k≤r} ȳ_k")
        self.assert_formula(grid(4, lambda r, k: 2 * (k >= r)), "x̄_r = 2 Σ_{k≥r} ȳ_k")

    def test_of_certain_ranks(self):
        self.assert_formula(grid(4, lambda r, k: k != 2), "x̄_r = Σ_{k≠2} ȳ_k")
        self.assert_formula(grid(4, lambda r, k: -1 if k == 1 else 1), "x̄_r = Σ_{k≠1} ȳ_k - ȳ_1")
        self.assert_formula(grid(4, lambda r, k: (2, 0, 0, -3)[k]), "x̄_r = 2 ȳ_0 - 3 ȳ_3")
        self.assert_formula(grid(4, lambda r, k: r + 1), "x̄_r = c_r Σ_k ȳ_k, c = (1, 2, 3, 4)")
        self.assert_formula(grid(3, lambda r, k: 5 if r == 1 else 1), "x̄_r = Σ_k ȳ_k, r = 0, 2",
                            "x̄_1 = 5 Σ_k ȳ_k")

    def test_of_slices_and_places(self):
        gather = grid(3, lambda r, k: torch.cat([EYE if j == r else ZERO for j in range(3)], 1))
        next_slice = grid(3, lambda r, k: gather[(r + 1) % 3][k])
        own = grid(3, lambda r, k: gather[r][k] * (r == k))
        self.assertEqual(right_formula(pair(gather, gather)), ["x̄_r = Σ_k ȳ_k[r]"])
        self.assertEqual(measured_formula(pair(gather, next_slice)), ["x̄_r = Σ_k ȳ_k[r+1]"])
        self.assertEqual(measured_formula(pair(gather, own)), ["x̄_r = ȳ_r[r]"])
        scatter = grid(3, lambda r, k: gather[k][r].T)
        self.assertEqual(right_formula(pair(scatter, scatter)), ["x̄_r = Σ_k [ȳ_k]_k"])
        moved = grid(3, lambda r, k: scatter[r][(k + 1) % 3])
        self.assertEqual(measured_formula(pair(scatter, moved)), ["x̄_r = Σ_k [ȳ_k]_{k+1}"])

    def test_of_other_derivatives(self):
        alike = grid(3, lambda r, k: torch.diag(torch.arange(1.0, 4) + r).double())
        self.assertEqual(right_formula(pair(alike, alike)), ["x̄_r = Σ_k J_rᵀ ȳ_k"])
        self.assertEqual(
            measured_formula(pair(alike, grid(3, lambda r, k: alike[r][k] * (r == k)))),
            ["x̄_r = J_rᵀ ȳ_r"])
        each = grid(3, lambda r, k: torch.diag(torch.arange(1.0, 4) + r + 5 * k).double())
        self.assertEqual(right_formula(pair(each, each)), ["x̄_r = Σ_k J_{k,r}ᵀ ȳ_k"])
        self.assertEqual(measured_formula(pair(each, grid(3, lambda r, k: each[r][k] / 3))),
                         ["x̄_r = 1/3 Σ_k J_{k,r}ᵀ ȳ_k"])

    def test_where_there_is_none(self):
        generator = torch.Generator().manual_seed(0)
        noise = grid(3, lambda r, k: torch.rand(M, M, generator=generator, dtype=torch.float64))
        self.assertIsNone(measured_formula(pair(ones(3), noise)))
        self.assertIsNone(pair(ones(3), noise).coefficients())

    def test_say_what_the_matrix_does(self):
        """Of random coefficients: the text, evaluated, gives the rows again."""
        draw = random.Random(1)
        for n in (2, 3, 4, 5):
            for _ in range(60):
                few = [draw.choice([0, 0, 1, 1, 1, 2, -1, 0.5]) for _ in range(n)]
                kinds = [lambda r, k: few[k], lambda r, k: few[(k - r) % n],
                         lambda r, k: few[(k + r) % n], lambda r, k: few[r] * few[k]]
                coefficients = grid(n, draw.choice(kinds))
                lines = measured_formula(pair(ones(n), coefficients))
                if lines is not None:
                    self.assertEqual(evaluated(lines, n), coefficients, lines)

    def test_names(self):
        self.assertEqual(bar("x"), "x̄")
        self.assertEqual(bar("y2"), "ȳ2")
        self.assertEqual(bar("weight"), "grad(weight)")

    def test_fractions_are_not_0(self):
        self.assertEqual(as_fraction(1e-13, 1e-14), 1e-13)
        self.assertEqual(as_fraction(0.2345, 0.8), 0.2)

    def test_factors_have_the_digits_that_are_known(self):
        self.assertEqual(as_fraction(9.99998e-10, 1e-14), 1e-9)
        self.assertEqual(as_fraction(1.0437268, 1e-6), 1.043727)

    def test_fractions(self):
        self.assertEqual(as_fraction(1 / 3, 1e-13), Fraction(1, 3))
        self.assertEqual(as_fraction(0.33334, 1e-4), Fraction(1, 3))
        self.assertEqual(as_fraction(0.5234, 1e-4), 0.5234)
        self.assertEqual(coefficient(3 * EYE, EYE, 1e-9 * EYE + 1e-9), 3)
        self.assertIsNone(coefficient(EYE + 1e-3, EYE, 0 * EYE + 1e-9))


def evaluated(lines, n):
    """Returns the coefficients in lines such as "x̄_r = 2 Σ_{k≠r} ȳ_k - ȳ_{r+1}, r = 0, 2"."""
    rows = [None] * n
    for line in lines:
        left, _, right = line.partition(" = ")
        factors = [Fraction(1)] * n
        if ", c = (" in right:
            right, _, listed = right.partition(", c = (")
            factors = [Fraction(c) for c in listed.rstrip(")").split(", ")]
            right = right.replace("c_r ", "", 1).strip("()")
        text, _, ranks = right.partition(", r = ")
        if ranks:
            said = [int(r) for r in ranks.split(", ")]
        else:
            said = range(n) if left.endswith("_r") else [int(left[-1])]
        for r in said:
            assert rows[r] is None
            rows[r] = [float(factors[r] * c) for c in row_of(text, r, n)]
    return rows


def row_of(text, r, n):
    row = [Fraction(0)] * n
    for term in text.replace(" - ", " + -").split(" + "):
        if term == "0":
            continue
        sign = -1 if term.startswith("-") else 1
        parts = term.lstrip("-").split(" ")
        c = sign * (Fraction(parts.pop(0)) if parts[0][0].isdigit() else 1)
        sources = range(n)
        if parts[0].startswith("Σ_{k"):
            relation, bound = parts[0][4], parts[0][5:-1]
            bound = r if bound == "r" else int(bound)
            holds = {"≠": lambda k: k != bound, "≤": lambda k: k <= bound,
                     "≥": lambda k: k >= bound, "<": lambda k: k < bound,
                     ">": lambda k: k > bound}[relation]
            sources = [k for k in range(n) if holds(k)]
        elif not parts[0].startswith("Σ"):
            place = parts[0].partition("_")[2].strip("{}")
            sources = [eval(place, {"r": r}) % n]  # The text has only digits, r, + and -.
        for k in sources:
            row[k] += c
    return row


class Predicates(unittest.TestCase):
    def assert_found(self, name, p, ranks=None, words=""):
        found = first(p)
        self.assertEqual(found.name, name, found)
        self.assertIn(words, found.text)
        self.assertEqual(list(found.ranks), list(range(p.ranks)) if ranks is None else ranks)

    def test_sums(self):
        n = 4
        def of(block):
            return pair(ones(n), grid(n, block))
        self.assert_found("identity-backward", of(lambda r, k: r == k))
        self.assert_found("other-backward", of(lambda r, k: n * (r == k)))
        self.assert_found("double-reduction", of(lambda r, k: n),
                          words="4 times the right one, 4 being the number of ranks")
        self.assert_found("scaled", of(lambda r, k: 1 / n), words="averaged")
        self.assert_found("scaled", of(lambda r, k: 3), words="3 times")
        self.assert_found("scaled", of(lambda r, k: 2 if r == 3 else 1), [3], "on rank 3")
        self.assert_found("missing-reduction", of(lambda r, k: k != 1),
                          words="of rank 1 is in no rank's")
        self.assert_found("missing-reduction", of(lambda r, k: k > 1),
                          words="of ranks 0, 1 are in no rank's")
        self.assert_found("double-reduction", of(lambda r, k: 1 + (r == k)),
                          words="each rank's own")
        self.assert_found("double-reduction", of(lambda r, k: 1 + (k == 2)), words="rank 2's")
        self.assert_found("wrong-group", of(lambda r, k: r // 2 == k // 2),
                          words="{0, 1} and {2, 3}")
        self.assert_found("no-gradient", of(lambda r, k: 0), words="every rank")
        self.assert_found("no-gradient", of(lambda r, k: r not in (1, 2)), [1, 2])
        self.assert_found("missing-reduction", of(lambda r, k: k <= r), [0, 1, 2],
                          "some ranks lack")
        self.assert_found("missing-reduction", of(lambda r, k: k != r), words="lacks its own")

    def test_cotangents_that_are_exchanged(self):
        of_x = pair(ones(3), grid(3, lambda r, k: (r == 1) == (k == 1)))
        of_z = pair(grid(3, lambda r, k: 0), grid(3, lambda r, k: (r == 1) != (k == 1)))
        self.assertEqual(exchanged_on(of_x, of_z), [1])
        self.assertIsNone(exchanged_on(of_z, of_x))
        self.assertIsNone(exchanged_on(of_x, pair(grid(3, lambda r, k: 0), ones(3))))
        self.assertIsNone(exchanged_on(pair(ones(3), ones(3)), of_z))

    def test_two_ranks(self):
        """Where several predicates hold, the one that says most is reported."""
        self.assert_found("identity-backward", pair(ones(2), [[1, 0], [0, 1]]))
        self.assert_found("missing-reduction", pair(ones(2), [[1, 0], [1, 0]]), words="rank 1")
        self.assert_found("double-reduction", pair(ones(2), [[2, 2], [2, 2]]))
        self.assert_found("forgotten-op", pair([[0.5, 0.5]] * 2, ones(2)))

    def test_one_rank(self):
        self.assert_found("scaled", pair([[1]], [[2]]), words="2 times")
        self.assert_found("no-gradient", pair([[1]], [[0]]))
        self.assertEqual(objectives(pair([[1]], [[2]])), set())

    def test_broadcast_and_copy(self):
        broadcast = grid(3, lambda r, k: r == 0)
        self.assert_found("identity-backward", pair(broadcast, grid(3, lambda r, k: r == k)))
        self.assert_found("double-reduction", pair(broadcast, ones(3)), [1, 2])
        self.assert_found("wrong-slice", pair(broadcast, grid(3, lambda r, k: r == 1)), [0, 1])
        self.assert_found("double-reduction", pair(grid(3, lambda r, k: r == k), ones(3)))

    def test_slices(self):
        gather = grid(3, lambda r, k: torch.cat([EYE if j == r else ZERO for j in range(3)], 1))
        self.assert_found("own-slice", pair(gather, grid(3, lambda r, k: gather[r][k] * (r == k))))
        self.assert_found("wrong-slice", pair(gather, grid(3, lambda r, k: gather[(r + 2) % 3][k])))
        self.assert_found("wrong-slice", pair(ones(3), grid(3, lambda r, k: EYE[[1, 2, 0]])),
                          words="(1, 2, 0)")
        self.assert_found("double-reduction",
                          pair(gather, grid(3, lambda r, k: sum(gather[q][k] for q in range(3)))))

    def test_products(self):
        right = grid(3, lambda r, k: torch.diag(torch.tensor([2.0, 3, 5]) + r).double())
        own = grid(3, lambda r, k: right[r][k] * (r == k))
        self.assert_found("identity-backward", pair(right, own), words="went on with its own")
        self.assert_found("identity-backward", pair(right, grid(3, lambda r, k: r == k)),
                          words="as it is")
        self.assert_found("forgotten-op", pair(right, ones(3)))
        zero = torch.tensor([False, True, False])
        spoilt = [[block.clone() for block in row] for row in right]
        for block in (spoilt[1][0], spoilt[1][1], spoilt[1][2]):
            block[1, 1] = float("nan")
        self.assert_found("zero-input", pair(right, spoilt, zero_rows=[zero] * 3), [1])
        self.assert_found("other-backward", pair(right, spoilt, zero_rows=[~zero] * 3), [1])

    def test_roundings(self):
        generator = torch.Generator().manual_seed(2)
        right = grid(3, lambda r, k: torch.rand(M, M, generator=generator, dtype=torch.float64))
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            rounded = grid(3, lambda r, k: right[r][k].to(dtype).double())
            self.assert_found("precision", pair(right, rounded), words=str(dtype)[6:])
        self.assert_found("scaled", pair(right, grid(3, lambda r, k: 1.01 * right[r][k])),
                          words="1.01 times")
        thirds = grid(3, lambda r, k: EYE / 3)
        self.assert_found("precision",
                          pair(thirds, grid(3, lambda r, k: (EYE / 3).bfloat16().double())))

    def test_small_mistakes_are_no_roundings(self):
        generator = torch.Generator().manual_seed(3)
        def numbers():
            return torch.rand(M, M, generator=generator, dtype=torch.float64)
        right = grid(3, lambda r, k: numbers())
        off = grid(3, lambda r, k: right[r][k] * (1 + numbers() / 100))
        self.assert_found("other-backward", pair(right, off))
        rounded = grid(3, lambda r, k: right[r][k].bfloat16().double())
        self.assert_found("other-backward", pair(right, rounded, by_element=False))
        in_parts = grid(3, lambda r, k: right[r][k] * (1 + (numbers() - 0.5) / 2**23))
        self.assert_found("precision", pair(right, in_parts), words="float32")
        of_a_constant = grid(3, lambda r, k: right[r][k] * (1 + 2**-25))
        self.assert_found("precision", pair(right, of_a_constant), words="float32")

    def test_a_factor_within_the_room(self):
        """Of a derivative that differences know to a few digits."""
        vague = grid(3, lambda r, k: EYE * (1 + 1e-5 * (r - k)))
        p = pair(vague, grid(3, lambda r, k: EYE / 2))
        p.room = grid(3, lambda r, k: torch.full_like(EYE, 1e-4))
        self.assert_found("scaled", p, words="1/2 times")
        p.room = grid(3, lambda r, k: torch.full_like(EYE, 1e-6))
        self.assert_found("other-backward", p)

    def test_what_lies_within_the_room_is_right(self):
        p = pair(ones(3), grid(3, lambda r, k: EYE * (1 + 1e-10)))
        self.assertEqual(p.wrong(), [])
        p = pair(ones(3), grid(3, lambda r, k: EYE * (1 + 1e-8)))
        self.assertEqual(len(p.wrong()), 9)

    def test_kinks(self):
        low, high = grid(2, lambda r, k: EYE * 0), grid(2, lambda r, k: EYE)
        inside = pair(grid(2, lambda r, k: 0.5), [[1, 0], [0.3, 0.7]], low=low, high=high)
        self.assertEqual(inside.wrong(), [])
        outside = pair(grid(2, lambda r, k: 0.5), [[1.2, 0], [0.3, 0.7]], low=low, high=high)
        self.assertEqual(outside.wrong(), [(0, 0)])

    def test_uneven_ranks(self):
        """Ranks without rows or columns are no obstacle."""
        sizes = (0, 2, 3)
        right = grid(
            3, lambda r, k: torch.eye(5, dtype=torch.float64)[sum(sizes[:r]):sum(sizes[:r + 1])])
        self.assertEqual(pair(right, right).wrong(), [])
        self.assertEqual(right_formula(pair(right, right)),
                         ["x̄_0 = 0", "x̄_r = Σ_k ȳ_k[r], r = 1, 2"])
        own = grid(3, lambda r, k: right[r][k] * (r == k))
        self.assert_found("own-slice", pair(right, own), [1, 2])
        self.assert_found("no-gradient", pair(right, grid(3, lambda r, k: right[r][k] * (r != 1))),
                          [1])

    def test_objectives(self):
        n = 4
        def of(block):
            return objectives(pair(ones(n), grid(n, block)))
        self.assertEqual(of(lambda r, k: r == k), {"replicated"})
        # The mean of equal cotangents is the cotangent itself.
        self.assertEqual(of(lambda r, k: 1 / n), {"mean", "replicated"})
        self.assertEqual(of(lambda r, k: k == 2), {"replicated"})
        self.assertEqual(of(lambda r, k: 2 * (r == k)), set())
        # For a sum over copies, each copy has n times its own gradient.
        self.assertEqual(of(lambda r, k: n * (r == k)), {"replicated, copied"})
        self.assertEqual(of(lambda r, k: 1), {"sum", "replicated, copied"})
        copy = grid(n, lambda r, k: r == k)
        self.assertEqual(objectives(pair(copy, ones(n))), {"sum, copied"})


if __name__ == "__main__":
    unittest.main()
