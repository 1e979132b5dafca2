"""Lists functions of unusual form whose backward is right: none may be accused."""

from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from .parts import (Case, exchanged, function, gathered, group, matrix, max_of, me, n, product_of,
                    reduced, right_gather, right_sum, rooted, scattered, two_of_one)

SUM = ("x̄_r = Σ_k ȳ_k",)
checkpoint(torch.sin, torch.zeros(1), use_reentrant=False)  # Its imports are done before forks.


def square():
    return matrix(n(), 2)


right_product = function(product_of, lambda g, x: reduced(g) * product_of(x) / x)
right_max = function(
    max_of, lambda g, x: reduced(g) * (x == max_of(x)) / reduced((x == max_of(x)).to(x.dtype)))
right_scatter = function(scattered, lambda g, x: gathered(g))
right_exchange = function(exchanged, lambda g, x: exchanged(g))
right_root = function(rooted, lambda g, x: reduced(g) * (me() == 0))


class WithoutBias(torch.autograd.Function):
    """Takes a bias that a norm takes out again: its gradient is 0 but for rounding, which is
    another each time, as under DistributedDataParallel."""

    @staticmethod
    def forward(ctx, x, bias):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g, 1e-17 * torch.rand_like(g) * g


def in_place_on_own_copy(x):
    y = x.clone()
    y *= 2
    y[0] = 0
    return right_sum(y.add_(1))


def in_place_on_the_input(x):
    x.mul_(3)
    return right_sum(x)


def of_views(x):
    return right_sum(x.t()[1:]).t(), x.reshape(-1)[::2]


def expanded(x):
    return right_sum(x[:1].expand(4, 3)), right_sum(x).expand(2, 2, 3)


def uneven():
    """Returns two more rows on each rank than on the one before, and none on the first."""
    return torch.arange(2.0 * 3 * me(), dtype=torch.float64).reshape(2 * me(),
                                                                     3).add(1).requires_grad_()


