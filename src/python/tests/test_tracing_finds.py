"""What a watched step is told by: names, rows that are alike, passes, what is frozen or cut."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distgrad.tracing.data import leave_out_other_passes  # noqa: E402
from distgrad.tracing.finder import Finder  # noqa: E402
from distgrad.tracing.dtypes import computed_in  # noqa: E402
from distgrad.tracing.joined import backward_of, joined  # noqa: E402
from distgrad.tracing.joining import place_of  # noqa: E402
from distgrad.tracing.naming import Renaming  # noqa: E402
from distgrad.tracing.parts import Cutter  # noqa: E402
from distgrad.tracing.recording import Recording  # noqa: E402
from distgrad.tracing.report import texts  # noqa: E402
from test_tracing import CALL, LOSS, numbers, output  # noqa: E402


class Names(unittest.TestCase):
    def renamed(self, recorded, wanted, name):
        return Renaming(recorded, wanted)(name)

    def test_a_model_inside_of_another_module_goes_by_its_own_names(self):
        inside, own = ["model.a.weight", "model.b.weight"], ["a.weight", "b.weight"]
        self.assertEqual(self.renamed(inside, own, "model.a"), "a")
        self.assertEqual(self.renamed(inside, own, "head"), "head")
        self.assertEqual(self.renamed(own, inside, "a"), "model.a")
        self.assertEqual(self.renamed(own, inside, "(Loss)"), "(Loss)")

    def test_names_that_are_the_gradients_stay(self):
        self.assertEqual(self.renamed(["a.weight", "x.b.weight", "x.c.weight"],
                                      ["a.weight", "b.weight", "c.weight"], "x.b"), "x.b")
        self.assertEqual(self.renamed(["x.a.weight"], ["a.weight", "b.weight", "c.weight"], "x.a"),
                         "x.a")  # too few to go by


class Rows(unittest.TestCase):
    def test_a_piece_whose_rows_are_in_another_order(self):
        whole = numbers(6, 4, 8)
        place = place_of(whole[2:4].flip(1), None, whole)
        self.assertEqual([i.tolist() for i in place.indices][:2], [[2, 3], [3, 2, 1, 0]])
        place = place_of(whole[[4, 1, 5], :, 4:], None, whole)
        self.assertEqual([i.tolist() for i in place.indices], [[4, 1, 5], [0, 1, 2, 3],
                                                               [4, 5, 6, 7]])
        changed = whole[2:4].flip(1).clone()
        changed[1, 2, 3] += 1e-3
        self.assertIsNone(place_of(changed, None, whole))

    def test_of_rows_that_are_alike_the_gradient_is_not_judged(self):
        value, gradient = numbers(6, 4), numbers(6, 4, seed=2)
        value[4] = value[1]
        rows = [5, 4, 0]  # the fifth may as well be the second

        def kind(own):
            [one] = joined([output("a", value, gradient, 0)],
                           [[output("a", value[rows], own, 0)]])
            return backward_of(one).kind

        mistaken = gradient[[5, 1, 0]]
        self.assertEqual(kind(gradient[rows]), "own")
        self.assertEqual(kind(mistaken), "own")
        self.assertEqual(kind(gradient[[0, 4, 5]]), "wrong")


def trace(outputs, **more):
    return {"outputs": outputs, "events": [LOSS], **more}


class Departures(unittest.TestCase):
    def test_a_pass_over_reversed_tokens_is_left_out_where_it_departs_later(self):
        a, b = numbers(4, 6, 5, seed=1), numbers(4, 6, 5, seed=2)
        single = [output("a", a, None, 0, [1]), output("b", b, None, 1)]
        other = numbers(2, 6, 5, seed=3)

        def rank(rows, stale):
            calls = [(0, a[rows].flip(1), stale), (1, a[rows], b[rows])]
            return [{**output(n, v, None, i), "call": call}
                    for call, *values in calls for i, (n, v) in enumerate(zip("ab", values))]

        ranks = [rank(slice(0, 2), other), rank(slice(2, 4), 2 * other)]
        known = joined(single, ranks)
        left, said = leave_out_other_passes(known, known, 2)
        self.assertIn("pass 1 of 2 on every rank is over data", said[0])
        self.assertTrue(all(one.is_equal for one in left))
        # Without the pass that is right on one rank nobody knows
        ranks[1] = ranks[1][:2]
        known = joined(single, ranks)
        self.assertEqual(leave_out_other_passes(known, known, 2)[1], [])

    def found(self, change, of_single=None, **more):
        values, gradients = [numbers(4, 3, seed=i) for i in range(3)], numbers(4, 3, seed=9)
        single = [{**output(n, v, gradients, i, [i + 1][:i < 2]), "needs_gradient": True}
                  for i, (n, v) in enumerate(zip("abc", values))]
        ranks = [trace([change({**output(n, v[2 * r:2 * r + 2], gradients[2 * r:2 * r + 2], i),
                                "needs_gradient": True}) for i, (n, v) in
                        enumerate(zip("abc", values))], **more) for r in range(2)]
        single = trace(single, **(of_single or {}))
        return Finder(single, ranks, ["a.weight", "b.weight"], None, ["c.bias"]).departure()

    def test_what_needs_no_gradient_is_told_where_it_is_cut(self):
        def cut(entry):
            if entry["module"] == "a":
                return entry
            return {**entry, "needs_gradient": False, "gradient": None}

        found = self.found(cut)
        self.assertEqual((found.stage, found.module, found.before), ("cut", "b", "a"))
        self.assertIn("but the output of b needs no gradient", texts(found, [], 2, None)[0])
        # Where it needs one, nobody detached it: its gradient was lost behind it.
        lost = self.found(lambda e: e if e["module"] == "a" else {**e, "gradient": None})
        self.assertNotEqual(lost.stage, "cut")

    def test_frozen_parameters_are_told_where_they_are_all_that_is_wrong(self):
        frozen = self.found(lambda e: e, frozen=["a.weight", "b.weight"])
        self.assertEqual((frozen.stage, frozen.direct), ("frozen", ["a.weight", "b.weight"]))
        self.assertIn("are frozen on ranks 0, 1", texts(frozen, [], 3, None)[0])
        self.assertNotEqual(self.found(lambda e: e, frozen=["a.weight"]).stage, "frozen")
        both = self.found(lambda e: e, {"frozen": ["a.weight", "b.weight"]},
                          frozen=["a.weight", "b.weight"])
        self.assertNotEqual(both.stage, "frozen")

    def test_pieces_of_other_ranks_are_placed_where_they_are_loaded(self):
        names = "abcde"
        values = {n: numbers(3, 6, seed=i) for i, n in enumerate(names)}

        def finder(odd):
            single = [output(n, values[n], None, i, [i + 1][:i < 4]) for i, n in enumerate(names)]
            ranks = []
            for r in range(2):
                pieces = {n: values[n].chunk(2, 1)[r ^ (n == odd)] for n in names[:4]}
                ranks.append(trace([output(n, pieces.get(n, numbers(3, 6, seed=50)), None, i)
                                    for i, n in enumerate(names)]))
            return Finder(trace(single), ranks, []).departure()

        found = finder("b")
        self.assertEqual((found.module, found.before), ("b", "a"))
        self.assertIn("the ranks hold pieces 2, 1, of other outputs that are cut likewise 1, 2; the"
                      " first output that is no piece of the single run's is that of e", found.how)
        self.assertEqual(finder(None).module, "e")


def other(rank, value):
    return value + rank * numbers(2, 3, seed=5)


class LittleChanges(unittest.TestCase):
    def found(self, off, errors):
        """a, then b, in two steps; `errors`: of the ranks' outputs in each."""
        values = {(n, call): numbers(4, 3, seed=2 * call + (n == "b"))
                  for call in range(2) for n in "ab"}
        gradient = numbers(4, 3, seed=9)

        def outputs(rows, *share):
            made = []
            for i, ((n, call), v) in enumerate(values.items()):
                value = v[rows] * (1 + (share[call] if share else 0) * numbers(4, 3, seed=8)[rows])
                made.append({**output(n, value, gradient[rows], call, [i + 1] if n == "a" else ()),
                             "call": call})
            return made

        ranks = [trace(outputs(rows, *errors)) for rows in (slice(0, 2), slice(2, 4))]
        return Finder(trace(outputs(slice(0, 4))), ranks, ["a.weight"], None, (), {},
                      off).departure()

    def test_a_step_that_goes_a_little_too_far_is_told_by_the_call_after_it(self):
        found = self.found(1e-9, (1e-13, 1e-9))
        self.assertEqual((found.stage, found.module, found.before),
                         ("forward", "a (call 2 of 2)", "b (call 1 of 2)"))
        self.assertRegex(found.how, r"^, by \S+e-(09|10) of its norm$")

    def test_what_is_no_more_than_before_or_too_little_for_the_gradients_is_rounding(self):
        for off, errors in ((1e-9, (1e-9, 1e-9)), (1e-9, (1e-16, 1e-12)), (1e-6, (1e-13, 1e-9)),
                            (None, (1e-13, 1e-9)), (1e-9, (0, 0))):
            self.assertEqual(self.found(off, errors).stage, "after")


