"""Tests gradcheck if a rank raises, hangs, dies, or returns something else. All ranks must report
it, and nothing may wait for ever.

    python src/python/tests/test_gradcheck_failures.py
"""

import os
import random
import sys
import time
import unittest
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import breaking, constants, parts, ranks, running  # noqa: E402
from gradchecks.parts import function, matrix, me, reduced, right_sum, two_of_one  # noqa: E402

import distgrad  # noqa: E402
from distgrad.gradient_check import team  # noqa: E402


def raises_on_rank_1(x):
    if me() == 1:
        raise ValueError("no such layer")
    return right_sum(x)


def raises_everywhere(x):
    raise ValueError("no such layer")


def raises_in_backward(x):
    def backward(g, x):
        if me() == 2:
            raise KeyError("lost")
        return reduced(g)

    return function(reduced, backward)(x)


def raises_far_from_here(x):
    """Raises if the input was moved far."""
    assert bool((x < 1.5).all()), "out of range"
    return right_sum(x * x)


def sends_to_nobody(x):
    """Sends without a receiver, for which Gloo waits half an hour, whatever a group's time-out."""
    y = right_sum(x)
    if me() == 3:
        dist.send(x.detach().clone(), 2, parts.group())
    return y


def raises_and_does_not_wait(x):
    dist.all_reduce(x.detach().clone(), group=parts.group(), async_op=True)
    return raises_on_rank_1(x)


def without_a_graph_on_rank_1(x):
    y = right_sum(x)
    return y.detach() if me() == 1 else y


def skips_what_is_unused(a, b):
    return sum(c * reduced(g) for c, g in ((1, a), (2, b)) if g is not None)


def slow_on_rank_2(g, x):
    """Stays busy on rank 2, so that nobody knows whether it would end."""
    end = time.monotonic() + 4
    while me() == 2 and time.monotonic() < end:
        pass
    return reduced(g)


_sleep_s = 6


def hangs_on_rank_2(x):
    if me() == 2:
        time.sleep(_sleep_s)  # here it hangs
    return right_sum(x)


def another_structure(x):
    y = right_sum(x)
    return {"y": y, "more": 2 * y} if me() == 1 else {"y": y}


def fewer_outputs_later(x):
    _calls.append(1)
    return (right_sum(x), x) if len(_calls) < 3 else (right_sum(x),)


_calls = []
_noise = torch.Generator()


def random_forward(x):
    return right_sum(x * (1 + torch.rand(x.shape, generator=_noise, dtype=torch.float64)))


class Observed(torch.nn.Module):
    """Divides by a running mean, in an attribute of its own or in a buffer, in place or not."""

    def __init__(self, is_buffer, is_in_place=False):
        super().__init__()
        mean = torch.zeros((), dtype=torch.float64)
        self.is_in_place = is_in_place
        self.register_buffer("mean", mean) if is_buffer else setattr(self, "mean", mean)

    def forward(self, x):
        with torch.no_grad():
            now = reduced(x.abs().mean()) / parts.n()
            mean = now if float(self.mean) == 0 else self.mean + 0.1 * (now - self.mean)
            if self.is_in_place:
                self.mean.copy_(mean)
            else:
                self.mean = mean
        return right_sum(x) / mean


KEEPS = "it keeps something from call to call; nothing was judged"


def only_integers(x):
    return x.argmax()


def steps(x):
    return right_sum(x.mul(4).round() + 0 * x)


# name -> function, inputs, options, verdict, words
BROKEN = {
    "raises on rank 1": (raises_on_rank_1, matrix, {}, "error",
                         ["rank 1, forward: ValueError: no such layer",
                          "ranks 0, 2, 3, forward: waited for another rank",
                          "in raises_on_rank_1"]),
    "raises everywhere": (raises_everywhere, matrix, {}, "error",
                          ["ranks 0, 1, 2, 3, forward: ValueError: no such layer"]),
    "raises in backward": (raises_in_backward, matrix, {}, "wrong",
                           ["the backward raises on rank 2: KeyError: 'lost'"]),
    "raises far from here": (raises_far_from_here,
                             lambda: (matrix() * 0 + 1.499).detach().requires_grad_(), {}, "error",
                             ["AssertionError: out of range"]),
    "a send that nobody receives": (sends_to_nobody, matrix, {"timeout_s": 2}, "error", ["rank 3"]),
    "raises and does not wait": (raises_and_does_not_wait, matrix, {}, "error",
                                 ["ValueError: no such layer",
                                  "Nobody waits in time for all_reduce"
                                  " (test_gradcheck_failures.py:"]),
    "no graph on rank 1": (without_a_graph_on_rank_1, matrix, {}, "wrong",
                           ["rank 1 never entered the all_reduce that ranks 0, 2, 3 wait in",
                            "y does not require grad on rank 1, so that no backward of it runs"]),
    "a collective that one rank skips": (two_of_one(skips_what_is_unused), matrix, {}, "wrong",
                                         ["where y0 has no part in rank 0's loss the backward hangs"
                                          ": rank 0 never entered the all_reduce"]),
    "too slow in backward": (function(reduced, slow_on_rank_2), matrix, {"timeout_s": 2}, "error",
                             ["backward: waited for another rank"]),
}
HANGS = (hangs_on_rank_2, matrix, {"timeout_s": 2}, "error",
         ["not done after 2 s, but at", "# here it hangs"])
