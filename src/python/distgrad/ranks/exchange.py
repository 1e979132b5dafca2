"""The exchanges of one group that `reference` and `sync` are made of.

All ranks of the group make the same calls in the same order. Results are fresh, contiguous and outside the autograd graph.
What Gloo and NCCL lack or get wrong (their min and max lose a NaN) is composed of other exchanges, and noted.
"""

import math

import torch
import torch.distributed as dist

_MOST_DIMS = 15
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NATIVE = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT}

_composed = {}  # texts, in the order of their first use


def take_composed():
    """What was composed since the last call."""
    texts = list(_composed)
    _composed.clear()
    return texts


def _fresh(x):
    return x.detach().clone(memory_format=torch.contiguous_format)


def all_reduce(group, x, op):
    """The reduction over the group, by any op but premul_sum; the same shape on all ranks."""
    if group.size == 1 or x.numel() == 0:
        return _fresh(x)
    if op in _NATIVE and x.dtype in _FLOATS:
        total = _fresh(x)
        dist.all_reduce(total, _NATIVE[op], group=group.process_group)
        return total
    if op == "avg":
        _composed[f"all_reduce avg of {_name(x)}: composed of all_reduce sum"] = None
        return all_reduce(group, x, "sum").div_(group.size)
    _composed[f"all_reduce {op} of {_name(x)}: composed of all_gather"] = None
    return _reduced(all_gather(group, x), op)


def _name(x):
    return str(x.dtype)[len("torch.") :]


def _reduced(by_rank, op):
    """In rank order and their own dtype; NaN propagates through min and max."""
    total = by_rank[0].clone()
    for x in by_rank[1:]:
        if op == "sum":
            total = total + x
        elif op == "product":
            total = total * x
        else:
            total = torch.minimum(total, x) if op == "min" else torch.maximum(total, x)
    return total


def reduce(group, x, op, root):
    """On root the reduction, elsewhere zeros; the same shape on all ranks."""
    if op in _NATIVE and x.dtype in _FLOATS and group.size > 1 and x.numel():
        total = _fresh(x)
        dist.reduce(total, op=_NATIVE[op], group=group.process_group, group_dst=root)
    else:
        total = all_reduce(group, x, op)
    return total if group.rank == root else torch.zeros_like(total)


def broadcast(group, x, root):
    """Root's tensor; `x` gives shape and dtype elsewhere."""
    value = _fresh(x)
    if group.size > 1 and x.numel():
        dist.broadcast(value, group=group.process_group, group_src=root)
    return value


def all_gather(group, x):
    """By rank; the same shape on all ranks."""
    mine = _fresh(x)
    if group.size == 1:
        return [mine]
    parts = [torch.zeros_like(mine) for _ in group.ranks]
    if mine.numel():
        dist.all_gather(parts, mine, group=group.process_group)
    return parts


def all_gather_shapes(group, x):
    """By rank. One exchange."""
    if x.dim() > _MOST_DIMS:
        raise ValueError(f"a tensor of {x.dim()} dimensions; at most {_MOST_DIMS} are exchanged")
    row = torch.tensor([x.dim(), *x.shape] + [0] * (_MOST_DIMS - x.dim()), device=x.device)
    return [tuple(other[1 : 1 + other[0]]) for other in torch.stack(all_gather(group, row)).tolist()]


def all_gather_uneven(group, x):
    """By rank; shapes may differ. One more exchange, for the shapes."""
    shapes = all_gather_shapes(group, x)
    if all(shape == shapes[0] for shape in shapes):
        return all_gather(group, x)
    _composed["all_gather of uneven shapes: composed of all_gather of padded tensors"] = None
    padded = x.new_zeros(max(map(math.prod, shapes)), requires_grad=False)
    padded[: x.numel()] = x.detach().reshape(-1)
    return [part[: math.prod(shape)].reshape(shape) for part, shape in zip(all_gather(group, padded), shapes)]


def all_to_all(group, chunks, received):
    """chunks[i] goes to rank i; what came from each rank, whose shapes are `received`."""
    sent = [chunk.numel() for chunk in chunks]
    counts = [math.prod(shape) for shape in received]
    flat = torch.cat([chunk.detach().reshape(-1) for chunk in chunks])
    out = flat.new_zeros(sum(counts))
    if group.size == 1:
        out.copy_(flat)
    else:
        dist.all_to_all_single(out, flat, counts, sent, group=group.process_group)
    return [part.reshape(shape) for part, shape in zip(out.split(counts), received)]