class Teachers(unittest.TestCase):
    """A teacher, then a student of two modules; two ranks with two of four rows each."""

    def found(self, gradient_of, teacher_of=lambda rank, value: value, **more):
        values, gradients = [numbers(4, 3, seed=i) for i in range(3)], numbers(4, 3, seed=9)
        teacher = {"in_graph": False, **more}
        single = [{**output("teacher", values[0], None, 0), **teacher},
                  output("a", values[1], gradients, 1, [2]), output("b", values[2], gradients, 2)]
        ranks = []
        for r in range(2):
            rows = slice(2 * r, 2 * r + 2)
            own = [gradient_of(name, r, gradients[rows]) for name in "ab"]
            ranks.append(trace([output("teacher", teacher_of(r, values[0][rows]), None, 0),
                                output("a", values[1][rows], own[0], 1),
                                output("b", values[2][rows], own[1], 2)]))
        return Finder(trace(single), ranks, ["a.weight", "b.weight"]).departure()

    def test_a_teacher_that_differs_is_where_forward_departs_if_its_loss_does(self):
        def loss_of(*ranks):
            return lambda name, rank, g: g.flip(0) if rank in ranks else g

        found = self.found(loss_of(1), other)
        self.assertEqual((found.stage, found.module, found.ranks), ("forward", "teacher", (1,)))
        self.assertEqual(self.found(loss_of(0, 1), other).stage, "forward")
        # Where it is right, or a checkpoint's, which hands its value on to what is right
        for found, many in ((self.found(loss_of(1)), "all"),
                            (self.found(loss_of(1), other, in_function=True), "2 of")):
            self.assertEqual((found.stage, found.module, found.silent), ("loss", "b", []))
            self.assertIn(f"Forward is right in {many} 3 modules", texts(found, [], 2, None)[0])

    def test_a_teacher_that_differs_and_does_not_explain_the_loss_is_not_called_right(self):
        found = self.found(lambda name, rank, g: g.flip(0) if rank == 0 else g, other)
        self.assertEqual((found.stage, found.module, found.ranks), ("loss", "b", (0,)))
        said = texts(found, [], 2, None)
        self.assertIn("Forward is right in 2 of 3 modules", said[0])
        self.assertIn("The output of teacher, which needs no gradient, is not that", said[1])
        # The loss is right
        found = self.found(lambda name, rank, g: g.flip(0) if name == "a" else g, other)
        self.assertEqual((found.stage, found.module), ("backward", "a"))
        said = texts(found, [], 2, None)
        self.assertNotIn("teacher", " ".join(said))
        self.assertIn("Forward is right in 2 of 3 modules", said[0])