OTHERS = {
    "another structure": (another_structure, matrix, {}, "right",
                          ["The ranks return different structures", "rank 1: y, more",
                           "ranks 0, 2, 3: y"]),
    "fewer outputs later": (fewer_outputs_later, matrix, {}, "error",
                            ["y1, [2, 3] at first, is absent"]),
    "random forward": (random_forward, matrix, {}, "undecided",
                       ["nondeterministic", "two runs of the forward at the same inputs differ"]),
    "a running mean": (Observed(False), matrix, {}, "undecided", [KEEPS]),
    "a running mean, detached": (Observed(False), matrix, {"detached": True}, "undecided", [KEEPS]),
    "a running mean in a buffer": (Observed(True), matrix, {"detached": True}, "right", []),
    "a running mean in a buffer, in place": (Observed(True, True), matrix, {"detached": True},
                                             "right", []),
    "nothing requires grad": (right_sum, lambda: matrix().detach(), {}, "error",
                              ["no input requires grad on any rank"]),
    "no floating output": (only_integers, matrix, {}, "error",
                           ["returns no floating-point tensor"]),
    "complex": (lambda x: x, lambda: matrix().detach().to(torch.complex64).requires_grad_(), {},
                "error", ["x is complex"]),
    "steps": (steps, matrix, {}, "right", []),
    "disputed": (constants.predicts_target, constants.two, {}, "disputed", ["y -> b"]),
    "disputed, and strict": (constants.predicts_target, constants.two, {"strict": True}, "disputed",
                             ["y -> b"]),
}


def checked(function, inputs, options, verdict, words):
    start = time.monotonic()
    try:
        report = distgrad.gradcheck(function, inputs(), parts.group(),
                                    **{"timeout_s": 60, **options})
        raised = False
    except distgrad.GradcheckError as error:
        report, raised = error.report, str(error) == str(error.report)
    return report, raised, time.monotonic() - start


def all_of(cases, breaks):
    found = {}
    parts.use(dist.group.WORLD)
    for name, case in cases.items():
        if breaks:
            parts.use(dist.new_group(list(range(4))))
        found[name] = checked(*case)
    return found


def the_hang(seconds):
    global _sleep_s
    _sleep_s = seconds
    parts.use(dist.group.WORLD)
    return checked(*HANGS)


def dies():
    parts.use(dist.group.WORLD)

    def function(x):
        if me() == 3:
            os._exit(5)
        return right_sum(x)

    return checked(function, matrix, {"timeout_s": 3}, "error", [])


def breaks_together():
    """Acts like NCCL, whose collectives do not give up, and whose watchdog ends the process of a
    rank that others have left."""
    parts.use(dist.new_group(list(range(4))))
    broken, before = [], team._break
    team.Team.gives_up_by_itself = lambda self: False
    team._break = lambda group, rank, size: (broken.append(rank), before(group, rank, size))
    report, *_ = checked(*BROKEN["raises on rank 1"])
    end = time.monotonic() + 10
    while not broken and time.monotonic() < end:
        time.sleep(0.01)
    return report.verdict, str(report), broken


class Callers:
    """Holds what must be the same afterwards on one rank."""

    def __init__(self):
        self.module = torch.nn.BatchNorm1d(3)
        self.module.weight.grad = torch.ones(3)
        self.x = matrix(4, 3, torch.float32)
        self.x.grad = torch.zeros_like(self.x)
        self.closed = torch.ones(3, requires_grad=True)

    def state(self):
        tensors = [self.x, self.x.grad, self.module.weight, self.module.weight.grad,
                   *self.module.buffers()]
        values = [t.detach().clone() for t in tensors] + [torch.get_rng_state()]
        return values, [id(t) for t in tensors], random.getstate()

    def run(self, x, module):
        return right_sum(module(x.mul_(2)) * self.closed)


def leaves_all_as_it_was():
    parts.use(dist.group.WORLD)
    callers = Callers()
    tensors, places, chance = callers.state()
    report = distgrad.gradcheck(callers.run, (callers.x, callers.module))
    now, places_now, chance_now = callers.state()
    same = (all(map(torch.equal, tensors, now)) and places == places_now
            and chance == chance_now)
    no_gradients = callers.closed.grad is None and callers.module.bias.grad is None
    return report.right, same, no_gradients


