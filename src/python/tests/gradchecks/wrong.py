"""Lists functions whose backward is wrong, with the finding and formula that must be reported."""

import time

import torch
import torch.distributed as dist

from . import constants, right
from .parts import (NOTHING, Case, exchanged, function, gathered, group, matrix, max_of, me, n,
                    product_of, reduced, right_gather, right_sum, rooted, scattered, two_of_one)

SUM = ("x̄_r = Σ_k ȳ_k",)
GATHER = ("x̄_r = Σ_k ȳ_k[r]",)
PRODUCT = ("x̄_r = Σ_k J_rᵀ ȳ_k",)
REPLICATED = "one loss that every rank computes"
ALL = (3, 4)


def square(rows=None):
    """Returns a matrix with a row for each rank."""
    return matrix(n() if rows is None else rows, 2)


def of_sum(name, backward, finding, *measured, **more):
    return Case(name, function(reduced, backward), matrix, finding, measured or None, SUM, **more)


def halo(x):
    """Returns the rank's rows between the next rows of its neighbours; the outermost have none."""
    ranks = gathered(x)
    rows = [ranks[me() - 1][-1:] if me() else torch.zeros_like(x[:1]), x,
            ranks[me() + 1][:1] if me() < n() - 1 else torch.zeros_like(x[:1])]
    return torch.cat(rows)


def wrapped_halo(g, x):
    """Gives the outermost ranks' rows each other's cotangents as well."""
    ranks = gathered(g)
    out = g[1:-1].clone()
    out[-1:] += ranks[(me() + 1) % n()][:1]
    out[:1] += ranks[me() - 1][-1:]
    return out