class Views(unittest.TestCase):
    """Two views of four rows each, which the single run computes in two calls, and two ranks in one
    pass with half of the rows of both."""

    def setUp(self):
        self.values, self.gradients = ([numbers(4, 3, seed=i) for i in seeds]
                                       for seeds in ((0, 1), (2, 3)))
        self.single = [{**output("a", v, g, i), "call": i}
                       for i, (v, g) in enumerate(zip(self.values, self.gradients))]

    def ranks(self, change=lambda x: x, of_second=lambda g: g, **more):
        made = []
        for rows in (slice(0, 2), slice(2, 4)):
            gradients = self.gradients[0][rows], of_second(self.gradients[1][rows])
            value = change(torch.cat([v[rows] for v in self.values]))
            made.append([{**output("a", value, torch.cat(gradients), 0), **more}])
        return made

    def test_a_pass_over_rows_of_several_calls_is_cut_into_theirs(self):
        found = joined(self.single, self.ranks())
        self.assertEqual([[(p.key, p.place.indices[0].tolist()) for p in one.pieces]
                          for one in found], [[((0, 0), [0, 1]), ((1, 0), [2, 3])]] * 2)
        self.assertEqual([backward_of(one).kind for one in found], ["own", "own"])
        # As of a teacher
        for one in joined(self.single, self.ranks(gradient=None)):
            self.assertEqual([p.gradient for p in one.pieces], [None, None])

    def test_what_is_no_run_of_rows_of_each_call_departs(self):
        def changed(x):
            x[3, 1] += 1
            return x

        for ranks in (self.ranks(changed), self.ranks(lambda x: x[[0, 2, 1, 3]]),
                      self.ranks(at=(0, 0))):
            found = joined(self.single, ranks)
            self.assertEqual([len(one.pieces) for one in found], [2, 0])
            self.assertTrue(all(p.place is None for p in found[0].pieces))

    def test_a_view_whose_gradient_is_lost_is_told_from_the_other(self):
        ranks = [trace(outputs) for outputs in self.ranks(of_second=lambda g: 0 * g)]
        found = Finder(trace(self.single), ranks, ["a.weight"]).departure()
        self.assertEqual((found.stage, found.module), ("loss", "a (call 2 of 2)"))
        found = Finder(trace(self.single), [trace(outputs) for outputs in self.ranks()],
                       ["a.weight"], 2.0).departure()
        self.assertEqual(found.stage, "factor")


