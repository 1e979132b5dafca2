"""Lists backwards that hang or raise on some ranks, or whose inputs require grad only on some. Each
is right, or wrong with a reason; none is an error, and none needs a time-out to be told."""

import torch
import torch.distributed as dist

from .parts import Case, function, gathered, group, matrix, me, n, reduced, right_sum, two_of_one


class SkipsUnneeded(torch.autograd.Function):
    """Skips the collective if needs_input_grad is False."""

    @staticmethod
    def forward(ctx, a, b):
        return a + reduced(b)

    @staticmethod
    def backward(ctx, g):
        return g, reduced(g) if ctx.needs_input_grad[1] else None


class SumsFirst(SkipsUnneeded):
    """Enters the collective in any case."""

    @staticmethod
    def backward(ctx, g):
        total = reduced(g)
        return g, total if ctx.needs_input_grad[1] else None


class OneGradient(SkipsUnneeded):
    @staticmethod
    def backward(ctx, g):
        return g


def skips_none(gy, gz):
    total = reduced(gy) if gy is not None else 0
    return total + (2 * reduced(gz) if gz is not None else 0)


def skips_expanded(g, x):
    return g * n() if 0 in g.stride() else reduced(g)


def raises_on_rank_2(g, x):
    if me() == 2:
        raise KeyError("lost")
    return reduced(g)


def raises_where_transposed(g, x):
    if me() == 1 and not g.is_contiguous():
        raise ValueError("not contiguous here")
    return reduced(g)


def returns_early(g, x):
    return g.clone() if me() == 0 else reduced(g)


def counts_on_some(g, x):
    g = reduced(g)
    if me() != 0:
        reduced(torch.ones(()))
    return g


def another_collective(g, x):
    return gathered(g).sum(0) if me() == 1 else reduced(g)


def one_more(g, x):
    total = reduced(g)
    return reduced(total) / n() if me() == 2 else total


def nobody_raises_it(g, x):
    raise NotImplementedError("no backward yet")


def waits_for_a_message(g, x):
    if me() == 1:
        dist.recv(torch.empty_like(g), group=group(), group_src=0)
    return reduced(g)


def frozen(*ranks):
    """Returns inputs of which the second does not require grad on these ranks."""
    def inputs():
        return matrix(), matrix(low=0.1).detach().requires_grad_(me() not in ranks)

    return inputs


def detached(*ranks):
    return lambda: matrix().detach().requires_grad_(me() not in ranks)


def linear():
    layer = torch.nn.Linear(3, 2, dtype=torch.float64)
    layer.weight.requires_grad_(me() != 0)
    return matrix(2, 3), layer


def breaking(name, function, inputs, finding, *words, **more):
    return Case(name, function, inputs, finding, words=words, breaks=True,
                **{"ranks": (3,), "alone": False, **more})


CASES = [
    breaking("skips what is not needed", SkipsUnneeded.apply, frozen(1), "other-backward",
             "Where b does not require grad on rank 1 the backward hangs: rank 1 never entered the"
             " all_reduce that ranks 0, 2 wait in (needs_input_grad is False there)"),
    breaking("skips what is not needed on two ranks", SkipsUnneeded.apply, frozen(0, 2),
             "other-backward", "ranks 0, 2 never entered the all_reduce that ranks 1, 3 wait in",
             ranks=(4,)),
    Case("sums what is not needed", SumsFirst.apply, frozen(1), breaks=True),
    breaking("skips where the cotangent is None", two_of_one(skips_none), matrix, "other-backward",
             "where y0 has no part in rank 0's loss the backward hangs: rank 0 never entered the"
             " all_reduce that ranks 1, 2 wait in (the cotangent of y0 is None on rank 0)"),
    breaking("another way where it is expanded", function(reduced, skips_expanded), matrix,
             "contiguity", "expanded on rank 2 alone the backward hangs: rank 2 never entered the"
             " all_reduce that ranks 0, 1 wait in"),
    breaking("raises on one rank", function(reduced, raises_on_rank_2), matrix, "other-backward",
             "the backward raises on rank 2: KeyError: 'lost'", "in raises_on_rank_2"),
    breaking("raises where it is transposed", function(reduced, raises_where_transposed), matrix,
             "contiguity",
             "where the cotangent is transposed the backward raises on rank 1: ValueError: not"),
    breaking("returns early", function(reduced, returns_early), matrix, "other-backward",
             "rank 0 never entered the all_reduce that ranks 1, 2 wait in", "waits at"),
    breaking("one more of another size", function(reduced, counts_on_some), matrix,
             "other-backward", "rank 0 never entered the all_reduce that ranks 1, 2 wait in"),
    breaking("another collective", function(reduced, another_collective), matrix, "other-backward",
             "wait for each other in different collectives: rank 1 in all_gather, ranks 0, 2 in"),
    breaking("raises everywhere", function(reduced, nobody_raises_it), matrix, "other-backward",
             "the backward raises on every rank: NotImplementedError: no backward yet"),
    breaking("too few gradients", OneGradient.apply, frozen(), "other-backward",
             "returned an incorrect number of gradients (expected 2, got 1)"),
    breaking("a message that nobody sends", function(reduced, waits_for_a_message), matrix,
             "other-backward", "the backward hangs", options={"timeout_s": 20}),
    Case("detached on one rank, and local", lambda x: 2 * x, detached(1), breaks=True,
         right=("x̄_r = 2 ȳ_r, r = 0, 2", "x̄_1 = 0")),
    breaking("detached on one rank, and summed", right_sum, detached(1), "other-backward",
             "where x does not require grad on rank 1 the backward hangs",
             "(y does not require grad there either, so that no backward of it runs)"),
    Case("a weight that is frozen on one rank", lambda x, w: right_sum(x * w), frozen(1),
         breaks=True),
    breaking("a weight that is frozen on one rank, twice",
             lambda x, w: function(reduced, lambda g, x: 2 * reduced(g))(x * w), frozen(1),
             "scaled", "y -> w", "on ranks 0, 2 the gradient is 2 times the right one"),
    Case("a layer whose weight is frozen on one rank", lambda x, layer: right_sum(layer(x)), linear,
         breaks=True),
]
