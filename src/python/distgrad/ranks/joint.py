"""Every collective as tensor code over the list of a group's operands: what it means, for autograd to differentiate.

There is no hand-written adjoint in it.
"""

import torch

from .reference import _chunk_sizes, _chunks, _dim_of, _joined, _source_of


def joint(call, operands):
    """The results by rank of the group, from the operands by rank. `call.group.process_group` is not used."""
    return _KINDS[call.kind](call, operands)


def _reduction(call, xs):
    stacked = torch.stack(xs)
    if call.op == "sum":
        return stacked.sum(0)
    if call.op == "avg":
        return stacked.mean(0)
    if call.op == "premul_sum":
        return (call.factor * stacked).sum(0)
    if call.op == "product":
        return stacked.prod(0)
    return stacked.amin(0) if call.op == "min" else stacked.amax(0)  # which share evenly between ties


def _on_root(call, value):
    """Elsewhere zeros, which no cotangent comes through."""
    return [value if rank == call.root else torch.zeros_like(value) for rank in range(call.group.size)]


def _all_reduce(call, xs):
    return [_reduction(call, xs)] * call.group.size


def _reduce(call, xs):
    return _on_root(call, _reduction(call, xs))


def _broadcast(call, xs):
    return [xs[call.root]] * call.group.size


def _all_gather(call, xs):
    return [_joined(call, xs)] * call.group.size


def _gather(call, xs):
    return _on_root(call, _joined(call, xs))


def _reduce_scatter(call, xs):
    return list(_chunks(call, _reduction(call, xs)))


def _scatter(call, xs):
    return list(_chunks(call, xs[call.root]))


def _all_to_all(call, xs):
    dim = _dim_of(call, xs[0])
    cut = [x.split(_chunk_sizes(call, x.size(dim), rank), dim) for rank, x in enumerate(xs)]
    return [torch.cat([chunks[rank] for chunks in cut], dim) for rank in range(call.group.size)]


def _send_recv(call, xs):
    sources = [_source_of(call, rank) for rank in range(call.group.size)]
    return [torch.zeros_like(x) if source is None else xs[source] for x, source in zip(xs, sources)]


def _copy(call, xs):
    return list(xs)


def _slice(call, xs):
    return [_chunks(call, x)[rank] for rank, x in enumerate(xs)]


_KINDS = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "copy": _copy,
    "slice": _slice,
}
