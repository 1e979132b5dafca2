"""Where a rank's tensor lies in the single run's, what a gradient is made of, and where two traces
part; in one process."""

import sys
import unittest
from pathlib import Path

import torch
import torch.utils.checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distgrad.tracing.arrivals import reached, unreached, wrong_at_once
from distgrad.tracing.buffers import taken_from_others
from distgrad.tracing.clipping import clip_factor, clipped_in_pieces, seen_norms
from distgrad.tracing.departure import Departure  # noqa: E402
from distgrad.tracing.dtypes import coarsest, narrowed  # noqa: E402
from distgrad.tracing.finder import Finder  # noqa: E402
from distgrad.tracing.joining import place_of  # noqa: E402
from distgrad.tracing.orders import names_of, pieces_in_another_order
from distgrad.tracing.recording import Recording  # noqa: E402
from distgrad.tracing.report import texts  # noqa: E402
from distgrad.tracing.parts import Part  # noqa: E402
from distgrad.tracing.shares import are_of_the_losses, meaning, weights_of  # noqa: E402


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Places(unittest.TestCase):
    def rows(self, value, whole, at=None):
        place = place_of(value, at, whole)
        return None if place is None else [i.tolist() for i in place.indices]

    def test_pieces_strides_and_orders(self):
        whole = numbers(7, 4, 6)
        self.assertEqual(self.rows(whole[4:], whole)[0], [4, 5, 6])
        self.assertEqual(self.rows(whole[:, 2:4, 3:], whole)[1:], [[2, 3], [3, 4, 5]])
        self.assertEqual(self.rows(whole[1::3], whole)[0], [1, 4])
        self.assertEqual(self.rows(whole[:, [3, 0, 2, 1]], whole)[1], [3, 0, 2, 1])
        self.assertEqual(self.rows(whole[[0, 6, 2]].transpose(1, 2).contiguous().transpose(1, 2),
                                   whole)[0], [0, 6, 2])

    def test_what_is_nowhere(self):
        whole = numbers(7, 4)
        changed = whole[2:4].clone()
        changed[1, 1] += 1e-3
        self.assertIsNone(self.rows(changed, whole))
        self.assertIsNone(self.rows(whole[[2, 2]], whole))  # one row for two
        self.assertIsNone(self.rows(whole[2:4], whole, at=(0, 0)))  # a DTensor says where it lies
        self.assertIsNone(self.rows(numbers(8, 4), whole))

    def test_numbers_by_themselves(self):
        whole = numbers(12)
        self.assertEqual(self.rows(whole[4:8], whole), [[4, 5, 6, 7]])
        self.assertEqual(self.rows(whole[[7, 2, 9]], whole), [[7, 2, 9]])
        self.assertIsNone(self.rows(numbers(4, seed=5), whole))

    def test_rounding_is_no_difference(self):
        whole = numbers(8, 16)
        self.assertEqual(self.rows(whole[4:].bfloat16(), whole)[0], [4, 5, 6, 7])


def parts_of(tokens, calls=1, ranks=3):
    made = []
    for rank in range(ranks):
        for call in range(calls):
            gradients = {"w": numbers(9, 5, seed=10 * rank + call),
                         "b": numbers(40, seed=50 + 10 * rank + call)}
            made.append(Part([rank], call, tokens[rank], gradients))
    return made


def said_of(parts, weights_by_rank, name="w"):
    observed = []
    for row in weights_by_rank:
        observed.append({name: (sum(x * p.gradients[name] for x, p in zip(row, parts)), None)})
    return [meaning(w, parts, "head") for w in weights_of(parts, observed, [name])]