def groups_made_afterwards():
    """Makes groups after a check among some ranks, which must not change torch's group counts."""
    pair = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        parts.use(pair)
        distgrad.gradcheck(right_sum, matrix(), pair)
    three = dist.new_group([0, 1, 2])
    x = torch.ones(1)
    if dist.get_rank() < 3:
        dist.all_reduce(x, group=three)
    return x.item()


def groups_that_meet_others():
    """Checks in two pairs at the same time a function that also sums over other pairs."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3], [0, 1], [2, 3])]
    own, across = pairs[dist.get_rank() % 2], pairs[2 + dist.get_rank() // 2]

    def squares(x):
        parts.use(across)
        y = right_sum(x) ** 2
        parts.use(own)
        return right_sum(y)

    parts.use(own)
    return distgrad.gradcheck(squares, matrix(), group=own, raise_exception=False)


def seldom_another():
    """Checks a backward that is another one each ninth time, as where a race is lost seldom."""
    parts.use(dist.group.WORLD)
    calls = iter(range(10**6))

    def backward(g, x):
        return reduced(g) * (0.5 if next(calls) % 9 == 8 else 1)

    return distgrad.gradcheck(function(reduced, backward), matrix(), raise_exception=False)


class Failures(unittest.TestCase):
    def assert_as_expected(self, name, case, outcomes):
        *_, options, verdict, words = case
        passes = verdict == "right" or verdict == "disputed" and not options.get("strict")
        for rank, (report, raised, seconds) in enumerate(outcomes):
            self.assertEqual(report.verdict, verdict, f"{name}, rank {rank}:\n{report}")
            self.assertEqual(raised, not passes, name)
            self.assertEqual(report, outcomes[0][0])
            self.assertLess(seconds, 40, name)
        for text in words:
            self.assertIn(running.plain(text), running.plain(outcomes[0][0]),
                          f"{name}:\n{outcomes[0][0]}")

    def test_groups_that_break(self):
        by_rank = ranks.run(lambda: all_of(BROKEN, True))
        for name, case in BROKEN.items():
            with self.subTest(name):
                self.assert_as_expected(name, case, [found[name] for found in by_rank])

    def test_groups_that_go_on(self):
        by_rank = ranks.run(lambda: all_of(OTHERS, False))
        for name, case in OTHERS.items():
            with self.subTest(name):
                self.assert_as_expected(name, case, [found[name] for found in by_rank])

    def test_backwards_that_break(self):
        start = time.monotonic()
        for case, size, report in running.reports(breaking.CASES):
            with self.subTest(case.name, ranks=size):
                self.assertEqual(running.objections(case, report), [],
                                 f"{case.name} on {size} ranks:\n{report}")
        self.assertLess(time.monotonic() - start, 60 + 6 * len(breaking.CASES))

    def test_a_rank_that_is_late(self):
        self.assert_as_expected("late", HANGS, ranks.run(lambda: the_hang(4)))

    def test_a_rank_that_hangs(self):
        outcomes = ranks.run(lambda: the_hang(600), may_die=[2])
        self.assert_as_expected("hangs", HANGS, outcomes[:2] + outcomes[3:])

    def test_ranks_leave_together_what_does_not_give_up_by_itself(self):
        for rank, (verdict, text, broken) in enumerate(ranks.run(breaks_together)):
            self.assertEqual(verdict, "error", text)
            self.assertIn("rank 1, forward: ValueError: no such layer", text)
            self.assertEqual(broken[:1], [rank])

    def test_a_rank_that_dies(self):
        outcomes = ranks.run(dies, may_die=[3])
        for report, raised, seconds in outcomes[:3]:
            self.assertEqual((report.verdict, raised), ("error", True))
            self.assertIn("rank 3", str(report))
            self.assertLess(seconds, 40)

    def test_the_callers_tensors(self):
        self.assertEqual(ranks.run(leaves_all_as_it_was, 2), [(True, True, True)] * 2)

    def test_groups_made_afterwards(self):
        self.assertEqual(ranks.run(groups_made_afterwards, timeout_s=100), [3, 3, 3, 1])

    def test_what_is_seldom_another_is_blamed_on_nothing_else(self):
        report = ranks.run(seldom_another, 2)[0]
        self.assertEqual([f.name for f in report.findings], ["nondeterministic"], report)

    def test_groups_that_meet_others_are_not_judged(self):
        for rank, report in enumerate(ranks.run(groups_that_meet_others)):
            self.assertEqual(report.verdict, "undecided", report)
            self.assertIn(f"communicates with ranks {'1, 3' if rank % 2 == 0 else '0, 2'}, outside"
                          " of `group`", report.notes[0])

    def test_without_process_group(self):
        with self.assertRaisesRegex(ValueError, "torch.distributed is not initialised"):
            distgrad.gradcheck(right_sum, torch.ones(2, requires_grad=True))


if __name__ == "__main__":
    unittest.main()