def join_uneven(x):
    """Joins pieces of different sizes; backward gives each rank its own, of the sum."""
    sizes = [2 * r for r in range(n())]

    class Join(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            whole = x.new_zeros(sum(sizes), 3)
            whole[sum(sizes[:me()]):sum(sizes[:me() + 1])] = x
            return reduced(whole)

        @staticmethod
        def backward(ctx, g):
            return reduced(g)[sum(sizes[:me()]):sum(sizes[:me() + 1])].clone()

    return Join.apply(x)


SENT = [[1, 2, 0, 1], [2, 1, 1, 0], [0, 3, 1, 1], [1, 0, 2, 2]]  # [from rank][to rank]: rows


def exchange_uneven(x, sent, received):
    def moved(x, sent, received):
        y = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(y, x.contiguous(), received, sent, group=group())
        return y

    return function(lambda x: moved(x, sent, received), lambda g, x: moved(g, received, sent))(x)


def experts(x):
    """Sends tokens to the experts of other ranks, in uneven parts, and back."""
    sent, received = SENT[me()], [row[me()] for row in SENT]
    return exchange_uneven((exchange_uneven(x, sent, received) * (1 + me())).tanh(), received, sent)


def stages(x):
    """Runs a pipeline: each rank sends to the next one, and gets its cotangent from there."""
    def shifted(x, to, source):
        y = torch.zeros(x.shape, dtype=x.dtype)
        works = [dist.isend(x.contiguous(), to, group())] if 0 <= to < n() else []
        works += [dist.irecv(y, source, group())] if 0 <= source < n() else []
        for work in works:
            work.wait()
        return y

    return function(lambda x: shifted(x, me() + 1, me() - 1),
                    lambda g, x: shifted(g, me() - 1, me() + 1))(2 * x)


def checkpointed(x):
    return checkpoint(lambda x: right_sum(x.sin()).square(), x, use_reentrant=False)


def checkpointed_reentrant(x):
    return checkpoint(lambda x: right_sum(x.sin()).square(), x, use_reentrant=True)


class Parallel(nn.Module):
    """Is a linear layer whose rows are on different ranks, after a norm with a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(me())
        self.weight = nn.Parameter(torch.randn(2, 1, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.randn(1, dtype=torch.float64), requires_grad=False)
        self.norm = nn.BatchNorm1d(2).double()

    def forward(self, x):
        return right_sum(self.norm(x) @ self.weight) + self.frozen


def with_module(x, module):
    return module(x)


def masked_loss(x, mask, target, scale):
    """Returns a mean over all ranks' valid elements, a cross entropy, and a metric beside it."""
    count = reduced(mask.sum().to(x.dtype))
    loss = right_sum((x * mask).sum()) / count * scale
    return {"loss": loss, "ce": nn.functional.cross_entropy(right_sum(x), target),
            "correct": x.argmax(1) == target}


def masks():
    torch.manual_seed(20 + me())
    return {"x": matrix(2, 3), "mask": torch.rand(2, 3) < 0.6,
            "target": torch.randint(0, 3, (2,)), "scale": 2}


def kinks(x):
    """Uses abs, relu, clamp and max away from where they bend."""
    bent = right_sum(x.abs() + (x - 0.25).relu() + x.clamp(0.1, 9))
    return bent, x.amax(), torch.maximum(x, x.flip(1)).sum()


def at_the_kink(x):
    return right_sum(x.relu() + x.abs())


def around_zero():
    x = matrix().detach() - 1.0
    x[0, 1] = 0
    return x.requires_grad_()


def tied():
    x = matrix().detach()
    x[0, 0] = 5.0 if me() < 3 else 0.5
    return x.requires_grad_()


def alike():
    return torch.ones(2, dtype=torch.float64).requires_grad_()


def partly_alike():
    """Returns an input whose element 1 is largest on the last rank; all tie in element 0."""
    return torch.tensor([5.0, 6.0 if me() == n() - 1 else 5.0],
                        dtype=torch.float64).requires_grad_()


def least(x):
    return reduced(x, dist.ReduceOp.MIN)


right_min = function(
    least, lambda g, x: reduced(g) * (x == least(x)) / reduced((x == least(x)).to(x.dtype)))


def negative(made):
    return (-made().detach()).requires_grad_()


def at_the_upper_kink(x):
    """Uses smallest and capped values, of which moves up change nothing."""
    return (right_sum(x.amin(-1)), right_sum(x.clamp(max=1)),
            right_sum(torch.minimum(x, torch.ones_like(x))),
            right_sum(torch.where(x <= 1, x, torch.ones_like(x))),
            right_sum(-nn.functional.max_pool1d(-x, 3)))


def twos():
    return torch.tensor([[1.0, 1.0, 2.0]], dtype=torch.float64, requires_grad=True)


def in_order(x):
    return right_sum(x.sort(-1).values)


def of_ranks(x):
    """Takes the median, the second of four and the two largest of equal values."""
    return (right_sum(x.median()), right_sum(x.kthvalue(2, -1).values),
            right_sum(x.topk(2, -1).values))


def even_shares(g, x):
    ties = (x == x.median()).to(x.dtype)
    return reduced(g) * ties / ties.sum()


def largest_two(x):
    """Keeps the two largest. Which of equally large ones it keeps depends on their order, which
    makes a kink at zeros, and a jump elsewhere."""
    kept = x.abs().topk(2, -1).indices
    return right_sum(torch.zeros_like(x).scatter(-1, kept, x.gather(-1, kept)))


def above_one(x):
    return right_sum(torch.where(x > 1, x, torch.zeros_like(x)))


def only_the_largest(x):
    return right_sum(x * nn.functional.one_hot(x.argmax(-1), x.shape[-1]))


def weights(rows, columns):
    """Returns weights that are the same on all ranks."""
    return torch.randn(rows, columns, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(1))


def zeros(*shape):
    return lambda: torch.zeros(*shape, dtype=torch.float64, requires_grad=True)


def sorted_inside(x):
    """Sorts values that are all equal if x is 0, although no input tells which ones tie."""
    return (x @ weights(3, 5)).sort(-1).values


def by_rank_inside(x):
    h = x @ weights(3, 5)
    return (right_sum(h.max(-1).values), right_sum(h.amin(-1)), right_sum(h.topk(2, -1).values),
            right_sum(h.median(-1).values))


def cancel_out(x):
    """Returns x, made of two kinks; torch's own gradient at 0 is 0."""
    return x.relu() - (-x).relu()


def half_of(x):
    return right_sum(x.relu() - x.abs() / 2)


def weighted_max(x):
    return torch.stack([2 * x[0], x[1], x[2] + 1]).amax(0)


def with_gradient(forward, *gradient):
    return function(forward, lambda g, x: g * torch.tensor(gradient, dtype=g.dtype))


def two_maxima(x):
    return x[:2].amax() + x[2:].amax()


def curved(x):
    """Bends so much that a move of 2^-20, or 2^-18, changes as much as a quarter of it does."""
    bends = 2.0 ** torch.arange(14, 22)
    return right_sum(torch.cat([(x[:-1] - 1) - bends * (x[:-1] - 1).square(), x[-1:].relu()]))


def overlap(a, b):
    """Returns 1 - IoU of boxes."""
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    inside = (high - low).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b)]
    return 1 - inside / (sum(areas) - inside)


