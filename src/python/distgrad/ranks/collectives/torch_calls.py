"""How torch's own collectives with a gradient are called: torch.distributed.nn.functional (`nn_`)
and torch.distributed._functional_collectives (`fc_`), as their documentation says, with lists of
chunks, buffers for outputs, and ranks in the numbering that they want. Nothing is done about what
they get wrong. `function` is torch's; `op` as it takes it."""

import functools

import torch
import torch.distributed as dist

from .pieces import chunk_sizes, dim_of, group_chunks, joined, zeros_attached


def awaited(value):
    """An asynchronous result, once it is there: clone waits, like any use of it. Its wait() would
    lose the gradient where it is a view (gather_dim 1)."""
    if isinstance(value, (list, tuple)):
        return [awaited(v) for v in value]
    return value.clone() if type(value).__name__ == "AsyncCollectiveTensor" else value


def explicitly_waited(function):
    """Any use of an asynchronous result waits for it; this is the other way, wait()."""

    @functools.wraps(function)
    def call(*args):
        value = function(*args)
        return value.wait() if hasattr(value, "wait") else value

    return call


def sent_and_received(x, group, dim, splits=None):
    """The sizes along dim of the chunks of an all_to_all, by rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    sent = chunk_sizes(x.size(dim_of(x, dim)), size, splits, rank)
    return sent, sent if splits is None else [row[rank] for row in splits]


def nn_all_reduce(function, x, group, *, op):
    return function(x, op=op, group=group)


def nn_reduce(function, x, group, *, op, root):
    y = function(x, dist.get_global_rank(group, root), op=op, group=group)
    return y if dist.get_rank(group) == root else zeros_attached(x.shape, y, x)


def nn_broadcast(function, x, group, *, root):
    return function(x, dist.get_global_rank(group, root), group=group)


def nn_all_gather(function, x, group, *, dim):
    return joined(function(x, group=group), dim)


def nn_gather(function, x, group, *, root, dim):
    parts = function(x, dst=dist.get_global_rank(group, root), group=group)
    y = joined(parts, dim)
    return y if dist.get_rank(group) == root else zeros_attached(y.shape, parts, x)


def nn_reduce_scatter(function, x, group, *, op, dim, splits=None):
    chunks = [chunk.contiguous() for chunk in group_chunks(x, group, dim, splits)]
    output = torch.empty_like(chunks[dist.get_rank(group)])
    return function(output, chunks, op=op, group=group)


def nn_scatter(function, x, group, *, root, dim, splits=None):
    chunks = [chunk.contiguous() for chunk in group_chunks(x, group, dim, splits)]
    return function(chunks, src=dist.get_global_rank(group, root), group=group)


def nn_all_to_all(function, x, group, *, dim, splits=None):
    chunks = [chunk.contiguous() for chunk in group_chunks(x, group, dim, splits)]
    outputs = [torch.empty_like(chunk) for chunk in chunks]
    return torch.cat(function(outputs, chunks, group=group), dim_of(x, dim))


def nn_all_to_all_single(function, x, group, *, dim, splits=None):
    dim = dim_of(x, dim)
    sent, received = sent_and_received(x, group, dim, splits)
    operand = x.movedim(dim, 0).contiguous()
    output = operand.new_empty((sum(received), *operand.shape[1:]))
    return function(output, operand, received, sent, group=group).movedim(0, dim)


def nn_all_gather_base(function, x, group, *, dim):
    operand = (x.unsqueeze(0) if dim is None else x.movedim(dim, 0)).contiguous()
    size = dist.get_world_size(group) * operand.shape[0]
    y = function(operand.new_empty((size, *operand.shape[1:])), operand, group=group)
    return y if dim is None else y.movedim(0, dim)


def fc_all_reduce(function, x, group, *, op):
    return awaited(function(x, op, group))


def fc_broadcast(function, x, group, *, root):
    return awaited(function(x, dist.get_global_rank(group, root), group))


def fc_all_gather(function, x, group, *, dim):
    if dim is None:
        return awaited(function(x.unsqueeze(0).contiguous(), 0, group))
    return awaited(function(x.contiguous(), dim_of(x, dim), group))


def fc_reduce_scatter(function, x, group, *, op, dim, splits=None):
    return awaited(function(x.contiguous(), op, dim_of(x, dim), group))


def fc_all_to_all(function, x, group, *, dim, splits=None):
    dim = dim_of(x, dim)
    sent, received = sent_and_received(x, group, dim, splits)
    operand = x.movedim(dim, 0).contiguous()
    return awaited(function(operand, received, sent, group)).movedim(0, dim)


def fc_permute_tensor(function, x, group, *, pairs):
    """It cuts by numbers of elements, and so takes what has one dimension."""
    destinations = [to for _, to in sorted(pairs)]
    return awaited(function(x.reshape(-1), destinations, group)).reshape(x.shape)


def halves_of(x, dim):
    """Two tensors of different sizes, so that a coalesced collective has several to keep apart; one
    where there is little."""
    if x.dim() <= dim or x.shape[dim] < 2:
        return [x.contiguous()]
    return [half.contiguous() for half in x.split([1, x.shape[dim] - 1], dim)]


def fc_all_reduce_coalesced(function, x, group, *, op):
    values = awaited(function(halves_of(x, 0), op, group))
    return torch.cat(values) if len(values) > 1 else values[0]


def fc_all_gather_coalesced(function, x, group, *, dim):
    """It gathers along dim 0: each half's pieces, of which the ranks' halves are then joined."""
    operand = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
    values = awaited(function(halves_of(operand, 0), group))
    size = dist.get_world_size(group)
    by_rank = torch.cat([value.unflatten(0, (size, -1)) for value in values], 1)
    return by_rank.squeeze(1) if dim is None else by_rank.flatten(0, 1).movedim(0, dim)


def fc_reduce_scatter_coalesced(function, x, group, *, op, dim, splits=None):
    dim = dim_of(x, dim)
    other = 1 if dim == 0 else 0
    halves = halves_of(x, other)
    values = awaited(function(halves, op, [dim] * len(halves), group))
    return torch.cat(values, other) if len(values) > 1 else values[0]