class ForgetsTheFactor(torch.autograd.Function):
    """Gives its factor no gradient. Its forward gets no context, by which it would be known."""

    @staticmethod
    def forward(x, factor):
        return reduced(x * factor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        return reduced(grad) * ctx.saved_tensors[0], None


def weights():
    return torch.arange(6, dtype=torch.float64).reshape(2, 3) + 1.5 * me() + 1


def fractions():
    return torch.tensor([[2, 1, 3, 5], [1, 7, 2, 1], [4, 3, 1, 2], [1, 1, 6, 1]],
                        dtype=torch.float64) / 8


def by_rank(g, coefficients):
    return (gathered(g) * coefficients.to(g.dtype).reshape(-1, *[1] * g.dim())).sum(0)


def among_pairs(g):
    both = gathered(g)
    first = me() // 2 * 2
    return both[first] + both[first + 1]


SIZES = [2, 1, 3]


def uneven_rows():
    return matrix(SIZES[me()], 2)


def uneven_slices(offset):
    """Joins the ranks' rows, whose numbers differ between ranks."""
    def joined(x):
        whole = x.new_zeros(sum(SIZES), 2)
        at = sum(SIZES[:me()])
        whole[at:at + len(x)] = x
        return reduced(whole)

    return function(joined, lambda g, x: reduced(g)[offset():offset() + len(x)].clone())


def half_as_much_again(g, x):
    g = reduced(g)
    if me() == 1:
        g[3, 2] *= 1.5
    return g


def summed_in_place(x, operation=torch.exp):
    y = operation(x)
    dist.all_reduce(y, group=group())
    return y


summed_by_own = function(reduced, lambda g, x: g.clone())

# ---- a sum

SUMS = [
    of_sum("identity", lambda g, x: g.clone(), "identity-backward", "x̄_r = ȳ_r",
           right_for=REPLICATED, ranks=ALL),
    of_sum("the cotangent itself", lambda g, x: g, "identity-backward", "x̄_r = ȳ_r"),
    of_sum("mean", lambda g, x: reduced(g) / n(), "scaled", "x̄_r = 1/4 Σ_k ȳ_k",
           right_for="the mean of all ranks' losses", ranks=(4,)),
    of_sum("summed twice", lambda g, x: reduced(reduced(g)), "double-reduction", "x̄_r = 4 Σ_k ȳ_k",
           words=("the number of ranks",), ranks=(4,)),
    of_sum("sign turned", lambda g, x: -reduced(g), "scaled", "x̄_r = -Σ_k ȳ_k",
           words=("its sign is turned",)),
    of_sum("without rank 2", lambda g, x: reduced(g * (me() != 2)), "missing-reduction",
           "x̄_r = Σ_{k≠2} ȳ_k", words=("the cotangent of rank 2 is in no rank's gradient",)),
    of_sum("without the own", lambda g, x: reduced(g) - g, "missing-reduction",
           "x̄_r = Σ_{k≠r} ȳ_k", words=("lacks its own",)),
    of_sum("own twice", lambda g, x: reduced(g) + g, "double-reduction", "x̄_r = Σ_k ȳ_k + ȳ_r"),
    of_sum("own and next", lambda g, x: g + gathered(g)[(me() + 1) % n()], "missing-reduction",
           "x̄_r = ȳ_r + ȳ_{r+1}"),
    of_sum("the previous one", lambda g, x: gathered(g)[me() - 1], "missing-reduction",
           "x̄_r = ȳ_{r-1}"),
    of_sum("prefix sum", lambda g, x: gathered(g)[:me() + 1].sum(0), "missing-reduction",
           "x̄_r = Σ_{k≤r} ȳ_k"),
    of_sum("random fractions", lambda g, x: by_rank(g, fractions()[me()]),
           "other-backward", "x̄_0 = 1/4 ȳ_0 + 1/8 ȳ_1 + 3/8 ȳ_2 + 5/8 ȳ_3",
           "x̄_1 = 1/8 ȳ_0 + 7/8 ȳ_1 + 1/4 ȳ_2 + 1/8 ȳ_3",
           "x̄_2 = 1/2 ȳ_0 + 3/8 ȳ_1 + 1/8 ȳ_2 + 1/4 ȳ_3", "x̄_3 = 1/8 Σ_{k≠2} ȳ_k + 3/4 ȳ_2",
           ranks=(4,)),
    of_sum("doubled on rank 2", lambda g, x: reduced(g) * (2 if me() == 2 else 1), "scaled",
           "x̄_r = Σ_k ȳ_k, r = 0, 1, 3", "x̄_2 = 2 Σ_k ȳ_k",
           words=("on rank 2 the gradient is 2 times",), ranks=(4,)),
    of_sum("None everywhere", lambda g, x: None, "no-gradient", "x̄_r = 0",
           words=("None on ranks 0, 1, 2, 3",), ranks=(4,)),
    of_sum("a billionth of the own cotangent on top", lambda g, x: reduced(g) + 1e-9 * g,
           "other-backward", "x̄_r = Σ_k ȳ_k + 1e-09 ȳ_r"),
    Case("own cotangent, sent in float8",
         function(lambda x: reduced(x.to(torch.float8_e4m3fn).to(x.dtype)), lambda g, x: g),
         finding="identity-backward"),
    Case("own cotangent, masked with -inf",
         lambda x: function(reduced, lambda g, x: g)(x).masked_fill(
             torch.arange(x.numel()).reshape(x.shape) % 3 == 1, float("-inf")),
         finding="identity-backward"),
    Case("clips large cotangents", function(reduced, lambda g, x: reduced(g).clamp(-10, 10)),
         finding="other-backward", words=("not linear in the cotangents",)),
    Case("drops small cotangents",
         function(reduced, lambda g, x: reduced(g.where(g.abs() > 1e-3, 0.0))),
         finding="other-backward", words=("not linear in the cotangents",)),
    Case("None for a factor, by a Function with setup_context", ForgetsTheFactor.apply,
         lambda: (matrix(), torch.full((), 2.0 + me(), dtype=torch.float64, requires_grad=True)),
         "no-gradient", ("grad(factor)_r = 0",)),
    of_sum("over pairs of ranks", lambda g, x: among_pairs(g), "wrong-group",
           words=("over the ranks {0, 1} and {2, 3}",), ranks=(4,)),
    Case("of pairs: over all ranks", function(among_pairs, lambda g, x: reduced(g)), matrix,
         "wrong-group", SUM, words=("over all ranks, and not over {0, 1} and {2, 3}",),
         ranks=(4,)),
    Case("of pairs: over other pairs",
         function(among_pairs, lambda g, x: gathered(g)[me() % 2::2].sum(0)), matrix, "wrong-group",
         words=("over the ranks {0, 2} and {1, 3}, and not over {0, 1} and {2, 3}",), ranks=(4,)),
    Case("of pairs: of the other pair",
         function(among_pairs, lambda g, x: reduced(g) - among_pairs(g)), matrix, "wrong-slice",
         ranks=(4,)),
    of_sum("elements shifted", lambda g, x: reduced(g).reshape(-1).roll(1).reshape(g.shape),
           "wrong-slice", words=("(5, 0, 1, 2, 3, 4)",)),
    of_sum("elements transposed", lambda g, x: reduced(g).t().contiguous().reshape(g.shape),
           "wrong-slice", words=("that of the transposed tensor",)),
    of_sum("a number of each rank's own", lambda g, x: reduced(g) * [2, 1, 2 / 3][me()], "scaled",
           "x̄_r = c_r Σ_k ȳ_k, c = (2, 1, 2/3)",
           words=("2 on rank 0, 1 on rank 1, 2/3 on rank 2",)),
    Case("a number of each rank's own, where one has no elements",
         function(lambda x: reduced(x.sum(0)),
                  lambda g, x: (reduced(g) * [2, 1, 2 / 3][me()]).expand_as(x)),
         lambda: matrix([2, 0, 3][me()]), "scaled",
         words=("2 on rank 0, 2/3 on rank 2",), absent=("on rank 1",)),
    Case("an input with the output's name", lambda y: summed_by_own(y), lambda: {"y": matrix()},
         "identity-backward", words=("out_y -> y", "ȳ_r = grad(out_y)_r")),
    Case("a two-thousandth more of a steep function",
         lambda x: torch.sin(300 * function(reduced, lambda g, x: 1.0005 * reduced(g))(x)), matrix,
         "scaled", words=("1.0005 times the right one",)),
    Case("twice of a sine of a slope of 6,000",
         lambda x: torch.sin(6000 * function(reduced, lambda g, x: 2 * reduced(g))(x)), matrix,
         "scaled", words=("2 times the right one",)),
    of_sum("a hundredth more on rank 1", lambda g, x: reduced(g) * (1.01 if me() == 1 else 1),
           "scaled", ranks=ALL, words=("on rank 1 the gradient is 1.01 times the right one",)),
    of_sum("a hundredth more of rank 1", lambda g, x: reduced(g * (1.01 if me() == 1 else 1)),
           "scaled", "x̄_r = Σ_k ȳ_k + 0.01 ȳ_1",
           words=("each rank's cotangent counts", "1.01 on rank 1")),
    Case("one element of 20 on rank 1", function(reduced, half_as_much_again),
         lambda: matrix(5, 4), "other-backward", words=("wrong in x[3, 2] on rank 1 alone",)),
    Case("uneven slices at the even offset", uneven_slices(lambda: SIZES[me()] * me() % 4),
         uneven_rows, "wrong-slice",
         words=("rank 2's element 0 is rank 1's element 0",)),
    Case("uneven slices a row too early", uneven_slices(lambda: max(0, sum(SIZES[:me()]) - 1)),
         uneven_rows, "wrong-slice",
         words=("rank 1's element 0 is rank 0's element 2",)),
    Case("what exp saved is summed in place", summed_in_place, matrix, "stale-or-aliased",
         words=("what autograd saved for the backward is overwritten",)),
    Case("what softmax saved is summed in place",
         lambda x: summed_in_place(x, lambda x: torch.softmax(x, -1)) / n(), matrix,
         "stale-or-aliased"),
    of_sum("an element lost", lambda g, x: reduced(g) * (torch.arange(6).reshape(2, 3) != 4),
           "other-backward"),
]

# ---- other forwards

def of_gather(name, backward, finding, *measured, **more):
    return Case(name, function(gathered, backward), matrix, finding, measured or None, GATHER,
                **more)


GATHERS = [
    of_gather("gather: own slice", lambda g, x: g[me()].clone(), "own-slice", "x̄_r = ȳ_r[r]",
              right_for=REPLICATED, ranks=ALL),
    of_gather("gather: next slice", lambda g, x: reduced(g)[(me() + 1) % n()], "wrong-slice",
              "x̄_r = Σ_k ȳ_k[r+1]"),
    of_gather("gather: mean", lambda g, x: reduced(g)[me()] / n(), "scaled",
              "x̄_r = 1/4 Σ_k ȳ_k[r]", ranks=(4,)),
]


def average(x):
    return reduced(x) / n()


def zero_on_rank_1():
    x = matrix().detach()
    if me() == 1:
        x[1, 2] = 0
    return x.requires_grad_()


def tied():
    """Returns an input of which ranks 0 and 1 hold the largest value of element 0."""
    x = matrix().detach()
    x[0, 0] = 5.0 if me() < 2 else 0.25 * me()
    return x.requires_grad_()


def max_in_full(x):
    """Gives each rank that holds the maximum all of the gradient."""
    return function(max_of, lambda g, x: reduced(g) * (x == max_of(x)))(x)


def min_in_full(x):
    return function(right.least, lambda g, x: reduced(g) * (x == right.least(x)))(x)


def capped_twice(x):
    """Has the slope 2 at the cap, where any number from 0 to 1 is right."""
    return function(lambda x: reduced(x.clamp(max=1)),
                    lambda g, x: reduced(g) * ((x < 1).to(x.dtype) + 2 * (x == 1)))(x)


def median_in_full(g, x):
    return reduced(g) * (x == x.median())


def median_twice(g, x):
    """Gives twice the gradient to one of the equal elements."""
    first = (x == x.median()).reshape(-1).nonzero()[0]
    return (2 * reduced(g) * torch.nn.functional.one_hot(first, x.numel())).reshape(x.shape)


def medians(x):
    return reduced(x.median())


def sorted_values(x):
    return reduced(x.sort(-1).values)


def in_full(g, x):
    """Gives each of the equal elements all that goes to any of them."""
    return torch.einsum("ab,abc->ac", reduced(g),
                        (x.sort(-1).values[..., None] == x[:, None]).to(x.dtype))


def twice_in_order(g, x):
    return 2 * torch.zeros_like(x).scatter(-1, x.sort(-1).indices, reduced(g))


def running_maxima(x):
    return reduced(x.cummax(-1).values)


def running_in_full(g, x):
    """Gives all of a running maximum's gradient to every element so far that is as large."""
    before = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).tril()
    is_largest = (x.cummax(-1).values[..., None] == x[:, None]) & before
    return torch.einsum("ab,abc->ac", reduced(g), is_largest.to(x.dtype))