def by_where(a, b):
    """Returns an IoU that takes all of the gradient of equal edges from b."""
    low = torch.where(a > b, a, b)[:, :2]
    high = torch.where(a < b, a, b)[:, 2:]
    inside = (high - low).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b)]
    return inside / (sum(areas) - inside)


def equal_boxes():
    return rows([1.0, 1, 3, 4])(), rows([1.0, 1, 3, 4])()


def best_in_float32(x):
    return (x.float() @ weights(3, 5).float()).topk(2, -1).values.double()


def root_mean_square(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def bent(x):
    return (x - 1) - 62000 * (x - 1).square()


class VocabularyParallel(torch.autograd.Function):
    """Computes Megatron's cross entropy, of which each rank has a part of each row."""

    @staticmethod
    def forward(ctx, x, target):
        most = max_of(x.amax(-1))
        shares = (x - most[:, None]).exp()
        total = reduced(shares.sum(-1))
        at = target - me() * x.shape[1]
        own = (at >= 0) & (at < x.shape[1])
        at = at.clamp(0, x.shape[1] - 1)[:, None]
        ctx.save_for_backward(shares / total[:, None], own[:, None], at)
        return total.log() + most - reduced(torch.where(own, x.gather(1, at)[:, 0], 0.0))

    @staticmethod
    def backward(ctx, g):
        shares, own, at = ctx.saved_tensors
        return reduced(g)[:, None] * shares.scatter_add(1, at, -own.to(shares.dtype)), None


def routed(summed, x, w):
    """Mixes experts, of which each row takes two."""
    scores, chosen = (x @ w).topk(2, -1)
    gates = torch.zeros(len(x), w.shape[1], dtype=x.dtype).scatter(-1, chosen, scores.softmax(-1))
    return summed(sum(gates[:, e:e + 1] * ((e + 1) * x).tanh() for e in range(w.shape[1])))


def loss_of_steps(x):
    return right_sum(((x > 1).to(x.dtype) * x.sin()).sum())


def rows(*values):
    return lambda: torch.tensor(values, dtype=torch.float64, requires_grad=True)


def equal_in_rows():
    return rows([1.0, 1, 1, 2], [3, 3, 1, 3])()


def ignores_some(x, unused, only_on_root):
    y = right_sum(x)
    return y + only_on_root.sum() if me() == 0 else y


Batch = namedtuple("Batch", "tokens hidden")


@dataclass
class Result:
    hidden: torch.Tensor
    counts: torch.Tensor
    name: str = "result"


def nested(batch, options):
    hidden = right_sum(batch.hidden[0] * options["scale"] + batch.hidden[1]["b"])
    return Result(hidden, batch.tokens.bincount())


def nested_inputs():
    return Batch(torch.arange(3) + me(),
                 [matrix(2, 2), {"b": matrix(2, 2, low=2.0), "none": None}]), {"scale": 0.5,
                                                                               "dim": (1,)}


def same_twice(x, y):
    return right_sum(x * y)


def one_tensor_twice():
    x = matrix()
    return x, x


def dropout(x):
    return right_sum(nn.functional.dropout(x, 0.5))


def of_two_or_one(a, b):
    known = a if b is None else b
    a, b = (torch.zeros_like(known) if g is None else g for g in (a, b))
    return reduced(a + 2 * b)


def right_sum_beside(is_waited_for):
    """Sums a count beside the result, as for a log."""
    def summed(x):
        count = torch.ones(1)
        work = dist.all_reduce(count, group=group(), async_op=True)
        if is_waited_for:
            work.get_future().wait()
        return right_sum(x)

    return summed


def two_sums(x):
    """Returns two sums. If one rank leaves one out of its loss, the others wait for it."""
    return right_sum(x), right_sum(2 * x)


def detached_beside(x):
    y = right_sum(x)
    return y, y.detach().mean()


_scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)


def closes_over(x):
    return right_sum(x) * _scale


def only_root_returns(x):
    """Gathers to rank 0; other ranks return no rows, but have the graph."""
    y = right_gather(x)
    return y if me() == 0 else y[:0]


