"""Lists torch's own differentiable collectives and what gradcheck must say of them.
docs/findings.md says what is wrong with them.

Cases with `may_raise` depend on the version of torch (whether an op has a backward): they may be
right or raise.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn

from .parts import Case, group, matrix, me, n
from .right import square
from .wrong import GATHER, PRODUCT, SUM

SCATTER = ("x̄_r = Σ_k [ȳ_k]_k",)
EXCHANGE = ("x̄_r = Σ_k [ȳ_k[r]]_k",)
ROOT = ("x̄_0 = 0", "x̄_1 = Σ_k ȳ_k", "x̄_r = 0, r = 2, 3")
OP = dist.ReduceOp


def pieces():
    """Returns one argument, a list with a tensor for each rank."""
    return ([matrix(1, 2, low=0.5 + j) for j in range(n())],)


def on_root(y):
    """Drops what reduce and gather leave on ranks other than the root, as it does not count."""
    return y if me() == 1 else y[:0] if isinstance(y, torch.Tensor) else [part[:0] for part in y]


def empty(rows=1):
    return torch.empty(rows, 2, dtype=torch.float64)


def in_place(collective):
    def run(x):
        collective(x)
        return x

    return run


NN = [
    Case("all_reduce", lambda x: nn.all_reduce(x, group=group()), matrix, right=SUM),
    Case("all_reduce avg", lambda x: nn.all_reduce(x, OP.AVG, group()), matrix,
         right=("x̄_r = 1/4 Σ_k ȳ_k",)),
    Case("all_reduce product", lambda x: nn.all_reduce(x, OP.PRODUCT, group()), matrix,
         "same-op-backward", ("x̄_r = product_k ȳ_k",)),
    Case("all_reduce max", lambda x: nn.all_reduce(x, OP.MAX, group()), matrix, "same-op-backward",
         ("x̄_r = max_k ȳ_k",)),
    Case("all_reduce min", lambda x: nn.all_reduce(x, OP.MIN, group()), matrix, "same-op-backward",
         ("x̄_r = min_k ȳ_k",)),
    Case("broadcast", lambda x: nn.broadcast(x, 1, group()), matrix, "contiguity",
         words=("transposed on rank 0 alone",)),
    Case("reduce", lambda x: on_root(nn.reduce(x, 1, group=group())), matrix, "contiguity"),
    Case("reduce avg", lambda x: on_root(nn.reduce(x, 1, OP.AVG, group())), matrix, "contiguity",
         alone=False, words=("forgotten-op   y -> x", "which is right only for a plain sum")),
    Case("gather", lambda x: on_root(nn.gather(x, 1, group())), matrix, "contiguity",
         words=("expanded",)),
    Case("scatter", lambda x: nn.scatter(x, 1, group()), pieces),
    Case("reduce_scatter", lambda x: nn.reduce_scatter(empty(), x, group=group()), pieces,
         right=SCATTER),
    Case("reduce_scatter avg", lambda x: nn.reduce_scatter(empty(), x, OP.AVG, group()), pieces,
         "forgotten-op", ("x̄_r = Σ_k [ȳ_k]_k",), ("x̄_r = 1/4 Σ_k [ȳ_k]_k",)),
    Case("all_gather", lambda x: nn.all_gather(x, group()), matrix, "contiguity",
         words=("transposed",)),
    Case("all_to_all", lambda x: nn.all_to_all([empty() for _ in range(n())], x, group()), pieces,
         right=EXCHANGE),
    Case("all_to_all_single", lambda x: nn.all_to_all_single(empty(n()), x, group=group()), square,
         right=EXCHANGE),
]

FUNCTIONAL = [
    Case("all_reduce", lambda x: functional.all_reduce(x, "sum", group()), matrix, right=SUM),
    Case("all_reduce avg", lambda x: functional.all_reduce(x, "avg", group()), matrix,
         right=("x̄_r = 1/4 Σ_k ȳ_k",), may_raise=True),
    Case("all_reduce max", lambda x: functional.all_reduce(x, "max", group()), matrix,
         right=PRODUCT, may_raise=True),
    Case("all_reduce product", lambda x: functional.all_reduce(x, "product", group()), matrix,
         right=PRODUCT, may_raise=True),
    Case("all_gather_tensor", lambda x: functional.all_gather_tensor(x, 0, group()), matrix,
         right=GATHER),
    Case("all_gather_tensor, dim 1", lambda x: functional.all_gather_tensor(x, 1, group()), matrix,
         right=GATHER),
    Case("all_gather_tensor_autograd",
         lambda x: functional.all_gather_tensor_autograd(x, 0, group()), matrix, right=GATHER),
    Case("reduce_scatter_tensor", lambda x: functional.reduce_scatter_tensor(x, "sum", 0, group()),
         square, right=SCATTER),
    Case("reduce_scatter_tensor avg",
         lambda x: functional.reduce_scatter_tensor(x, "avg", 0, group()), square,
         right=("x̄_r = 1/4 Σ_k [ȳ_k]_k",), may_raise=True),
    Case("reduce_scatter_tensor_autograd",
         lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group()), square,
         right=SCATTER),
    Case("all_to_all_single", lambda x: functional.all_to_all_single(x, None, None, group()),
         square, right=EXCHANGE),
    Case("all_to_all_single_autograd",
         lambda x: functional.all_to_all_single_autograd(x, [1] * n(), [1] * n(), group()), square,
         right=EXCHANGE),
    Case("permute_tensor",
         lambda x: functional.permute_tensor(x, [(r + 1) % n() for r in range(n())], group()),
         lambda: matrix(1, 4).detach()[0].requires_grad_(), right=("x̄_r = ȳ_{r+1}",)),
    Case("broadcast", lambda x: functional.broadcast(x, 1, group()), matrix, "identity-backward",
         ("x̄_r = ȳ_r",)),
    Case("plain all_reduce", in_place(lambda x: dist.all_reduce(x, group=group())), matrix,
         "identity-backward", ("x̄_r = ȳ_r",), SUM, right_for="one loss that every rank computes",
         words=("writes to its input x",)),
    Case("plain broadcast", in_place(lambda x: dist.broadcast(x, 1, group=group())), matrix,
         "identity-backward", ("x̄_r = ȳ_r",)),
]

CASES = [replace(case, ranks=(4,)) for cases in (NN, FUNCTIONAL) for case in cases]