def inside_in_full(g, x):
    h = x @ right.weights(3, 5)
    same = (h.sort(-1).values[..., None] == h[:, None]).to(x.dtype)
    return torch.einsum("ab,abc,dc->ad", reduced(g), same, right.weights(3, 5))


class OtherRanksTarget(right.VocabularyParallel):
    """Acts as if each rank had the target."""

    @staticmethod
    def backward(ctx, g):
        shares, own, at = ctx.saved_tensors
        return reduced(g)[:, None] * shares.scatter_add(1, at, -torch.ones_like(own).double()), None


def average_of_ties(x):
    return function(average, lambda g, x: reduced(g))(x.amax())


def tied_on_rank_1():
    return right.rows([3.0, 3, 1] if me() == 1 else [3.0, 2, 1])()


ROWS = torch.tensor([0, 1, 1, 0])


def rows_assigned(g, w):
    result = torch.zeros_like(w)
    result[ROWS] = g
    return result


def above_one(x):
    return torch.where(x > 1, x, torch.zeros_like(x))


def masked(x):
    return above_one(x) + 3 * x.flip(0)


identity = function(reduced, lambda g, x: g.clone())
twice = function(reduced, lambda g, x: 2 * reduced(g))
at_one = right.rows([1.0, 0.5, 2, 3])