class Shares(unittest.TestCase):
    """a goes into norm, whose output all of two ranks have; each computes half of the columns of up
    from it. end is computed from up and from a."""

    def setUp(self):
        names = ["a", "norm", "up", "end"]
        self.values = {n: numbers(4, 6, seed=i) for i, n in enumerate(names)}
        self.gradients = {n: numbers(4, 6, seed=10 + i) for i, n in enumerate(names)}
        self.shares = [self.gradients["norm"] / 2 + s * numbers(4, 6, seed=20) for s in (1, -1)]

    def found(self, wrong, right=(), norm_event=0, added_up=False):
        consumers = {"a": [1, 3], "norm": [2], "up": [3]}
        single = [output(n, v, self.gradients[n], i, consumers.get(n, ()))
                  for i, (n, v) in enumerate(self.values.items())]
        ranks = []
        for rank, share in enumerate(self.shares):
            mine = slice(3 * rank, 3 * rank + 3)
            a = self.gradients["a"] if added_up else self.gradients["a"] - share
            ranks.append({"events": [CALL, LOSS], "outputs": [
                output("a", self.values["a"], a, 0),
                output("norm", self.values["norm"], share, norm_event),
                output("up", self.values["up"][:, mine], self.gradients["up"][:, mine], 1),
                output("end", self.values["end"], self.gradients["end"], 1)]})
        return Finder(trace(single), ranks, wrong, None, right).departure()

    def test_shares_that_nobody_adds_up_are_where_backward_departs(self):
        for wrong, right, event in ((["a.weight", "norm.weight"], [], 0),
                                    (["a.weight"], ["norm.weight"], 0),
                                    (["a.weight", "norm.weight"], ["up.weight"], 1)):
            found = self.found(wrong, right, event)
            self.assertEqual((found.stage, found.module, found.before, found.unsummed_before),
                             ("backward", "norm", "up", "a"))
            self.assertEqual((found.upstream, found.others), (wrong, []))
            said = texts(found, [], 2, None)
            self.assertIn("departs at norm, whose output has a share of its gradient on each rank,"
                          " whose sum is right. The output of a, from which it is computed, has"
                          " another gradient.", said[0])
            self.assertEqual("Between both lies: Gather" in said[0], event == 1)

    def test_shares_that_may_be_added_up_are_right(self):
        """By what communicates before norm, whose parameters are right in the end."""
        found = self.found(["a.weight"], ["norm.weight"], norm_event=1)
        self.assertEqual((found.stage, found.module, found.before, found.unsummed_before),
                         ("backward", "a", "norm", ""))
        self.assertEqual(self.found(["up.weight"], ["norm.weight"], added_up=True).stage, "after")

    def test_parameters_under_shares_are_not_said_to_be_right_in_backward(self):
        found = self.found(["a.weight", "norm.weight"], ["norm.bias"], norm_event=1)
        self.assertEqual((found.stage, found.module, found.before), ("backward", "a", "norm"))
        self.assertEqual((found.unsummed, found.others), (["norm.weight"], []))
        said = " ".join(texts(found, [], 2, None))
        self.assertIn("share of the gradient of their modules' outputs, whose sum is right:"
                      " norm.weight.", said)
        self.assertNotIn("outputs are right", said)