class Shares(unittest.TestCase):
    def test_weights_that_say_something(self):
        parts = parts_of([8, 12, 24])
        self.assertEqual(
            said_of(parts, [[3.0, 2.0, 1.0]] * 3),
            ["each part counts in inverse proportion to its number of tokens: rank 0 8, rank 1 12,"
             " rank 2 24"])
        self.assertEqual(said_of(parts, [[1.0, 1.0, 0.0]] * 3), ["what does not count: rank 2"])
        self.assertIn("the gradient of its own data alone",
                      said_of(parts, [[3, 0, 0], [0, 3, 0], [0, 0, 3]])[0])
        self.assertEqual(said_of(parts, [[0.5, 0.7, 1.9]] * 3),
                         ["weights 0.5 (rank 0), 0.7 (rank 1), 1.9 (rank 2)"])
        self.assertEqual(said_of(parts, [[2, 2, 2]] * 3), [""])  # a factor, which compare names

    def test_micro_batches_and_groups(self):
        parts = parts_of([8] * 4, calls=2, ranks=2)
        self.assertEqual(said_of(parts, [[0, 1, 0, 1]] * 2),
                         ["only the last of 2 micro-batches counts"])
        self.assertEqual(said_of(parts, [[1, 2, 1, 0], [1, 0, 1, 2]]),
                         ["of micro-batch 2 each rank has its own data's gradient alone, of"
                          " micro-batch 1 that of all"])
        four = parts_of([8] * 4, ranks=4)
        self.assertEqual(said_of(four, [[2, 2, 0, 0]] * 2 + [[0, 0, 2, 2]] * 2),
                         ["the sum over ranks 0, 1 and the sum over ranks 2, 3 alone"])

    def test_parts_that_were_clipped_before_they_were_added_up(self):
        parts = parts_of([8, 12, 24])
        norms = [float(p.gradients["w"].norm()) for p in parts]
        self.assertIn("proportion to its norm", said_of(parts, [[0.1 / n for n in norms]] * 3)[0])
        # One of them was below it, or all weigh as much: so it is, or may be, something else
        norms[1] *= 1.1
        self.assertNotIn("clipped", said_of(parts, [[0.1 / n for n in norms]] * 3)[0])
        self.assertEqual(said_of(parts, [[0.1, 0.1, 0.1]] * 3), [""])
        alike = parts_of([8, 12], ranks=2)  # of two any weights may be that
        norms = [float(p.gradients["w"].norm()) for p in alike]
        self.assertNotIn("clipped", "".join(said_of(alike, [[1 / n for n in norms]] * 2)))

    def test_another_term(self):
        parts = parts_of([8, 8, 8]) + [Part([], 0, 0, {"w": numbers(9, 5, seed=99)},
                                            is_other_term=True)]
        self.assertEqual(said_of(parts, [[1, 1, 1, 3]] * 3),
                         ["the term of the loss that does not go through the output of head counts"
                          " 3 times as much as the rest"])
        self.assertEqual(
            said_of(parts, [[1, 1, 1, 0]] * 3),
            ["the term of the loss that does not go through the output of head does not count"])
        self.assertIn("counts 0.03 times", said_of(parts, [[1, 1, 1, 0.03]] * 3)[0])
        # Beside a part of the data nothing can be said
        self.assertNotIn("term", said_of(parts, [[1, 0, 0, 3]] * 3)[0])

    def test_what_is_no_sum_of_parts(self):
        parts = parts_of([8, 8, 8])
        self.assertEqual(weights_of(parts, [{"w": (numbers(9, 5, seed=77), None)}] * 3, ["w"]), [])
        # Three numbers are a sum of any three
        few = [Part([r], 0, 8, {"w": numbers(3, seed=r)}) for r in range(3)]
        self.assertEqual(weights_of(few, [{"w": (numbers(3, seed=9), None)}] * 3, ["w"]), [])

    def test_what_is_mixed_in_backward_of_losses_that_do_not_weigh_alike(self):
        parts = parts_of([12, 8, 4])
        found = Departure("backward", upstream=["w"], factors={0: 0.5, 1: 0.75, 2: 1.5})

        def are_so(*by_rank):
            observed = [{
                "w": (sum(x * p.gradients["w"] for x, p in zip(weights, parts)), None)
            } for weights in by_rank]
            return are_of_the_losses(weights_of(parts, observed, ["w"]), found, parts)

        self.assertTrue(are_so([1.0, 1.5, 3.0], [1.0, 1.5, 3.0], [1.0, 1.5, 3.0]))
        self.assertFalse(are_so([1.0, 1.0, 3.0], [1.0, 1.0, 3.0], [1.0, 1.0, 3.0]))
        self.assertFalse(are_so([1.0, 1.5, 3.0], [1.0, 0.0, 0.0], [1.0, 1.5, 3.0]))
        found.factors = dict.fromkeys(range(3), 0.5)
        self.assertFalse(are_so([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]))

    def test_a_piece_of_a_tensor(self):
        parts = parts_of([8, 8, 8])
        whole = sum(x * p.gradients["w"] for x, p in zip([1, 1, 0], parts))
        observed = [{"w": (whole[3 * r:3 * r + 3], (3 * r, 0))} for r in range(3)]
        self.assertEqual([meaning(w, parts, "head") for w in weights_of(parts, observed, ["w"])],
                         ["what does not count: rank 2"])


def output(module, value, gradient, event, consumers=()):
    return {"module": module, "call": 0, "index": 0, "value": value, "at": None,
            "gradient": gradient, "event": event, "consumers": list(consumers)}


CALL = {"kind": "function", "what": "Gather", "place": "model.py:7", "phase": "forward"}
LOSS = {"kind": "loss", "what": "backward", "place": "model.py:9", "phase": "forward", "value": 1.0}