def transposed_input():
    return matrix(3, 2).detach().t().requires_grad_()


def ill_conditioned(x):
    return right_sum(torch.linalg.inv(x @ x.T + 1e-3 * torch.eye(2, dtype=x.dtype)))


def small_and_large(x):
    return right_sum(x * 1e-12), right_sum(x * 1e12)


def without_float64(x):
    assert x.dtype != torch.float64, "float32 only"
    return right_sum(x.sin())


def computes_in_float32(x):
    return right_sum(x.float().tanh()).to(x.dtype)


def rounds_to_half(x):
    return right_sum(x.half()).to(x.dtype)


def product_in_half(x, w):
    return right_sum(x.half() * w.half()).to(x.dtype)


def beside_bfloat16(x, w):
    return x + right_sum(x.bfloat16() @ w.bfloat16()).to(x.dtype)


class ThroughABuffer(torch.autograd.Function):
    """Exchanges bfloat16 between ranks through a buffer that is older than the call."""

    buffer = torch.zeros(2, 3, dtype=torch.bfloat16)

    @staticmethod
    def forward(ctx, x):
        ThroughABuffer.buffer.copy_(x.bfloat16())
        dist.all_reduce(ThroughABuffer.buffer, group=group())
        return ThroughABuffer.buffer.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return reduced(g)


def of_both_signs():
    return tuple((2 * matrix(low=low).detach() - 2).requires_grad_() for low in (0.0, 0.8))


def float32_and_back(x):
    return right_sum(x.float()).to(x.dtype)


def in_autocast(x, w):
    """Returns outputs in bfloat16 unless the inputs are in float64."""
    with torch.autocast("cpu", torch.bfloat16):
        return right_sum(x @ w)


summed_in_float32 = function(reduced, lambda g, x: reduced(g.float()).to(g.dtype))


def normalised(x):
    """Normalises over all ranks in x's dtype; half precision leaves little of a small variance."""
    mean = right_sum(x.mean(0)) / n()
    variance = right_sum((x - mean).square().mean(0)) / n()
    return (x - mean) * (variance + 1e-5).rsqrt()


def scaled_in_float32(x):
    return x * torch.rsqrt(right_sum(x.float().square().mean())).to(x.dtype)


def saturated(x):
    """Uses tanh near 1, where its derivative is less than the rounding of its terms."""
    return right_sum((4 * x).tanh())


def sure(x, w):
    """Leaves of x's derivative only what rounding makes of 1 - 1, times nearly 0."""
    return right_sum(torch.softmax(60 * x, -1)) + right_sum(w)


def sure_loss(x):
    """Returns a loss that is 0 as far as float64 can tell."""
    return right_sum(nn.functional.cross_entropy(60 * x, torch.tensor([0])))


def sure_scores():
    return torch.tensor([[2.0, 0.1, -1.0]], dtype=torch.float64, requires_grad=True)


def log_of_softmax(x):
    """Uses a softmax that is 1 in bfloat16, so that nothing is left of its derivative."""
    return right_sum(-torch.softmax(30 * x, -1)[:, 0].log())


def scores(dtype):
    return lambda: torch.tensor([[0.5, 0.1, -1.0]], dtype=dtype, requires_grad=True)


def low_rank(x, a, b):
    """Applies LoRA, whose b is 0 at first, and so is the output."""
    return right_sum(x @ a @ b)


def fresh_low_rank():
    return (matrix(2, 3), matrix(3, 2), torch.zeros(2, 3, dtype=torch.float64, requires_grad=True))


def small_variance():
    return (matrix(3, 2).detach() * 0.01 + 3).bfloat16().requires_grad_()


def attention(q, k, v):
    """Attends to keys and values of all ranks."""
    k, v = right_gather(k).flatten(0, 1), right_gather(v).flatten(0, 1)
    return nn.functional.softmax(q @ k.T / 2, -1) @ v


def qkv():
    return matrix(2, 3), matrix(2, 3, low=0.1), matrix(2, 3, low=-0.5)


def contrastive(x):
    """Returns this rank's own InfoNCE loss over the embeddings of all ranks."""
    z = nn.functional.normalize(x, dim=1)
    logits = z @ right_gather(z).flatten(0, 1).T / 0.2
    return nn.functional.cross_entropy(logits, torch.arange(len(x)) + len(x) * me())


def float32():
    return matrix(dtype=torch.float32)