class Parts(unittest.TestCase):
    def parts_of(self, micro_batches, zeroed=False, taught=False, again=False):
        """Of a single run with as many backwards; two ranks with half of the rows each. `taught`:
        a teacher runs behind the model. `again`: the model is called once more, on no rank."""
        torch.manual_seed(0)
        model, x = torch.nn.Linear(4, 5).double(), numbers(8, 4)
        whole = model(x).detach()
        nn = torch.nn
        teacher = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Tanh()).double()
        cutter = Cutter([{"outputs": [{**output("(Linear)", whole[rows], None, 0), "call": 0}]}
                         for rows in (slice(0, 4), slice(4, 8))])
        recording = Recording(True)
        hook = torch.nn.modules.module.register_module_forward_hook(recording._module_gave)
        try:
            for part in x.chunk(micro_batches):
                if zeroed:
                    model.zero_grad(set_to_none=False)
                y = model(part)
                if taught:
                    with torch.no_grad():
                        teacher(part)
                loss = y.square().sum() + (model(part - 3).square().sum() if again else 0)
                loss.backward(retain_graph=True)
                cutter.cut(recording)
        finally:
            hook.remove()
        return cutter.parts, model

    def test_backwards_of_micro_batches_are_added_up(self):
        for micro_batches in (1, 2):
            parts, model = self.parts_of(micro_batches)
            self.assertEqual([p.ranks for p in parts], [[0], [1]])
            total = sum(p.gradients["weight"] for p in parts)
            torch.testing.assert_close(total, model.weight.grad)

    def test_what_runs_last_and_has_no_gradient_is_not_cut_at(self):
        parts, _ = self.parts_of(1, taught=True)
        self.assertEqual([p.ranks for p in parts], [[0], [1]])

    def test_a_call_that_no_rank_has_a_part_of_is_a_part_of_no_rank(self):
        parts, model = self.parts_of(1, again=True)
        self.assertEqual([p.ranks for p in parts], [[0], [1], []])
        self.assertEqual([p.tokens for p in parts], [4, 4, 8])
        total = sum(p.gradients["weight"] for p in parts)
        torch.testing.assert_close(total, model.weight.grad)

    def test_gradients_that_are_zeroed_between_are_made_of_nothing_known(self):
        self.assertEqual(self.parts_of(2, zeroed=True)[0], [])


class Dtypes(unittest.TestCase):
    def test_who_computes_in_a_half_precision(self):
        def process(dtype, casts=()):
            return {"outputs": [output("a", numbers(2, 3).to(dtype), None, 0)],
                    "casts": dict.fromkeys(casts, "model.py:3")}

        wide, short = process(torch.float32), process(torch.bfloat16)
        self.assertEqual(computed_in(wide, [wide, wide]), {})
        self.assertEqual(computed_in(wide, [wide, short]),
                         {"bfloat16": ("The ranks compute", "as in the output of a")})
        self.assertEqual(computed_in(process(torch.float32, [torch.float16]), [wide]),
                         {"float16": ("The single run computes", "model.py:3")})
        self.assertEqual(computed_in(short, [short])["bfloat16"][0], "Both runs compute")
        # Of the ranks alone float32 is their mistake.
        self.assertEqual(computed_in(wide, [process(torch.float64, [torch.float32])]), {})


if __name__ == "__main__":
    unittest.main()