OTHERS = [
    Case("median: ties in full", function(medians, median_in_full), right.equal_in_rows, "tie",
         words=("add up to 16", "change the output by 4"), ranks=(4,)),
    Case("median: one of a tie twice", function(medians, median_twice), right.equal_in_rows,
         "scaled", words=("2 times the right one",)),
    Case("median: nothing to a tie", function(medians, lambda g, x: torch.zeros_like(x)),
         right.equal_in_rows, "no-gradient"),
    Case("median: identity", lambda x: identity(x.median()), right.equal_in_rows,
         "identity-backward"),
    Case("sort: ties in full", function(sorted_values, in_full), right.equal_in_rows, "tie"),
    Case("sort: twice", function(sorted_values, twice_in_order), right.equal_in_rows, "scaled",
         words=("2 times the right one",)),
    Case("sort: all equal, identity", lambda x: identity(x.sort(-1).values),
         right.rows([2.0, 2, 2]), "identity-backward"),
    Case("a tie of weighted values, in full",
         lambda x: right_sum(right.with_gradient(right.weighted_max, 2, 1, 1)(x)),
         right.rows(1.0, 2, 1), "tie", ranks=(2,),
         words=("weighted with (0.5, 1, 1",)),
    Case("two ties, one lost",
         lambda x: right_sum(right.with_gradient(right.two_maxima, 1, 0, 0, 0)(x)),
         right.rows(1.0, 1, 2, 2), "tie", ranks=(2,)),
    Case("sort of what is equal inside: in full",
         function(lambda x: reduced(right.sorted_inside(x)), inside_in_full), right.zeros(1, 3),
         "tie", ranks=(2,)),
    Case("sort of what is equal inside: identity", lambda x: identity(right.sorted_inside(x)),
         right.zeros(1, 3), "identity-backward", ranks=(2,)),
    Case("kinks that cancel out: identity", lambda x: identity(right.cancel_out(x)),
         right.rows([0.0, 1, 2]), "identity-backward", ranks=(2,)),
    Case("kinks that cancel out: twice", lambda x: twice(right.cancel_out(x)),
         right.rows([0.0, 1, 2]), "scaled"),
    Case("max: all ranks tie, in full", constants.whole_max, right.alike, "tie", ranks=(3, 4)),
    Case("max: all ranks tie, in full, in a sum", lambda x: constants.whole_max(x).sum(),
         right.alike, "tie"),
    Case("max: some ranks tie in some elements, in full", constants.whole_max,
         right.partly_alike, "tie", ranks=(3, 4)),
    Case("max: some ranks tie in some elements, in full, in a sum",
         lambda x: constants.whole_max(x).sum(), right.partly_alike, "tie"),
    Case("average of a tie on one rank: as a sum", average_of_ties, tied_on_rank_1, "scaled",
         words=("4 on rank 0",), ranks=(4,)),  # On rank 1 any gradient between two is right.
    Case("vocabulary-parallel cross entropy of zeros: all have the target",
         lambda x: OtherRanksTarget.apply(x, torch.tensor([1, 4, 7])), right.zeros(3, 3),
         "wrong-slice", ranks=(4,)),  # Of zeros the right gradients have the same numbers.
    Case("routed by zeros: twice", lambda x, w: right.routed(twice, x, w),
         lambda: (matrix(1, 2), right.zeros(2, 3)()), "scaled", alone=False, ranks=(2,),
         words=("2 times the right one", "jumps at these inputs in w[0, 0]")),
    Case("routed by zeros in float32: twice", lambda x: twice(right.best_in_float32(x)),
         right.zeros(1, 3), "tie"),
    Case("routed by zeros in float32: identity", lambda x: identity(right.best_in_float32(x)),
         right.zeros(1, 3), "identity-backward"),
    Case("largest in float32, of equal values: identity", lambda x: identity(x.float().amax(-1)),
         right.rows([1.0, 1, 1, 1]), "identity-backward"),
    Case("boxes that are equal: twice", lambda a, b: twice(right.by_where(a, b)),
         right.equal_boxes, "tie", ranks=(2, 3)),
    Case("boxes that are equal: identity", lambda a, b: identity(right.by_where(a, b)),
         right.equal_boxes, "identity-backward", ranks=(2, 3)),
    Case("all equal: twice", lambda x: twice(x.amax(-1)), right.rows([1.0, 1, 1]), "scaled",
         words=("2 times the right one",)),
    Case("all equal: the largest twice", lambda x: twice(x.max(-1).values),
         right.rows([1.0, 1, 1]), "scaled", words=("2 times the right one",)),
    Case("sort: all equal, the sign turned",
         function(sorted_values, lambda g, x: -twice_in_order(g, x) / 2), right.rows([2.0, 2, 2]),
         "scaled", words=("its sign is turned",)),
    Case("a norm of zeros with an epsilon: identity",
         lambda x: identity(right.root_mean_square(x)), right.zeros(2, 3), "identity-backward",
         ranks=(2,)),
    Case("a bend beside a slope: twice", function(right.bent, lambda g, x: 2 * g),
         right.rows([1.0, 1]), "scaled"),
    Case("running maxima: ties in full", function(running_maxima, running_in_full),
         right.equal_in_rows, "tie"),
    Case("an embedding of repeated rows, not added up",
         function(lambda w: reduced(w[ROWS]), lambda g, w: rows_assigned(reduced(g), w)), matrix,
         "other-backward"),
    Case("a threshold at an input: identity", lambda x: identity(above_one(x)), at_one,
         "identity-backward", words=("jumps at these inputs in x[0, 0] on",)),
    Case("a threshold at an input: twice", lambda x: twice(masked(x)), at_one, "scaled",
         words=("2 times the right one",)),
    Case("average: as a sum", function(average, lambda g, x: reduced(g)), matrix, "forgotten-op",
         ("x̄_r = Σ_k ȳ_k",), ("x̄_r = 1/4 Σ_k ȳ_k",), ranks=(4,)),
    Case("product: identity", function(product_of, lambda g, x: g.clone()), matrix,
         "identity-backward", ("x̄_r = ȳ_r",), PRODUCT),
    Case("product: own loss", function(product_of, lambda g, x: g * product_of(x) / x), matrix,
         "identity-backward", ("x̄_r = J_rᵀ ȳ_r",), PRODUCT, right_for=REPLICATED),
    Case("product: as a sum", function(product_of, lambda g, x: reduced(g)), matrix, "forgotten-op",
         ("x̄_r = Σ_k ȳ_k",), PRODUCT),
    Case("product: of the cotangents", function(product_of, lambda g, x: product_of(g)), matrix,
         "same-op-backward", ("x̄_r = product_k ȳ_k",)),
    Case("product: divided by 0", function(product_of, lambda g, x: reduced(g) * product_of(x) / x),
         zero_on_rank_1, "zero-input"),
    Case("max: of the cotangents", function(max_of, lambda g, x: max_of(g)), matrix,
         "same-op-backward", ("x̄_r = max_k ȳ_k",)),
    Case("max: ties in full", max_in_full, tied, "tie",
         words=("add up to 2", "change the output by 1")),
    Case("min: ties in full", min_in_full, lambda: right.negative(tied), "tie",
         words=("add up to 2", "change the output by 1")),
    Case("capped: twice at the cap", capped_twice, right.twos, "tie",
         words=("between the slopes of both sides",)),
    Case("reduce_scatter: own",
         function(scattered,
                  lambda g, x: torch.nn.functional.one_hot(torch.tensor(me()), n())[:, None] * g),
         square, "missing-reduction", ("x̄_r = [ȳ_r]_r",), ("x̄_r = Σ_k [ȳ_k]_k",)),
    Case("average by reduce_scatter: as a sum",
         function(lambda x: scattered(x) / n(), lambda g, x: gathered(g)), square, "forgotten-op",
         ("x̄_r = Σ_k [ȳ_k]_k",), ("x̄_r = 1/4 Σ_k [ȳ_k]_k",), ranks=(4,)),
    Case("reduce_scatter: places reversed", function(scattered, lambda g, x: gathered(g).flip(0)),
         square, "wrong-slice", None, ("x̄_r = Σ_k [ȳ_k]_k",)),
    Case("reduce_scatter: times N", function(scattered, lambda g, x: n() * gathered(g)), square,
         "double-reduction", ("x̄_r = 4 Σ_k [ȳ_k]_k",), ranks=(4,)),
    Case("all_to_all: not exchanged", function(exchanged, lambda g, x: g.clone()), square,
         "identity-backward", ("x̄_r = ȳ_r",)),
    Case("broadcast: identity", function(rooted, lambda g, x: g.clone()), matrix,
         "identity-backward", ("x̄_r = ȳ_r",), ("x̄_0 = Σ_k ȳ_k", "x̄_r = 0, r = 1, 2, 3"),
         ranks=(4,)),
    Case("broadcast: to all", function(rooted, lambda g, x: reduced(g)), matrix, "double-reduction",
         SUM, ("x̄_0 = Σ_k ȳ_k", "x̄_r = 0, r = 1, 2, 3"), ranks=(4,)),
    Case("broadcast: the root's own", function(rooted, lambda g, x: g * (me() == 0)), matrix,
         "identity-backward", words=("Rank 0 went on with its own cotangent",), ranks=(3,)),
    Case("broadcast: another root", function(rooted, lambda g, x: reduced(g) * (me() == 1)), matrix,
         "wrong-slice"),
    Case("copy: summed", function(lambda x: x.clone(), lambda g, x: reduced(g)),
         matrix, "double-reduction", SUM, ("x̄_r = ȳ_r",), right_for="an input that is one tensor"),
]