def bfloat16():
    return matrix(dtype=torch.bfloat16)


def router():
    """Returns activations in bfloat16 and weights in float32."""
    return bfloat16(), matrix(3, 2, torch.float32)


def bfloat16_only(x, w):
    assert x.dtype == torch.bfloat16, "bfloat16 only"
    return right_sum(x @ w.bfloat16())


LARGE = {"basis": False}

class SavedFirst(torch.autograd.Function):
    """Saves a buffer, and fills it afterwards."""

    @staticmethod
    def forward(ctx, x):
        total = x.exp()
        ctx.save_for_backward(x, total)
        dist.all_reduce(total, group=group())
        return total.log()

    @staticmethod
    def backward(ctx, g):
        x, total = ctx.saved_tensors
        return reduced(g / total) * x.exp()


def encoded(x):
    """Returns sines that a step of a power of two does not change, with slopes up to 1608."""
    return torch.sin(torch.pi * 2.0 ** torch.arange(10.0) * right_sum(x)[..., None]).sum(-1)


def slopes_inside(x, w):
    slope = torch.func.vmap(torch.func.grad(lambda t, row: torch.tanh(row @ t)), (None, 0))
    return right_sum(slope(w, x))


def masked(x):
    """Masks scores with -inf, as attention does."""
    y = right_sum(x)
    return y.masked_fill(torch.arange(y.numel()).reshape(y.shape) % 3 == 1, float("-inf"))


