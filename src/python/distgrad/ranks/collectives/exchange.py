"""The exchanges of one group that collectives and their adjoints are made of; `group` None: all
ranks.

All ranks of the group make the same calls in the same order. Results are fresh, contiguous and
outside the autograd graph. `distgrad repro` pastes what a script needs, without `@composed`.
"""

import functools
import math

import torch
import torch.distributed as dist

from .composed import composed


def fresh(x):
    return x.detach().clone(memory_format=torch.contiguous_format)


def summed(x, group=None):
    """The sum over the group, of tensors of one shape."""
    return natively_reduced(x, "sum", group)


def is_native(x):
    """Whether Gloo and NCCL have sum and product of such tensors."""
    return x.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def is_alone(x, group):
    """Whether there is nothing to exchange."""
    return dist.get_world_size(group) == 1 or x.numel() == 0


def natively_reduced(x, op, group=None):
    """The `sum` or `product` over the group."""
    if not is_alone(x, group) and not is_native(x):
        return reduced_by_gathering(x, op, group)
    total = fresh(x)
    if not is_alone(x, group):
        dist.all_reduce(total, getattr(dist.ReduceOp, op.upper()), group=group)
    return total


def natively_reduced_to(root, x, op, group=None):
    """On root the `sum` or `product`, elsewhere zeros."""
    if is_alone(x, group) or not is_native(x):
        return on_root(root, natively_reduced(x, op, group), group)
    total = fresh(x)
    dist.reduce(total, op=getattr(dist.ReduceOp, op.upper()), group=group, group_dst=root)
    return on_root(root, total, group)


def on_root(root, x, group=None):
    """Elsewhere zeros."""
    return x if dist.get_rank(group) == root else torch.zeros_like(x)


@composed("all_reduce avg of {dtype}: composed of all_reduce sum")
def averaged(x, group=None):
    return summed(x, group).div_(dist.get_world_size(group))


@composed("all_reduce {op} of {dtype}: composed of all_gather")
def reduced_by_gathering(x, op, group=None):
    """In rank order, in the operands' own dtype; NaN propagates through min and max, where Gloo and
    NCCL lose it."""
    two = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum}[op]
    return functools.reduce(two, gathered(x, group))


def sent_from(root, x, group=None):
    """Root's tensor; elsewhere `x` gives shape and dtype."""
    value = fresh(x)
    if not is_alone(x, group):
        dist.broadcast(value, group=group, group_src=root)
    return value


def gathered(x, group=None):
    """By rank; the same shape on all ranks."""
    mine = fresh(x)
    if dist.get_world_size(group) == 1:
        return [mine]
    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    if mine.numel():
        dist.all_gather(parts, mine, group=group)
    return parts


def gathered_shapes(x, group=None):
    """By rank. One exchange."""
    most = 15
    if x.dim() > most:
        raise ValueError(f"a tensor of {x.dim()} dimensions; at most {most} are exchanged")
    row = torch.tensor([x.dim(), *x.shape] + [0] * (most - x.dim()), device=x.device)
    return [tuple(other[1 : 1 + other[0]]) for other in torch.stack(gathered(row, group)).tolist()]


def gathered_uneven(x, group=None):
    """By rank; shapes may differ. One more exchange, for the shapes."""
    shapes = gathered_shapes(x, group)
    if all(shape == shapes[0] for shape in shapes):
        return gathered(x, group)
    return gathered_padded(x, shapes, group)


@composed("all_gather of uneven shapes: composed of all_gather of padded tensors")
def gathered_padded(x, shapes, group=None):
    """Gloo and NCCL gather one size only."""
    padded = x.new_zeros(max(map(math.prod, shapes)), requires_grad=False)
    padded[: x.numel()] = x.detach().reshape(-1)
    return [part[: math.prod(shape)].reshape(shape)
            for part, shape in zip(gathered(padded, group), shapes)]


def exchanged(chunks, shapes, group=None):
    """chunks[i] goes to rank i; what came from each rank, which has these shapes."""
    sent = [chunk.numel() for chunk in chunks]
    received = [math.prod(shape) for shape in shapes]
    flat = torch.cat([chunk.detach().reshape(-1) for chunk in chunks])
    out = flat.new_zeros(sum(received))
    if dist.get_world_size(group) == 1:
        out.copy_(flat)
    else:
        dist.all_to_all_single(out, flat, received, sent, group=group)
    return [part.reshape(shape) for part, shape in zip(out.split(received), shapes)]


def completed(work):
    """Waits for what a call with async_op=True returned; without it that is None."""
    if work is not None:
        work.wait()