# ---- how the backward behaves

_last = {}


def last_signs(x):
    """Keeps which elements were positive in the last call only, which nearby inputs do not show."""
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            _last["signs"] = x > 0
            return reduced(x * _last["signs"])

        @staticmethod
        def backward(ctx, g):
            return reduced(g) * _last["signs"]

    return Keeps.apply(x)


def last_operand(x):
    """Keeps the operand of the last call only, not that of each call."""
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            _last["x"] = x
            return product_of(x)

        @staticmethod
        def backward(ctx, g):
            return reduced(g) * product_of(_last["x"]) / _last["x"]

    return Keeps.apply(x)


def last_cotangent(g, x):
    """Sums the cotangent of the time before, as a send that is one step late does."""
    before = _last.get("g", torch.zeros_like(g))
    _last["g"] = g.clone()
    return reduced(before if before.shape == g.shape else g)


_buffer = {}


def one_buffer(g, x):
    """Returns the same memory each time."""
    kept = _buffer.setdefault(g.shape, torch.empty_like(g, memory_format=torch.contiguous_format))
    return kept.copy_(reduced(g))


def in_memory_order(g, x):
    """Takes the elements in memory order, as Gloo's scatter does."""
    fits = g.storage_offset() + g.numel() <= g.untyped_storage().nbytes() // 8
    flat = g.as_strided((g.numel(),), (1,)) if fits else g.reshape(-1)
    return reduced(flat).reshape(g.shape)


def in_place(g, x):
    dist.all_reduce(g, group=group())
    return g


class OnBothCotangents(torch.autograd.Function):
    """Writes to the cotangents of both outputs; at times this changes only one of them."""

    @staticmethod
    def forward(ctx, x):
        return reduced(x), reduced(x) * 2

    @staticmethod
    def backward(ctx, g, h):
        result = reduced(g) + 2 * reduced(h)
        if g.is_contiguous() and h.is_contiguous():
            g.add_(1)
            h.zero_()
        return result


class InAnotherOrder(torch.autograd.Function):
    """Enters the collectives in another order on rank 0 in backward."""

    @staticmethod
    def forward(ctx, x, z):
        return reduced(x), reduced(z)

    @staticmethod
    def backward(ctx, a, b):
        if me() == 0:
            b = reduced(b)
            return reduced(a), b
        a = reduced(a)
        return a, reduced(b)


def of_both_or_the_first(a, b):
    """Forgets the second output if it alone has a cotangent, or lacks one."""
    known = a if b is None else b
    sums = [reduced(torch.zeros_like(known) if g is None else g) for g in (a, b)]
    return sums[0] + 2 * sums[1] if None not in (a, b) else sums[0]


def needs_contiguous(g, x):
    if not g.is_contiguous():
        raise ValueError("tensors must be contiguous")
    return reduced(g)


def with_noise(g, x):
    noise = torch.rand(g.shape, generator=_noise, dtype=torch.float64)
    return reduced(g) * (1 + noise / 8)


_noise = torch.Generator()
_first = set()  # These groups have had their first backward.
_count = {}  # {group: how many backwards wrong_twice() has done}


def wrong_twice(g, x):
    """Leaves the sum out twice, as before something is set up."""
    _count[group()] = count = _count.get(group(), 0) + 1
    return reduced(g) if count > 2 else g


def right_first(g, x):
    """Returns twice the gradient from the second backward on."""
    is_first = group() not in _first
    _first.add(group())
    return reduced(g) * (1 if is_first else 2)


def not_waited_for(g, x):
    """Begins the sum, and returns what is there before it is done."""
    given = g.clone(memory_format=torch.contiguous_format)
    if me() == 0:
        time.sleep(0.01)  # The sum must never be there in time.
    dist.all_reduce(given, group=group(), async_op=True)
    return given