class Departures(unittest.TestCase):
    """Three ranks, each with two of six rows; a, then Gather, then b."""

    def setUp(self):
        self.values = {"a": numbers(6, 4, seed=1), "b": numbers(6, 4, seed=2)}
        self.gradients = {"a": numbers(6, 4, seed=3), "b": numbers(6, 4, seed=4)}
        outputs = [output(n, self.values[n], self.gradients[n], i, [1] if n == "a" else ())
                   for i, n in enumerate("ab")]
        self.single = {"outputs": outputs, "events": [LOSS]}

    def ranks(self, change=lambda rank, name, value, gradient: (value, gradient)):
        traces = []
        for rank in range(3):
            rows = slice(2 * rank, 2 * rank + 2)
            outputs = []
            for n, event in (("a", 0), ("b", 1)):
                changed = change(rank, n, self.values[n][rows], 3 * self.gradients[n][rows])
                outputs.append(output(n, *changed, event))
            traces.append({"outputs": outputs, "events": [CALL, LOSS]})
        return traces

    def found(self, traces, wrong=("a.weight",)):
        return Finder(self.single, traces, list(wrong)).departure()

    def test_backward(self):
        found = self.found(
            self.ranks(lambda rank, n, v, g: (v, g.flip(0) if n == "a" and rank == 1 else g)))
        self.assertEqual((found.stage, found.module, found.before, found.ranks),
                         ("backward", "a", "b", (1,)))
        self.assertEqual(found.calls, ["Gather in model.py:7"])
        self.assertEqual(found.upstream, ["a.weight"])
        text = texts(found, [], 3, None)[0]
        self.assertIn("right down to the output of b, and departs at a, whose output on rank 1 has"
                      " another gradient", text)

    def test_a_factor_in_backward(self):
        found = self.found(self.ranks(lambda rank, n, v, g: (v, g / 3 if n == "a" else g)))
        self.assertEqual((found.stage, found.module), ("backward", "a"))
        self.assertIn("has 0.3333 times the gradient", found.how)

    def test_a_departure_that_reaches_no_wrong_gradient_is_none(self):
        found = self.found(self.ranks(lambda rank, n, v, g: (v, g.flip(0) if n == "a" else g)),
                           wrong=["b.weight"])
        self.assertEqual(found.stage, "after")

    def test_forward_loss_and_after(self):
        found = self.found(
            self.ranks(lambda rank, n, v, g: (v + 1 if n == "b" and rank == 2 else v, g)))
        self.assertEqual((found.stage, found.module, found.before, found.ranks),
                         ("forward", "b", "a", (2,)))
        found = self.found(self.ranks(lambda rank, n, v, g: (v, g.flip(0))))
        self.assertEqual((found.stage, found.module), ("loss", "b"))
        found = self.found(self.ranks())
        self.assertEqual((found.stage, {r: round(f, 9) for r, f in found.factors.items()}),
                         ("after", {0: 3.0, 1: 3.0, 2: 3.0}))
        found = self.found(self.ranks(lambda rank, n, v, g: (v, g * (rank + 1))))
        self.assertEqual(found.stage, "weights")

    def test_backwards_that_reach_other_outputs_and_parameters(self):
        def seen(trace, a_reached, arrived_in):
            outputs = [{**o, "backwards": a_reached if o["module"] == "a" else [2]}
                       for o in trace["outputs"]]
            return {**trace, "outputs": outputs, "backwards": 2, "arrived_in": arrived_in}

        single = seen(self.single, [2], {"a.weight": [2]})
        traces = self.ranks(lambda rank, n, v, g: (v, g.flip(0) if n == "a" else g))
        traces = [seen(t, [1, 2], {"a.weight": [1, 2]}) for t in traces]
        found = Finder(single, traces, ["a.weight"]).departure()
        self.assertIn("another gradient (of 2 backwards 1, 2 reach it, in the single run 2)",
                      found.how)
        self.assertNotIn("reach", Finder({**single, "backwards": 3}, traces,
                                         ["a.weight"]).departure().how)
        # All modules are right, a parameter is not
        truth = {"a.weight": numbers(4), "b.weight": numbers(5)}
        traces = [seen({**t, "arrived": {"a.weight": numbers(4, seed=5), "b.weight": numbers(5)}},
                       [2], {"a.weight": [1, 2]}) for t in self.ranks()]
        found = Finder({**single, "arrived": truth}, traces, ["a.weight"], None,
                       ["b.weight"]).departure()
        self.assertEqual(found.stage, "parameters")
        self.assertIn("of 2 backwards 1, 2 reach it", texts(found, [], 3, None)[0])

    def test_a_parameter_that_is_wrong_beside_its_module(self):
        truth = {n: numbers(4, seed=i) for i, n in enumerate(["a.w", "b.w", "b.right"])}
        traces = [{**t, "arrived": {**truth, "b.w": numbers(4, seed=9)}}
                  for t in self.ranks(lambda rank, n, v, g: (v, g.flip(0) if n == "a" else g))]
        found = Finder({**self.single, "arrived": truth}, traces, ["a.w", "b.w"], None,
                       ["b.right"]).departure()
        self.assertEqual((found.upstream, found.direct, found.others), (["a.w"], ["b.w"], []))
        self.assertIn("What backward gives to b.w, added up", " ".join(texts(found, [], 3, None)))

    def test_what_communicates_behind_an_earlier_source(self):
        single = {"outputs": [output(n, numbers(6, 4, seed=i), None, i, [2][:i < 2])
                              for i, n in enumerate("abc")], "events": [LOSS]}
        for event, since in ((1, ""), (0, "a")):  # of b: behind the call, or before
            outputs = [output(n, numbers(6, 4, seed=i + 7 * (n == "c")), None, at)
                       for i, (n, at) in enumerate(zip("abc", (0, 1, 1 + (event == 1))))]
            events = [CALL, CALL, LOSS] if event else [CALL, LOSS]
            found = Finder(single, [{"outputs": outputs, "events": events}], []).departure()
            self.assertEqual((found.module, found.before, found.since), ("c", "b", since))
            self.assertEqual("Since the output of a" in texts(found, [], 1, None)[0], bool(since))

    def test_a_small_departure_is_where_the_error_jumps(self):
        def by_rank(share):
            return self.ranks(lambda rank, n, v, g: (v * (1 + share * torch.randn(
                v.shape, dtype=v.dtype)) if n == "b" else v * (1 + 1e-15), g.flip(0)))

        found = self.found(by_rank(1e-8))  # of float64 that is no rounding
        self.assertEqual((found.stage, found.module, found.before), ("forward", "b", "a"))
        self.assertEqual(self.found(by_rank(1e-14)).stage, "loss")

    def test_what_may_be_meant_is_no_departure(self):
        """a is the same on all ranks, which go on with parts of it: each has a share of its
        gradient."""
        def traces(change=lambda rank, share: share):
            made = []
            for rank in range(3):
                rows = slice(2 * rank, 2 * rank + 2)
                share = torch.zeros(6, 4, dtype=torch.float64)
                share[rows] = self.gradients["a"][rows]
                outputs = [output("a", self.values["a"], change(rank, share), 0),
                           output("b", self.values["b"][rows], self.gradients["b"][rows], 1)]
                made.append({"outputs": outputs, "events": [CALL, LOSS]})
            return made

        self.assertEqual(
            Finder(self.single, traces(), ["a.weight", "b.weight"], 2.0).departure().stage, "after")
        found = self.found(traces())
        self.assertEqual((found.stage, found.shared[0][0], found.shared[0][2]),
                         ("shares", "a", ["Gather in model.py:7"]))
        self.assertEqual(Finder(self.single, traces(), ["a.weight"], 2.0,
                                scaled={"a.weight": 2.0}).departure().stage, "after")
        self.assertEqual(self.found(traces(lambda rank, share: share.flip(0))).stage, "backward")

    def test_a_factor_that_its_parameters_are_left_with_is_not_meant(self):
        """b is whole on all ranks, and its gradient as it should be; a is cut over them."""
        traces = []
        for rank in range(3):
            columns = (slice(None), slice(2 * (rank % 2), 2 * (rank % 2) + 2))
            outputs = [
                output("a", self.values["a"][columns], 3 * self.gradients["a"][columns], 0),
                output("b", self.values["b"], self.gradients["b"], 1)
            ]
            traces.append({"outputs": outputs, "events": [CALL, LOSS]})
        traces = traces[:2]
        for one in traces:
            one["outputs"][0]["gradient"] = 2 * one["outputs"][0]["gradient"] / 3

        def stage(scaled):
            return Finder(self.single, traces, ["a.weight"], None, ["b.weight"],
                          scaled).departure().stage

        self.assertEqual(stage({"a.weight": 2.0}), "backward")
        self.assertNotEqual(stage({"a.weight": 0.5}), "backward")

    def test_departures_follow_what_is_computed_from_what(self):
        """c is not computed from a, and later."""
        self.single["outputs"][1]["consumers"] = []
        self.single["outputs"].append(output("c", numbers(6, 4, seed=8), numbers(6, 4, seed=9), 2))
        last = self.single["outputs"][2]
        self.values["c"], self.gradients["c"] = last["value"], last["gradient"]

        def found(broken, wrong):
            traces = self.ranks(lambda rank, n, v, g: (v, g.flip(0) if n in broken else g))
            for rank, trace in enumerate(traces):
                rows = slice(2 * rank, 2 * rank + 2)
                gradient = 3 * self.gradients["c"][rows]
                trace["outputs"].append(output("c", self.values["c"][rows],
                                               gradient.flip(0) if "c" in broken else gradient, 2))
            return self.found(traces, wrong)

        both = found("ac", ["a.weight", "c.weight"])
        self.assertEqual((both.stage, both.module, both.also, both.others),
                         ("loss", "c", ["a"], []))
        one = found("a", ["a.weight", "b.weight"])
        self.assertEqual((one.stage, one.module, one.before, one.others),
                         ("backward", "a", "b", ["b.weight"]))

    def test_other_labels_and_tokens_that_do_not_count(self):
        self.gradients["b"] = (self.values["b"].softmax(-1) -
                               torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 0, 1]]) / 6
        self.single["outputs"][1]["gradient"] = right = self.gradients["b"]

        def said(change):
            traces = self.ranks(
                lambda rank, n, v, g: (v, change(rank, g.clone()) if n == "b" else g.flip(0)))
            return self.found(traces).tokens

        def other(rank, g):
            if rank == 1:
                g[0] += torch.tensor([0.5, 0, -0.5, 0])
            return g

        def silent(rank, g):
            g[1] = 0
            return g * (1 + (rank == 2))

        self.assertEqual(said(other), ["At 1 of 6 rows the gradient is that of another label (index"
                                       " 2 of dimension 0)."])
        # Of something else
        self.single["outputs"][1]["gradient"] = self.gradients["b"] = numbers(6, 4, seed=5)
        self.assertEqual(said(other), [])
        self.single["outputs"][1]["gradient"] = self.gradients["b"] = right
        self.assertEqual(said(silent),
                         ["3 of 6 rows do not count: they have no gradient (indices 1, 3, 5 of"
                          " dimension 0).",
                          "The rows count differently: 2 of them 3 times, 1 of them 6 times."])
        self.assertEqual(said(lambda rank, g: g.flip(0)), [])

    def test_rows_that_are_divided_by_their_own_numbers_of_tokens(self):
        logits, right = numbers(4, 5, 6), numbers(4, 5, 6, seed=1)
        counts = [5, 3, 2, 4]
        for row, count in enumerate(counts):
            right[row, count:] = 0

        def said(by_row):
            single = {"outputs": [output("a", logits, right, 0)], "events": [LOSS]}
            traces = [{"outputs": [output("a", logits[rows], right[rows] * by_row[rows], 0)],
                       "events": [LOSS]} for rows in (slice(0, 2), slice(2, 4))]
            return Finder(single, traces, ["a.weight"]).departure().tokens

        own = 28 / torch.tensor(counts).double()[:, None, None]
        self.assertEqual(said(own), ["Each row of dimension 0 counts in inverse proportion to its"
                                     " number of tokens, 2 to 5 of them."])
        own[0] *= 2
        self.assertIn("count differently: 4 of them 7 times", said(own)[0])
        # Within a row, too
        self.assertIn("count differently", said(own * torch.tensor([1, 1, 3, 3, 3])[:, None])[0])

    def test_the_output_of_another_call_with_the_same_value(self):
        single = {"outputs": [output("a", self.values["a"], self.gradients["b"], 0, [1]),
                              output("b", self.values["b"], self.gradients["b"], 1),
                              {**output("a", self.values["a"], self.gradients["a"], 2, [3]),
                               "call": 1},
                              output("c", numbers(6, 4, seed=7), self.gradients["b"], 3)],
                  "events": [LOSS]}
        outputs = [dict(o) for o in single["outputs"]]
        outputs[2]["gradient"] = numbers(6, 4, seed=8)
        found = Finder(single, [{"outputs": outputs, "events": [LOSS]}], ["a.weight"]).departure()
        self.assertEqual((found.module, found.before), ("a (call 2 of 2)", "c"))

    def test_a_factor_that_is_there_from_the_loss(self):
        traces = []
        for rank in range(3):  # all have all rows
            outputs = [output(n, self.values[n], 3 * self.gradients[n], event)
                       for n, event in (("a", 0), ("b", 0))]
            traces.append({"outputs": outputs, "events": [CALL, LOSS]})
        found = Finder(self.single, traces, ["a.weight"], 3.0).departure()
        self.assertEqual((found.stage, found.module, found.calls),
                         ("loss", "b", ["Gather in model.py:7"]))
        self.assertEqual(Finder(self.single, traces, ["a.weight"], 9.0).departure().stage, "after")
        self.assertIn("the loss is right", texts(found, [], 3, 3.0)[0])
        for trace in traces:  # each has the whole of it: their sum says nothing
            trace["events"] = [CALL, {**LOSS, "value": 1 / 3}]
        found = Finder(self.single, traces, ["a.weight"], 3.0).departure()
        self.assertIn("the loss departs", texts(found, [], 3, 3.0)[0])
        # A sum of parts
        self.assertEqual(
            Finder(self.single, self.ranks(), ["a.weight"], 3.0).departure().stage, "factor")

    def test_clipping_by_the_norms_of_pieces(self):
        def clipped(*norms):
            return [[{"what": "clip_grad_norm_", "place": "model.py:8", "norm": n, "eps": 1e-7}]
                    for n in norms]

        def said(truth, *norms):
            return seen_norms(clipped(truth)[0], clipped(*norms))

        self.assertEqual(said(5.0, 3.0, 4.0),
                         ["clip_grad_norm_ in model.py:8 saw the norms 3, 4 on the ranks, 5 in the"
                          " single run; the squares add up to the latter's over ranks 0, 1."])
        self.assertIn("over ranks 0, 1 and over ranks 2, 3",
                      said(5.0, 3.0, 4.0, 3.0, 4.0)[0])  # twice, as under HSDP
        self.assertTrue(
            said(5.0, 3.0, 4.5)[0].endswith("3, 4.5 on the ranks, 5 in the single run."))
        self.assertEqual(said(5.0, 5.0, 5.000001), [])
        # Whoever calls no clip_grad_norm_ may clip by hand
        self.assertEqual(seen_norms(clipped(5.0)[0], [[], []]), [])
        self.assertEqual(seen_norms([], clipped(5.0, 5.0)), [])
        self.assertEqual(seen_norms(clipped(5.0)[0], [clipped(3.0)[0], []]), [])

    def test_a_factor_that_is_clippings(self):
        single, ranks = ([{"what": "clip_grad_norm_", "place": "model.py:8", "norm": n,
                           "eps": 1e-7}] for n in (5.0, 4.0))
        scaled = {"a.weight": 1.25, "b.weight": 1.3}
        self.assertEqual(clip_factor(single, [ranks, ranks], scaled),
                         ["The factor 1.25 of a.weight is the ratio of these norms."])
        self.assertEqual(clip_factor(single, [single, single], scaled), [])

    def test_pieces_that_are_clipped_by_their_own_norms(self):
        truth = {"a": numbers(5, 4), "b": numbers(30, seed=1), "c": numbers(10, seed=2)}
        flat = torch.cat([x.flatten() for x in truth.values()])

        def said(factors, names="abc"):
            pieces, seen = flat.tensor_split(3), {}
            whole = torch.cat([f / float(x.norm()) * x for f, x in zip(factors, pieces)])
            for name, x in zip(truth, whole.split([x.numel() for x in truth.values()])):
                seen[name] = x.view(truth[name].shape), None
            return clipped_in_pieces(list(names), truth, [seen] * 3)

        self.assertIn("in 3 pieces of all parameters one behind another, and each piece has the"
                      " norm 0.5", said([0.5, 0.5, 0.5])[0])
        self.assertEqual(said([0.5, 0.6, 0.5]), [])
        whole = {name: (2 * x, None) for name, x in truth.items()}
        self.assertEqual(clipped_in_pieces(list(truth), truth, [whole] * 3), [])  # a factor
        other = {name: (numbers(*x.shape, seed=9), None) for name, x in truth.items()}
        self.assertEqual(clipped_in_pieces(list(truth), truth, [other] * 3), [])
        self.assertEqual(clipped_in_pieces(list(truth), truth, [whole, other, whole]), [])

    def test_gradients_of_other_parameters(self):
        truth = {n: numbers(*shape, seed=i) for i, (n, shape) in enumerate(
            [("a", (6, 4)), ("b", (4, 6)), ("c", (24,)), ("d", (7,)), ("e", (9,))])}

        def said(name, gradient, ranks=2):
            return taken_from_others([name], truth, [{name: (gradient, None)}] * ranks)

        self.assertEqual(said("a", truth["b"].view(6, 4)),
                         ["a: what is returned is the gradient of b."])
        self.assertEqual(said("c", 0.5 * (truth["a"].flatten() + truth["c"])),
                         ["c: what is returned is 0.5 times the sum of the gradients of a, c."])
        flat = torch.cat([x.flatten() for x in truth.values()])
        self.assertIn("what lies 2 numbers before its place in a flat buffer of all gradients.",
                      said("e", flat[77:86])[0])
        reverse = torch.cat([truth[n].flatten() for n in reversed(truth)])
        self.assertIn("3 numbers behind its place in a flat buffer of all gradients, in reverse",
                      said("d", reverse[12:19])[0])
        for own in (2 * truth["d"], numbers(7, seed=99), truth["d"].bfloat16()):
            self.assertEqual(said("d", own), [])
        self.assertEqual(said("a", numbers(6, 4, seed=99)), [])

    def test_what_backward_gives_to_a_parameter_is_wrong(self):
        truth = {"a": numbers(3, 4), "b": numbers(5) + 1, "c": torch.tensor([3.0])}
        part = {name: numbers(*x.shape) / 3 for name, x in truth.items()}

        def said(**changed):
            ranks = [{n: x / 2 + part[n] for n, x in truth.items()},
                     {n: x / 2 - part[n] for n, x in truth.items()}]
            ranks[0].update({n: ranks[0][n] + x for n, x in changed.items()})
            return wrong_at_once(truth, ranks, ["b", "c"], ["a"])

        self.assertEqual(said(), [])
        # Twice the truth: copies on both ranks are that, too
        self.assertEqual(said(b=truth["b"], c=truth["c"]), [])
        self.assertEqual(said(b=numbers(5), c=0.7 * truth["c"]), ["b", "c"])
        self.assertEqual(unreached(truth, [{"a": truth["a"], "b": truth["b"]}, {"a": truth["a"]}],
                                   ["a", "b", "c"], ["b", "c"]), ["c"])
        # Used without its module, or under another name
        self.assertEqual(unreached(truth, [{"a": truth["a"], "b": truth["b"]}, {}], ["a", "b"],
                                   ["b", "c"]), [])
        # Of most nothing is known
        self.assertEqual(unreached(truth, [{"b": truth["b"]}, {}], ["a", "b", "c"], ["a", "c"]), [])
        # Nothing that is right shows how the ranks' add up
        self.assertEqual(said(a=numbers(3, 4, seed=5), b=numbers(5)), [])

    def test_what_backward_gives_and_the_step_does_not_return(self):
        names, traces = ["a.weight", "module.b.weight", "c.weight"], self.ranks()
        self.assertEqual(reached(traces, names), [])  # that its module ran says nothing of it
        traces[1]["arrived_in"] = {"b.weight": [1], "c.weight": []}
        self.assertEqual(reached(traces, names), ["module.b.weight"])
        said = texts(Departure("after", lost=["module.b.weight"]), [], 3, None)
        self.assertEqual(said[1], "Backward gives a gradient to module.b.weight, and the step"
                         " returns none, or zeros.")

    def test_micro_batches_that_weigh_otherwise(self):
        outputs = [{**output("a", self.values["a"][i:i + 3],
                             (1 + i / 3) * self.gradients["a"][i:i + 3], 0), "call": i // 3}
                   for i in (0, 3)]
        found = Finder(self.single, [{"outputs": outputs, "events": [CALL, LOSS]}],
                       ["a.weight"]).departure()
        self.assertEqual((found.stage, found.are_calls), ("weights", True))
        self.assertIn("1 (micro-batch 1), 2 (micro-batch 2)", texts(found, [], 1, None)[0])
        self.assertEqual(found.means_over, {})

    def test_means_over_unequal_numbers_of_rows(self):
        cuts, traces = ((0, 1), (1, 6)), []
        for begin, end in cuts:
            pieces = [output(n, self.values[n][begin:end],
                             self.gradients[n][begin:end] * 3 / (end - begin), i)
                      for i, n in enumerate("ab")]
            traces.append({"outputs": pieces, "events": [CALL, LOSS]})
        found = Finder(self.single, traces, ["a.weight"]).departure()
        self.assertEqual((found.stage, found.means_over), ("weights", {0: 1, 1: 5}))
        self.assertIn("in inverse proportion to how many of their tokens or rows have a gradient:"
                      " 1, 5",
                      texts(found, [], 2, None)[0])

    def test_pieces_that_lie_on_other_ranks(self):
        def said(names, swapped):
            values = {name: numbers(3, 6, seed=i) for i, name in enumerate(names)}
            single = {"outputs": [output(n, values[n], None, i) for i, n in enumerate(names)],
                      "events": [LOSS]}
            traces = []
            for rank in range(2):
                pieces = {n: values[n].chunk(2, 1)[rank ^ (n in swapped)] for n in names}
                traces.append({"outputs": [output(n, pieces[n], None, 0) for n in names],
                               "events": [LOSS]})
            return [(text, names_of(ones)) for text, ones in pieces_in_another_order(
                Finder(single, traces, []).all)]

        self.assertEqual(said("abcd", "c"), [("the ranks hold pieces 2, 1, of other outputs that"
                                              " are cut likewise 1, 2", "c")])
        self.assertEqual(said("abcd", ""), [])
        self.assertEqual(said("abc", "c")[0][1], "c")
        self.assertEqual(said("abc", "ac"), [])  # most lie so, and not in the order of the ranks
        self.assertEqual(said("abcd", "cd"), [])  # nobody knows which are right

    def test_rows_that_no_rank_has(self):
        traces = self.ranks()
        traces[2]["outputs"] = traces[0]["outputs"]
        self.assertIn("a: rows 4-5 of 6 are computed by no rank", self.found(traces).data)


class Dtypes(unittest.TestCase):
    def trace(self, value, casts=()):
        return {
            "outputs": [output("a", value, value, 0)],
            "events": [],
            "arrived": {"w": value},
            "casts": dict.fromkeys(casts, "model.py:3")
        }

    def test_a_model_is_as_exact_as_the_shortest_dtype_of_its_outputs(self):
        wide, short = numbers(2, 3).float(), numbers(2, 3).bfloat16()
        self.assertIs(coarsest([self.trace(wide), self.trace(short)]), torch.bfloat16)
        self.assertIs(coarsest([self.trace(wide, [torch.bfloat16])]), torch.float32)
        self.assertIs(coarsest([self.trace(wide.double(), [torch.float32])]), torch.float32)
        self.assertIs(coarsest([self.trace(wide.double(), [torch.bfloat16])]), torch.float64)
        self.assertIsNone(coarsest([{"outputs": [], "casts": {}}]))

    def test_nothing_is_more_exact_than_that(self):
        trace = narrowed(self.trace(numbers(2, 3)), torch.float32)
        for x in (trace["outputs"][0]["value"], trace["outputs"][0]["gradient"],
                  trace["arrived"]["w"]):
            self.assertIs(x.dtype, torch.float32)
        self.assertIs(
            narrowed(self.trace(numbers(2, 3).half()), torch.float32)["arrived"]["w"].dtype,
            torch.float16)


class HandsItsBiasOn(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight), self.bias


class Watching(unittest.TestCase):
    def test_a_parameter_that_a_module_hands_on_is_no_output(self):
        recording, model = Recording(), HandsItsBiasOn(4, 3)
        hook = torch.nn.modules.module.register_module_forward_hook(recording._module_gave)
        y, bias = model(torch.ones(2, 4))
        hook.remove()
        (y + bias).sum().backward()
        self.assertEqual([tuple(o.value.shape) for o in recording.outputs], [(2, 3)])
        self.assertIsNotNone(recording.outputs[0].gradient)

    def test_a_slope_that_a_loss_asks_for_is_no_gradient_of_it(self):
        def seen(asks):
            recording, model = Recording(), torch.nn.Linear(4, 3).double()
            grad = torch.autograd.grad
            recording._watch_slopes()
            hook = torch.nn.modules.module.register_module_forward_hook(recording._module_gave)
            try:
                x = numbers(2, 4).requires_grad_()
                loss = model(x).sum() + (asks(model(x), x, model) if asks else 0)
                loss.backward()
            finally:
                hook.remove()
                torch.autograd.grad = grad
            return [float(o.gradient.sum()) if o.gradient is not None else None
                    for o in recording.outputs]

        def slope(y, x, model):
            return torch.autograd.grad(y.sum(), x, create_graph=True)[0].square().sum()

        def with_cotangent(y, x, model):
            torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
            return 0 * y.sum()

        def of_parameters(y, x, model):
            torch.autograd.grad(y.sum(), list(model.parameters()), retain_graph=True)
            return 0 * y.sum()

        self.assertEqual(seen(slope), [6.0, None])
        # As a stage of a pipeline has it, or a loop that takes its gradients so
        self.assertEqual(seen(with_cotangent), [6.0, 6.0])
        self.assertEqual(seen(of_parameters), [6.0, 6.0])

    def test_what_a_checkpoint_goes_on_with_is_told_from_what_has_no_gradient(self):
        recording, model = Recording(), torch.nn.Linear(4, 3)
        apply = vars(torch.autograd.Function)["apply"]
        recording._watch_functions()
        hook = torch.nn.modules.module.register_module_forward_hook(recording._module_gave)
        try:
            x = torch.ones(2, 4, requires_grad=True)
            torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True)
            with torch.no_grad():
                model(x)
        finally:
            hook.remove()
            torch.autograd.Function.apply = apply
        self.assertEqual([o.in_function for o in recording.outputs], [True, False])

    def test_what_is_frozen_for_one_backward_of_several_is_not_frozen(self):
        for order in ([True, False], [False, True]):
            recording, model = Recording(), torch.nn.Linear(4, 3)
            hook = torch.nn.modules.module.register_module_forward_hook(recording._module_gave)
            try:
                model.bias.requires_grad_(False)
                for learns in order:
                    model.weight.requires_grad_(learns)
                    model(torch.ones(2, 4))
                    recording._watch_parameters()
            finally:
                hook.remove()
            self.assertEqual(recording._frozen, {id(model.bias)})

    def test_watching_changes_nothing(self):
        def gradients(recording):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(),
                                        torch.nn.Linear(5, 3)).double()
            hooks = []
            if recording:
                hooks.append(
                    torch.nn.modules.module.register_module_forward_hook(recording._module_gave))
            x = model(numbers(6, 4))
            x += 1  # in place, behind what is watched
            x.square().sum().backward()
            for hook in hooks:
                hook.remove()
            return [p.grad for p in model.parameters()]

        recording = Recording()
        for watched, plain in zip(gradients(recording), gradients(None)):
            self.assertTrue(torch.equal(watched, plain))
        self.assertEqual([o.call for o in recording.outputs], [0, 0, 0, 0])
        self.assertTrue(all(o.gradient is not None for o in recording.outputs))


if __name__ == "__main__":
    unittest.main()