CASES = [
    Case("maximum of all that is gathered, all elements tie", lambda x: right_gather(x).amax(),
         lambda: torch.ones(3, dtype=torch.float64, requires_grad=True),
         words=("but for what kinks leave open",)),
    Case("masked with -inf", masked, matrix, words=("not judged",)),
    Case("log_softmax, masked with -inf", lambda x: torch.log_softmax(masked(x), -1), matrix,
         words=("not judged",)),
    Case("encoded positions", encoded, matrix, absent=("kink",),
         words=("right for every cotangent",)),
    Case("torch.func inside", slopes_inside, lambda: (matrix(4, 3), matrix(1, 3)[0])),
    Case("uneven slices", function(lambda x: reduced(x.repeat(2, 1)), lambda g, x: sum(
        reduced(g).chunk(2))), matrix),
    Case("a buffer that is saved first and filled afterwards", SavedFirst.apply, matrix),
    Case("sum", right_sum, matrix, right=SUM, ranks=(2, 3),
         words=("a basis of", "affine, so exact", "right for every cotangent")),
    Case("sum on one rank", right_sum, matrix, right=("x̄_r = ȳ_r",), ranks=(1,)),
    Case("gather", right_gather, matrix, right=("x̄_r = Σ_k ȳ_k[r]",)),
    Case("product", right_product, matrix, right=("x̄_r = Σ_k J_rᵀ ȳ_k",)),
    Case("max", right_max, matrix),
    Case("max with a tie of three", right_max, tied, words=("a kink",)),
    Case("max: all ranks tie", right_max, alike, ranks=(3, 4)),
    Case("max: all ranks tie, in a sum", lambda x: right_max(x).sum(), alike),
    Case("max: some ranks tie in some elements", right_max, partly_alike, ranks=(3, 4)),
    Case("max: some ranks tie in some elements, in a sum", lambda x: right_max(x).sum(),
         partly_alike),
    Case("reduce_scatter", right_scatter, square, right=("x̄_r = Σ_k [ȳ_k]_k",)),
    Case("all_to_all", right_exchange, square, right=("x̄_r = Σ_k [ȳ_k[r]]_k",)),
    Case("broadcast", right_root, matrix, right=("x̄_0 = Σ_k ȳ_k", "x̄_r = 0, r = 1, 2, 3"),
         ranks=(4,)),
    Case("local", lambda x: x * 2, matrix, right=("x̄_r = 2 ȳ_r",)),
    Case("a gradient that is 0 but for rounding",
         lambda x, bias: right_sum(WithoutBias.apply(x, bias)), lambda: (matrix(), matrix())),
    Case("in place on its own copy", in_place_on_own_copy, matrix),
    Case("in place on the input", in_place_on_the_input, matrix, words=("writes to its input x",)),
    Case("views", of_views, matrix),
    Case("expanded", expanded, matrix),
    Case("uneven", join_uneven, uneven),
    Case("experts", experts, lambda: matrix(sum(SENT[me()]), 1), ranks=(4,)),
    Case("pipeline", stages, matrix, ranks=(4,)),
    Case("checkpoint", checkpointed, matrix),
    Case("reentrant checkpoint", checkpointed_reentrant, matrix),
    Case("a module", Parallel, lambda: matrix(3, 2), words=("grad(weight)_r", "grad(norm.bias)_r"),
         makes=True),
    Case("a module among the inputs", with_module, lambda: (matrix(3, 2), Parallel()),
         words=("grad(module.weight)_r",)),
    Case("losses with masks", masked_loss, masks),
    Case("kinks", kinks, lambda: matrix(2, 3)),
    Case("at the kink", at_the_kink, around_zero, words=("a kink",)),
    Case("at the upper kink", at_the_upper_kink, twos, words=("a kink",)),
    Case("min with a tie of three", right_min, lambda: negative(tied), words=("a kink",)),
    Case("sorted, with equal values", in_order, equal_in_rows, words=("or a tie",)),
    Case("sorted, all equal", in_order, rows([2.0, 2, 2, 2])),
    Case("of equal values, by their ranks", of_ranks, equal_in_rows),
    Case("the median of more zeros than there are orders tried", lambda x: right_sum(x.median()),
         lambda: torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)),
    Case("of zeros, by their ranks", of_ranks, rows([0.0, 0, 0, 0, 0])),
    Case("a median whose ties share", function(lambda x: reduced(x.median()), even_shares),
         equal_in_rows),
    Case("the largest two of zeros", largest_two, rows([0.0, 0, 0, 2], [1, 3, -4, 7])),
    Case("the largest two of equal ones", largest_two, rows([1.0, -1, 1, 2]), verdict="undecided",
         words=("jumps at these inputs in x[0, 0], x[0, 1], x[0, 2] on ranks 0, 1, 2, 3,",),
         ranks=(4,)),
    Case("a root of numbers below 0", lambda x: (-right_sum(x)).sqrt(), matrix,
         verdict="undecided", words=("y has elements that are not finite",)),
    Case("a sine that no step resolves", lambda x: (1e8 * right_sum(x)).sin(), matrix,
         verdict="undecided", words=("its derivative is not known well enough to judge",)),
    Case("a sine of a slope of 100,000", lambda x: (1e5 * right_sum(x)).sin(), matrix),
    Case("a slope with small fast waves",
         lambda x: (y := 1e4 * right_sum(x)) + 1e-3 * (1e3 * y).sin(), matrix, verdict="undecided"),
    Case("a loss of float32 in bfloat16", lambda x: right_sum(x.square().sum()).bfloat16(),
         lambda: (2 * matrix(1, dtype=torch.float32).detach() - 2).requires_grad_()),
    Case("a threshold at an input", above_one, rows([1.0, 0.5, 2, 3]), verdict="undecided",
         words=("jumps at these inputs in x[0, 0] on ranks 0, 1, 2, 3,",), ranks=(4,)),
    Case("only the largest, of two", only_the_largest, rows([2.0, 2, 1]), verdict="undecided",
         words=("not judged on 4 ranks", "in x[0, 0], x[0, 1] on"), ranks=(4,)),
    Case("a loss that jumps", loss_of_steps, rows([1.0, 0.5, 2, 1]), verdict="undecided",
         words=("in x[0, 0], x[0, 3] on",)),
    Case("sorted values that are equal inside", lambda x: right_sum(sorted_inside(x)), zeros(2, 3),
         ranks=(2,)),
    Case("of values that are equal inside, by their ranks", by_rank_inside, zeros(1, 3),
         ranks=(2,)),
    Case("the largest of 40 zeros inside",
         lambda x: right_sum((x @ weights(2, 40)).topk(3, -1).values), zeros(1, 2)),
    Case("the largest of 40 zeros", lambda x: right_sum(x.topk(3, -1).values), zeros(1, 40),
         ranks=(2,)),
    Case("a tie of weighted values, shared",
         lambda x: right_sum(with_gradient(weighted_max, 2 / 3, 1 / 3, 1 / 3)(x)), rows(1.0, 2, 1)),
    Case("a tie of weighted values, all to one",
         lambda x: right_sum(with_gradient(weighted_max, 2, 0, 0)(x)), rows(1.0, 2, 1)),
    Case("two ties, one shared", lambda x: right_sum(with_gradient(two_maxima, 0.5, 0.5, 1, 0)(x)),
         rows(1.0, 1, 2, 2)),
    Case("kinks that cancel out", lambda x: right_sum(cancel_out(x)), rows([0.0, 1, 2]),
         verdict="undecided", words=("kinks or ties that meet at these inputs in x[0, 0] on",)),
    Case("kinks that cancel out at zeros", half_of, zeros(1, 3), verdict="undecided"),
    Case("curves that are no jumps", curved, rows(*[1.0] * 8, 0), ranks=(2,)),
    Case("boxes that are equal", lambda a, b: right_sum(overlap(a, b)),
         lambda: (rows([0.0, 0, 1, 2])(), rows([0.0, 0, 1, 2])()), ranks=(2,)),
    Case("vocabulary-parallel cross entropy of zeros",
         lambda x: VocabularyParallel.apply(x, torch.tensor([1, 4, 7])), zeros(3, 3)),
    Case("routed", lambda x, w: routed(right_sum, x, w), lambda: (matrix(2, 3), weights(
        3, 4).requires_grad_())),
    Case("routed by zeros", lambda x, w: routed(right_sum, x, w),
         lambda: (matrix(1, 2), zeros(2, 3)()), ranks=(2,), verdict="undecided"),
    Case("running maxima, with equal values", lambda x: right_sum(x.cummax(-1).values),
         equal_in_rows),
    Case("pooled, with equal values", lambda x: right_sum(nn.functional.max_pool1d(x, 2, 1)),
         equal_in_rows),
    Case("routed by zeros in float32", lambda x: right_sum(best_in_float32(x)), zeros(1, 3)),
    Case("largest in float32, of equal values", lambda x: right_sum(x.float().amax(-1)),
         rows([1.0, 1, 1, 1])),
    Case("float32 inside, at zeros",
         lambda x: right_sum((x.float() @ weights(3, 4).float()).tanh()), zeros(1, 3)),
    Case("the largest of what is gathered, its own first",
         lambda x: torch.stack([x, *right_gather(x).roll(-me(), 0)]).max(0).values,
         rows([1.0, 1])),
    Case("boxes that are equal, by where", lambda a, b: right_sum(by_where(a, b)), equal_boxes,
         ranks=(2, 3)),
    Case("a norm of zeros with an epsilon", lambda x: right_sum(root_mean_square(x)), zeros(2, 3),
         ranks=(2,)),
    Case("a norm of zeros in float32", lambda x: right_sum(root_mean_square(x.float())),
         zeros(2, 3), verdict="undecided"),
    Case("a bend beside a slope", function(bent, lambda g, x: g.clone()), rows([1.0, 1])),
    Case("quantiles of equal values", lambda x: right_sum(x.quantile(0.4, -1)), equal_in_rows),
    Case("norms of zeros", lambda x: right_sum(x.norm(dim=-1)), rows([0.0, 0, 0], [1, 2, 2])),
    Case("zeros and ties in float32",
         lambda x: right_sum(x.sort(-1).values) + right_sum(x.relu()),
         lambda: torch.tensor([[0.0, 1, 1, 1, 0]], requires_grad=True)),
    Case("ignores some inputs", ignores_some, lambda: (matrix(), matrix(1, 2), matrix(3, 1))),
    Case("nested inputs and a dataclass", nested, nested_inputs),
    Case("a figure beside it that nobody waits for", right_sum_beside(False), matrix,
         words=("Nobody waits in time for all_reduce (right.py:",)),
    Case("waited for by its future", right_sum_beside(True), matrix, absent=("Nobody waits",)),
    Case("one tensor twice", same_twice, one_tensor_twice),
    Case("dropout", dropout, lambda: matrix(3, 3)),
    Case("two outputs of one function", two_of_one(of_two_or_one), matrix),
    Case("two sums", two_sums, matrix, options={"timeout_s": 5}),
    Case("a detached output beside", detached_beside, matrix,
         words=("y1 does not require grad on ranks 0, 1, 2, 3: it was not checked",), ranks=(4,)),
    Case("closes over a tensor", closes_over, matrix, words=("are no inputs",)),
    Case("only root returns", only_root_returns, matrix),
    Case("a transposed input", right_sum, transposed_input),
    Case("ill-conditioned", ill_conditioned, matrix),
    Case("small and large", small_and_large, matrix),
    Case("attention", attention, qkv),
    Case("contrastive loss", contrastive, lambda: matrix(2, 3)),
    Case("float32", lambda x: right_sum(x.sin()), float32,
         words=("backward in float64", "backward in float32")),
    Case("bfloat16", right_sum, lambda: matrix(dtype=torch.bfloat16), right=SUM),
    Case("float32 only", without_float64, float32,
         words=("does not take float64: AssertionError: float32 only",)),
    Case("bfloat16 only", right_sum, lambda: matrix(dtype=torch.bfloat16),
         options={"float64": False}, ranks=(4,)),
    Case("bfloat16 with weights in float32", lambda x, w: right_sum(x.float() @ w), router,
         words=("does not take float64", "backward in float32")),
    Case("a product of bfloat16 only", bfloat16_only, router, verdict="undecided",
         words=("does not take float32: AssertionError: bfloat16 only",)),
    Case("computes in float32", computes_in_float32, matrix, words=("computes in about float32",)),
    Case("rounds to half", rounds_to_half, matrix, right=SUM,
         words=("affine within its roundings",)),
    Case("a product in half", product_in_half, of_both_signs, ranks=(2, 3),
         words=("The forward computes in",)),
    Case("a residual beside bfloat16", beside_bfloat16,
         lambda: (float32(), matrix(3, 3, torch.float32)), ranks=(2, 3),
         words=("The function casts to bfloat16 in right.py:", "without these casts")),
    Case("a residual beside a buffer in bfloat16",
         lambda x: 2 * x + ThroughABuffer.apply(x), matrix, verdict="undecided",
         words=("does not run without that",)),
    Case("returns float32", lambda x: right_sum(x.float()), float32, right=SUM,
         words=("The forward returns float32",)),
    Case("float32 and back in bfloat16", float32_and_back, bfloat16, right=SUM,
         words=("computes in about float32",)),
    Case("autocast", in_autocast, lambda: (float32(), matrix(3, 2, torch.float32)),
         words=("The forward returns bfloat16",)),
    Case("float32 in the backward of bfloat16", summed_in_float32, bfloat16, right=SUM,
         words=("the inputs have no more digits",)),
    Case("a small variance in bfloat16", normalised, small_variance,
         words=("roundings on the way move gradients",)),
    Case("float32 in float16", scaled_in_float32, lambda: matrix(dtype=torch.float16)),
    Case("saturated in bfloat16", saturated, lambda: matrix(dtype=torch.bfloat16)),
    Case("an output of 0", low_rank, fresh_low_rank, words=("for every cotangent",)),
    Case("sure of a softmax", sure, lambda: (sure_scores(), matrix(1, 3))),
    Case("sure of a loss", sure_loss, sure_scores, ranks=(2,)),
    Case("sure of a softmax in float32", lambda x: right_sum(torch.softmax(60 * x, -1)),
         scores(torch.float32), ranks=(2,)),
    Case("sure of a loss in float32", sure_loss, scores(torch.float32), ranks=(2,),
         words=("roundings on the way are more",)),
    Case("sure of a loss in bfloat16", sure_loss, scores(torch.bfloat16), ranks=(2,)),
    Case("log of a softmax in bfloat16", log_of_softmax, scores(torch.bfloat16), ranks=(2,)),
    Case("large", lambda x: right_sum(x.sin()), lambda: matrix(20, 30), options=LARGE,
         words=("16 random cotangents",)),
    Case("large with relu", lambda x: right_sum((x - 0.7).relu()), lambda: matrix(20, 30),
         options=LARGE),
]

# These are variants of cases that run by default; tools/test --all runs them, too.
SELDOM = {
    "sorted, all equal", "of equal values, by their ranks", "of zeros, by their ranks",
    "a median whose ties share", "the largest two of zeros", "the largest two of equal ones",
    "only the largest, of two", "of values that are equal inside, by their ranks",
    "the largest of 40 zeros", "the largest of 40 zeros inside",
    "a tie of weighted values, all to one", "two ties, one shared",
    "kinks that cancel out at zeros", "curves that are no jumps", "routed", "routed by zeros",
    "vocabulary-parallel cross entropy of zeros", "running maxima, with equal values",
    "pooled, with equal values", "largest in float32, of equal values",
    "float32 inside, at zeros", "boxes that are equal, by where", "a norm of zeros in float32",
    "quantiles of equal values", "norms of zeros", "float32 in float16", "a product in half",
    "rounds to half", "sure of a softmax", "sure of a loss", "sure of a softmax in float32",
    "large with relu", "at the upper kink", "max with a tie of three",
    "a small variance in bfloat16", "zeros and ties in float32",
}