def sends_and_refuses(g, x):
    """Sends and then raises, so that the next backward would receive what was sent."""
    ranks = dist.get_process_group_ranks(group())
    at = ranks.index(dist.get_rank())
    came = torch.empty(g.shape, dtype=g.dtype)
    sent = dist.isend(g.contiguous(), ranks[at - 1], group())
    if g.stride() == g.t().contiguous().t().stride() and not g.is_contiguous():
        raise ValueError("must not be transposed")
    dist.recv(came, ranks[(at + 1) % len(ranks)], group())
    sent.wait()
    return reduced(g)


scaled_a_little = function(reduced, lambda g, x: 33 / 32 * reduced(g))


def behaving(name, backward, finding, *words, **more):
    return Case(name, function(reduced, backward), matrix, finding, words=words, **more)


BEHAVIOURS = [
    behaving("bfloat16 on the way", lambda g, x: reduced(g.bfloat16()).double(), "precision",
             "bfloat16"),
    behaving("a factor that bfloat16's roundings could hide", lambda g, x: 33 / 32 * reduced(g),
             "scaled", "33/32 times the right one"),
    Case("a factor beside a cast to float16", lambda x: scaled_a_little(x.half()).to(x.dtype),
         matrix, "scaled", words=("33/32 times the right one", "casts to float16"), ranks=(3,)),
    behaving("float32 on the way", lambda g, x: reduced(g.float()).double(), "precision",
             "float32"),
    behaving("in place on the cotangent", in_place, "stale-or-aliased", "writes to the cotangent",
             alone=False),
    Case("in place on both cotangents", OnBothCotangents.apply, matrix, "stale-or-aliased",
         words=("writes to the cotangent that it is given.",)),
    Case("collectives in another order on rank 0", InAnotherOrder.apply,
         lambda: (matrix(2, 3), matrix(3, 2)), "other-backward", alone=False,
         words=("On rank 0 the cotangents of y0 and y1 are exchanged",)),
    Case("an output that rank 0 leaves out", two_of_one(of_both_or_the_first), matrix,
         "other-backward", alone=False,
         words=("Where y0 has no part in rank 0's loss the gradient is another one",)),
    behaving("order of memory", in_memory_order, "contiguity", "transposed"),
    behaving("refuses what is not contiguous", needs_contiguous, "contiguity", "must be contiguous",
             breaks=True),
    behaving("sends, and refuses what is transposed", sends_and_refuses, "contiguity",
             "is not contiguous (transposed): ValueError: must not be transposed",
             absent=("sliced", "expanded"), breaks=True),
    behaving("the last cotangent", last_cotangent, "stale-or-aliased",
             "depends on the backward that ran before"),
    Case("the last operand", last_operand, matrix, "stale-or-aliased",
         words=("after another forward",), alone=False, ranks=(4,)),
    Case("ones", function(reduced, lambda g, x: torch.ones_like(g)), matrix, "other-backward",
         alone=False, words=("Cotangents of zero give a gradient that is not zero, and all",),
         absent=("no-gradient",)),
    Case("no sum of zeros", function(reduced, lambda g, x: reduced(g) if bool(g.any()) else g),
         matrix, "other-backward", alone=False, absent=("another linear map",),
         words=("How many collectives a rank enters depends on its cotangent",)),
    Case("the last signs", last_signs, lambda: matrix(low=-0.5), "stale-or-aliased", alone=False,
         words=("After another forward, at other inputs,",)),
    behaving("one buffer for all", one_buffer, "stale-or-aliased", "called twice in one graph"),
    behaving("noise", with_noise, "nondeterministic"),
    behaving("right the first time", right_first, "nondeterministic",
             "first backward is right, and later ones give another gradient", alone=False),
    behaving("wrong the first two times", wrong_twice, "nondeterministic",
             "first backward gives another gradient than later ones", alone=False),
    Case("nobody waits, of random directions", function(reduced, not_waited_for),
         lambda: matrix(20, 30), "nondeterministic", alone=False, options={"basis": False},
         words=("Nobody waits in time for all_reduce (wrong.py:",)),
    Case("weighted after the sum, and not before",
         function(lambda x: reduced(x) * weights(), lambda g, x: reduced(g) * weights()), matrix,
         "other-backward", absent=("belongs to other ranks",)),
    Case("nobody waits, beside bfloat16",
         lambda x: x + function(reduced, not_waited_for)(x.bfloat16()).to(x.dtype), matrix,
         "nondeterministic", alone=False,
         words=("Nobody waits in time for all_reduce (wrong.py:",)),
    Case("a residual beside bfloat16: own", lambda x: x + identity_sum(x.bfloat16()).to(x.dtype),
         matrix, "missing-reduction", ("x̄_r = 2 ȳ_r",), ("x̄_r = Σ_k ȳ_k + ȳ_r",)),
    behaving("nobody waits", not_waited_for, "nondeterministic",
             "Nobody waits in time for all_reduce (wrong.py:", alone=False),
    behaving("clipped", lambda g, x: reduced(g.clamp(-1, 1)), "other-backward",
             "not linear in the cotangents"),
    behaving("clipped after the sum", lambda g, x: reduced(g).clamp(-0.25, 0.25), "other-backward",
             "not linear in the cotangents", absent=("times the right one", "averaged")),
    behaving("clipped by its norm", lambda g, x: reduced(g) / max(1.0, float(reduced(g).norm())),
             "other-backward", "not linear in the cotangents", absent=("roundings of",)),
    behaving("a constant beside it", lambda g, x: reduced(g) + 0.125, "other-backward",
             "cotangents of zero"),
]

# ---- more than one tensor, other dtypes, many elements


def linear(x, w):
    """Is a row-parallel linear layer with the reduction of "copy", so that its input gradient is
    only the own one."""
    return function(reduced, lambda g, x: g.clone())(x @ w)


def two_outputs(x):
    return {"sum": right_sum(x), "mean": function(average, lambda g, x: reduced(g))(x)}


def in_bfloat16(g, x):
    return reduced(g) if g.dtype == torch.float64 else reduced(g) * (me() != 1)


def in_float32(g, x):
    return reduced(g) if g.dtype == torch.float64 else g.clone()


of_a_bit_less = function(reduced, lambda g, x: reduced(g) - g / 1000)
of_a_bit_more = function(reduced, lambda g, x: reduced(g) * 1.001)


def approximate_gelu(x):
    return reduced(torch.nn.functional.gelu(x, approximate="tanh"))


def exact_gelu(g, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = torch.nn.functional.gelu(x)
    return torch.autograd.grad(y, x, reduced(g))[0]


def one_element_off(g, x):
    is_element = torch.arange(600).reshape(20, 30) == 7
    return reduced(g) * (1 + 0.01 * (me() == 1) * is_element)


def sure_and_clipped(x, w):
    return torch.softmax(60 * x, -1) + function(reduced, lambda g, x: reduced(g.clamp(-1, 1)))(w)


def sure_and_identity(x, w):
    return function(reduced, lambda g, x: g.clone())(torch.softmax(60 * x, -1) + w)


def beside_more_in_bfloat16(backward, times):
    of_w = function(reduced, backward)
    return lambda x, w: (right_sum((times * x).bfloat16()) + of_w(w.bfloat16())).to(x.dtype)


def large():
    return matrix(40, 50)


def layer(x, a, b, copy):
    """Is Megatron's layer: a column-parallel linear layer and a row-parallel one."""
    return identity_sum((copy(x) @ a).tanh() @ b)


identity_sum = function(reduced, lambda g, x: g.clone())
megatrons_copy = function(lambda x: x.clone(), lambda g, x: reduced(g))


def of_layer():
    return matrix(2, 3), matrix(3, 2), matrix(2, 3)


def x_and_w():
    return matrix(2, 3), matrix(3, 2)


LARGE = {"basis": False}


def one_element_doubled_on_rank_1(g, x):
    is_element = torch.arange(2000).reshape(40, 50) == 777
    return reduced(g) * (1 + (me() == 1) * is_element)


MORE = [
    Case("nothing for weights in float32 of bfloat16", function(
        lambda x, w: reduced(x.float() @ w), lambda g, x, w: (0 * x, 0 * w)), right.router,
         "no-gradient", ("x̄0_r = 0",), words=("y -> x0, x1",)),
    Case("linear", linear, x_and_w, "identity-backward", ("x̄_r = J_rᵀ ȳ_r",),
         ("x̄_r = Σ_k J_rᵀ ȳ_k",), right_for=REPLICATED, words=("y -> x, w",)),
    Case("Megatron's layer", lambda x, a, b: layer(x, a, b, megatrons_copy), of_layer,
         "identity-backward", ("x̄_r = Σ_k J_kᵀ ȳ_k",), ("x̄_r = Σ_k J_rᵀ ȳ_k",), alone=False,
         right_for=f"{REPLICATED} from it (objective \"replicated\"), and the input x that is one"),
    Case("Megatron's layer, the copy summed twice",
         lambda x, a, b: layer(megatrons_copy(x), a, b, megatrons_copy), of_layer,
         "other-backward", ("x̄_r = 4 Σ_k J_kᵀ ȳ_k",), alone=False, right_for=NOTHING, ranks=(4,)),
    Case("a half is right for a loss of all ranks", lambda x, w: (identity_sum(x), right_gather(w)),
         x_and_w, "identity-backward", ("x̄_r = ȳ0_r",), right_for=NOTHING),
    Case("a half is right for copies", lambda x, w: (identity_sum(x), right_sum(w)), x_and_w,
         "identity-backward", ("x̄_r = ȳ0_r",), right_for="the input w that is one tensor"),
    Case("one of two outputs", two_outputs, matrix, "forgotten-op", ("x̄_r = Σ_k grad(mean)_k",),
         ("x̄_r = 1/4 Σ_k grad(mean)_k",), words=("mean -> x",), ranks=(4,)),
    Case("float32 only", function(reduced, in_float32), lambda: matrix(dtype=torch.float32),
         "identity-backward", ("x̄_r = ȳ_r",), SUM, words=("in float32",)),
    Case("float32: identity", function(reduced, lambda g, x: g.clone()),
         lambda: matrix(dtype=torch.float32), "identity-backward", ("x̄_r = ȳ_r",), SUM,
         words=("float64, float32",)),
    Case("bfloat16: mean", function(reduced, lambda g, x: reduced(g) / n()),
         lambda: matrix(dtype=torch.bfloat16), "scaled", ("x̄_r = 1/4 Σ_k ȳ_k",), SUM, ranks=(4,)),
    Case("bfloat16 only", function(reduced, in_bfloat16), lambda: matrix(dtype=torch.bfloat16),
         "no-gradient", ("x̄_r = Σ_k ȳ_k, r = 0, 2, 3", "x̄_1 = 0"), SUM, words=("in bfloat16",),
         ranks=(4,)),
    Case("float32 and back in bfloat16: identity",
         lambda x: function(reduced, lambda g, x: g.clone())(x.float()).to(x.dtype),
         right.bfloat16, "identity-backward", ("x̄_r = ȳ_r",), SUM),
    Case("returns float32: without a thousandth of the own", lambda x: of_a_bit_less(x.float()),
         right.float32, "other-backward", None, SUM),
    Case("returns float32: 0.1 % more", lambda x: of_a_bit_more(x.float()), right.float32,
         "scaled", ("x̄_r = 1.001 Σ_k ȳ_k",), SUM),
    Case("the exact gelu for its approximation", function(approximate_gelu, exact_gelu), matrix,
         "other-backward"),
    Case("large: one element 1 % off", function(reduced, one_element_off), lambda: matrix(20, 30),
         "other-backward", options=LARGE, words=("wrong in x[0, 7] on rank 1 alone",)),
    Case("returns float32: identity",
         lambda x: function(reduced, lambda g, x: g.clone())(x.float()), right.float32,
         "identity-backward", ("x̄_r = ȳ_r",), SUM),
    Case("float32 in the backward of bfloat16: 0.1 % more",
         function(reduced, lambda g, x: reduced(g.float()).to(g.dtype) * 1.001), right.bfloat16,
         "scaled", None, SUM),
    Case("bfloat16 in the backward of float32",
         function(reduced, lambda g, x: reduced(g.bfloat16()).to(g.dtype)), right.float32,
         "precision", words=("bfloat16",)),
    *(Case(f"beside {times} times as much in bfloat16: {name}",
           beside_more_in_bfloat16(backward, times), lambda: (matrix(), matrix()), name,
           words=("y -> w",))
      for times, name, backward in ((20, "identity-backward", lambda g, x: g.clone()),
                                    (50, "scaled", lambda g, x: -reduced(g)),
                                    (300, "no-gradient", lambda g, x: torch.zeros_like(g)))),
    Case("an output of 0: twice",
         lambda x, a, b: function(reduced, lambda g, x: 2 * reduced(g))(x @ a @ b),
         right.fresh_low_rank, "scaled", words=("y -> b",)),
    Case("an output of 0: identity",
         lambda x, a, b: function(reduced, lambda g, x: g.clone())(x @ a @ b),
         right.fresh_low_rank, "identity-backward", words=("y -> b",)),
    Case("an output of 0: no gradient",
         lambda x, a, b: function(reduced, lambda g, x: torch.zeros_like(g))(x @ a @ b),
         right.fresh_low_rank, "no-gradient", words=("y -> b",)),
    Case("sure of a softmax, and clipped", sure_and_clipped,
         lambda: (right.sure_scores(), matrix(1, 3)), "other-backward"),
    Case("sure of a softmax, and identity", sure_and_identity,
         lambda: (right.sure_scores(), matrix(1, 3)), "identity-backward"),
    Case("sure of a loss in float32, twice", lambda x: twice(torch.nn.functional.cross_entropy(
        60 * x, torch.tensor([0]))), right.scores(torch.float32), "scaled"),
    Case("sure of a softmax in float32, and identity there alone",
         lambda x, w: function(reduced, in_float32)(torch.softmax(60 * x, -1) + w),
         lambda: (right.scores(torch.float32)(), matrix(1, 3, torch.float32)), "identity-backward",
         words=("y -> w", "in float32")),
    Case("a halo that wraps around", function(halo, wrapped_halo), lambda: matrix(3, 2),
         "other-backward", ("x̄_0 = J_{0,0}ᵀ ȳ_0 + J_{1,0}ᵀ ȳ_1 + J_{0,1}ᵀ ȳ_2",
                            "x̄_1 = Σ_k J_{k,1}ᵀ ȳ_k",
                            "x̄_2 = J_{1,0}ᵀ ȳ_0 + J_{1,2}ᵀ ȳ_1 + J_{2,2}ᵀ ȳ_2"),
         ("x̄_0 = Σ_{k≠2} J_{k,0}ᵀ ȳ_k", "x̄_1 = Σ_k J_{k,1}ᵀ ȳ_k", "x̄_2 = Σ_{k≠0} J_{k,2}ᵀ ȳ_k"),
         ranks=(3,)),
    Case("large: identity", function(reduced, lambda g, x: g.clone()), large, "identity-backward",
         ("x̄_r = ȳ_r",), SUM, options=LARGE),
    Case("large: without rank 1", function(reduced, lambda g, x: reduced(g * (me() != 1))), large,
         "missing-reduction", ("x̄_r = Σ_{k≠1} ȳ_k",), SUM, options=LARGE),
    Case("large: one element of one rank", function(reduced, one_element_doubled_on_rank_1), large,
         "other-backward", options=LARGE, words=("wrong in x[15, 27] on rank 1 alone",)),
]

# These once seemed to give ranks what belongs to other ranks.
SHARES = torch.tensor([2, 3, 4], dtype=torch.float64) / 9


def up_to(x):
    return gathered(x)[:me() + 1].sum(0)


UNMOVED = ("wrong-slice", "belong")
MORE += [
    Case("an average by weights, and of all alike", function(
        lambda x: reduced(x * SHARES[me()]), lambda g, x: reduced(g) / 3), matrix, "scaled",
         ("x̄_r = 1/3 Σ_k ȳ_k",), absent=UNMOVED, words=("3/2 on rank 0, 1 on rank 1",)),
    Case("running sums, the same way back", function(up_to, lambda g, x: up_to(g)), matrix,
         "other-backward", ("x̄_r = Σ_{k≤r} ȳ_k",), ("x̄_r = Σ_{k≥r} ȳ_k",), absent=UNMOVED),
    Case("running sums, all of them back", function(up_to, lambda g, x: reduced(g)), matrix,
         "other-backward", ("x̄_r = Σ_k ȳ_k",), ("x̄_r = Σ_{k≥r} ȳ_k",), absent=UNMOVED),
]

CASES = SUMS + GATHERS + OTHERS + BEHAVIOURS + MORE

# These are variants of cases that run by default; tools/test --all runs them, too.
SELDOM = {
    "sign turned", "without the own", "own and next", "the previous one", "doubled on rank 2",
    "of pairs: over other pairs", "elements transposed", "gather: mean", "sort: ties in full",
    "sort: twice", "sort: all equal, identity", "a tie of weighted values, in full",
    "sort of what is equal inside: identity", "kinks that cancel out: twice",
    "vocabulary-parallel cross entropy of zeros: all have the target", "routed by zeros: twice",
    "routed by zeros in float32: twice", "routed by zeros in float32: identity",
    "largest in float32, of equal values: identity", "boxes that are equal: twice",
    "all equal: the largest twice", "sort: all equal, the sign turned",
    "a norm of zeros with an epsilon: identity", "a bend beside a slope: twice",
    "running maxima: ties in full", "a threshold at an input: twice", "min: ties in full",
    "large: identity", "large: without rank 1", "sure of a softmax, and identity",
    "sure of a softmax, and clipped", "an output of 0: twice", "an output of 0: identity",
    "returns float32: identity", "bfloat16: mean", "float32 and back in bfloat16: identity",
    "the last operand", "product: own loss", "average of a tie on one rank: as a sum",
    "median: ties in full", "median: identity",
}
