"""The two implementations of every collective that are there to be compared with.

`reference` is right: forward by its definition, backward its exact adjoint. `in_place` is what a plain torch.distributed
call gives, whose effect on autograd is whatever it is.
"""

import torch
import torch.distributed as dist

from . import exchange


def reference(call, x):
    """The collective `call` of this rank's operand `x`, with the right gradient. Every rank's backward must reach it."""
    return _Adjoint.apply(x, call)


def in_place(call, x):
    """`x` is left as it is: the call works on a copy."""
    return _IN_PLACE[call.kind](call, x)


# ---- the definitions, shared


def _dim_of(call, x):
    dim = call.dim or 0
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{call.kind}: dim {dim} of an operand with {x.dim()} dimensions")
    return dim % x.dim()


def _chunk_sizes(call, length, row=0):
    """What `row`'s operand is cut into along `dim`, by rank."""
    size = call.group.size
    if call.splits is None:
        if length % size:
            raise ValueError(f"{call.kind}: a dimension of {length} does not divide evenly among {size} ranks; give splits")
        return [length // size] * size
    splits = list(call.splits[0 if len(call.splits) == 1 else row])
    if len(splits) != size or sum(splits) != length:
        raise ValueError(f"{call.kind}: the splits {splits} of a dimension of {length} among {size} ranks")
    return splits


def _chunks(call, x, row=0):
    dim = _dim_of(call, x)
    return x.split(_chunk_sizes(call, x.size(dim), row), dim)


def _joined(call, parts):
    return torch.stack(parts) if call.dim is None else torch.cat(parts, _dim_of(call, parts[0]))


def _received_shapes(call, shapes, dim, to):
    """all_to_all: the shapes of what rank `to` receives, from the shapes of all operands."""
    received = [list(shape) for shape in shapes]
    for source, shape in enumerate(received):
        shape[dim] = _chunk_sizes(call, shape[dim], source)[to]
    return received


def _source_of(call, destination):
    """send_recv: who sends to this rank, or None. A destination appears once."""
    return next((source for source, to in call.pairs if to == destination), None)


# ---- reference


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        ctx.operand = x.detach()
        ctx.kept = None  # what forward leaves for backward
        return _FORWARD[call.kind](ctx, call, ctx.operand)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        return _BACKWARD[ctx.call.kind](ctx, ctx.call, cotangent), None


def _reduction(call, x):
    if call.op == "premul_sum":
        return exchange.all_reduce(call.group, x * call.factor, "sum")
    return exchange.all_reduce(call.group, x, call.op)


def _reduction_adjoint(ctx, call, total):
    """The operand's cotangent, given that of the reduction's result."""
    group, x = call.group, ctx.operand
    if call.op == "sum":
        return total
    if call.op == "avg":
        return total / group.size
    if call.op == "premul_sum":
        return total * call.factor
    if call.op == "product":  # of the others: no division, so that zeros are no matter
        others = torch.ones_like(x, memory_format=torch.contiguous_format)
        for rank, other in enumerate(exchange.all_gather(group, x)):
            if rank != group.rank:
                others *= other
        return total * others
    holds = (x == exchange.all_reduce(group, x, call.op)).to(total.dtype)
    return total * holds / exchange.all_reduce(group, holds, "sum")


def _all_reduce_forward(ctx, call, x):
    return _reduction(call, x)


def _all_reduce_backward(ctx, call, g):
    return _reduction_adjoint(ctx, call, exchange.all_reduce(call.group, g, "sum"))


def _reduce_forward(ctx, call, x):
    if call.op == "premul_sum":
        return exchange.reduce(call.group, x * call.factor, "sum", call.root)
    return exchange.reduce(call.group, x, call.op, call.root)


def _reduce_backward(ctx, call, g):
    return _reduction_adjoint(ctx, call, exchange.broadcast(call.group, g, call.root))


def _reduce_scatter_forward(ctx, call, x):
    return _chunks(call, _reduction(call, x))[call.group.rank].clone(memory_format=torch.contiguous_format)


def _reduce_scatter_backward(ctx, call, g):
    whole = torch.cat(exchange.all_gather_uneven(call.group, g), _dim_of(call, ctx.operand))
    return _reduction_adjoint(ctx, call, whole)


def _all_gather_forward(ctx, call, x):
    if call.dim is None:
        return torch.stack(exchange.all_gather(call.group, x))
    parts = exchange.all_gather_uneven(call.group, x)
    ctx.kept = [part.size(_dim_of(call, x)) for part in parts]
    return _joined(call, parts)


def _own_piece(ctx, call, whole):
    if call.dim is None:
        piece = whole[call.group.rank]
    else:
        piece = whole.split(ctx.kept, _dim_of(call, ctx.operand))[call.group.rank]
    return piece.clone(memory_format=torch.contiguous_format)


def _all_gather_backward(ctx, call, g):
    return _own_piece(ctx, call, exchange.all_reduce(call.group, g, "sum"))


def _gather_forward(ctx, call, x):
    whole = _all_gather_forward(ctx, call, x)
    return whole if call.group.rank == call.root else torch.zeros_like(whole)


def _gather_backward(ctx, call, g):
    return _own_piece(ctx, call, exchange.broadcast(call.group, g, call.root))


def _broadcast_forward(ctx, call, x):
    return exchange.broadcast(call.group, x, call.root)


def _broadcast_backward(ctx, call, g):
    return exchange.reduce(call.group, g, "sum", call.root)


def _scatter_forward(ctx, call, x):
    whole = exchange.broadcast(call.group, x, call.root)
    return _chunks(call, whole)[call.group.rank].clone(memory_format=torch.contiguous_format)


def _scatter_backward(ctx, call, g):
    whole = torch.cat(exchange.all_gather_uneven(call.group, g), _dim_of(call, ctx.operand))
    return whole if call.group.rank == call.root else torch.zeros_like(whole)


def _all_to_all_forward(ctx, call, x):
    dim = _dim_of(call, x)
    shapes = exchange.all_gather_shapes(call.group, x)
    received = _received_shapes(call, shapes, dim, call.group.rank)
    ctx.kept = [shape[dim] for shape in received]
    return torch.cat(exchange.all_to_all(call.group, _chunks(call, x, call.group.rank), received), dim)


def _all_to_all_backward(ctx, call, g):
    dim = _dim_of(call, ctx.operand)
    back = [chunk.shape for chunk in _chunks(call, ctx.operand, call.group.rank)]
    return torch.cat(exchange.all_to_all(call.group, g.split(ctx.kept, dim), back), dim)


def _send_recv_forward(ctx, call, x):
    group, source = call.group, _source_of(call, call.group.rank)
    shapes = exchange.all_gather_shapes(group, x)
    nothing = x.reshape(-1)[:0]
    sent_to = {to for source_, to in call.pairs if source_ == group.rank}
    chunks = [x if to in sent_to else nothing for to in range(group.size)]
    received = [shapes[r] if r == source else (0,) for r in range(group.size)]
    parts = exchange.all_to_all(group, chunks, received)
    return torch.zeros_like(x, memory_format=torch.contiguous_format) if source is None else parts[source].clone()


def _send_recv_backward(ctx, call, g):
    group, source = call.group, _source_of(call, call.group.rank)
    nothing = g.reshape(-1)[:0]
    sent_to = [to for source_, to in call.pairs if source_ == group.rank]
    chunks = [g if r == source else nothing for r in range(group.size)]
    received = [ctx.operand.shape if r in sent_to else (0,) for r in range(group.size)]
    parts = exchange.all_to_all(group, chunks, received)
    total = torch.zeros_like(ctx.operand, memory_format=torch.contiguous_format)
    for to in sent_to:
        total += parts[to]
    return total


def _copy_forward(ctx, call, x):
    return x.clone()


def _copy_backward(ctx, call, g):
    return g


def _slice_forward(ctx, call, x):
    return _chunks(call, x)[call.group.rank].clone(memory_format=torch.contiguous_format)


def _slice_backward(ctx, call, g):
    whole = torch.zeros_like(ctx.operand, memory_format=torch.contiguous_format)
    _chunks(call, whole)[call.group.rank].copy_(g)
    return whole


_FORWARD = {
    "all_reduce": _all_reduce_forward,
    "reduce": _reduce_forward,
    "broadcast": _broadcast_forward,
    "all_gather": _all_gather_forward,
    "gather": _gather_forward,
    "reduce_scatter": _reduce_scatter_forward,
    "scatter": _scatter_forward,
    "all_to_all": _all_to_all_forward,
    "send_recv": _send_recv_forward,
    "copy": _copy_forward,
    "slice": _slice_forward,
}
_BACKWARD = {
    "all_reduce": _all_reduce_backward,
    "reduce": _reduce_backward,
    "broadcast": _broadcast_backward,
    "all_gather": _all_gather_backward,
    "gather": _gather_backward,
    "reduce_scatter": _reduce_scatter_backward,
    "scatter": _scatter_backward,
    "all_to_all": _all_to_all_backward,
    "send_recv": _send_recv_backward,
    "copy": _copy_backward,
    "slice": _slice_backward,
}


# ---- in place


def torch_op(call):
    """The call's op as torch.distributed has it."""
    if call.op == "premul_sum":
        return dist._make_nccl_premul_sum(call.factor)
    return getattr(dist.ReduceOp, call.op.upper())


def attached_zeros(x):
    """Zeros that autograd connects with `x`: by where, as a product with 0 would keep NaN and infinity."""
    return torch.where(torch.zeros((), dtype=torch.bool, device=x.device), x, torch.zeros((), dtype=x.dtype, device=x.device))


def _copied(x):
    return x.clone(memory_format=torch.contiguous_format)


def _done(work):
    """Waits for what c10d returns of a call with async_op=True."""
    if work is not None:
        work.wait()


def _zeros(shape, x):
    return torch.zeros(shape, dtype=x.dtype, device=x.device)


def _all_reduce_in_place(call, x):
    y = _copied(x)
    _done(dist.all_reduce(y, torch_op(call), group=call.group.process_group, async_op=call.is_async))
    return y


def _reduce_in_place(call, x):
    y = _copied(x)
    _done(dist.reduce(y, op=torch_op(call), group=call.group.process_group, group_dst=call.root, async_op=call.is_async))
    # What is left in the buffer off root is not a result; the step's result there is zeros.
    return y if call.group.rank == call.root else attached_zeros(y)


def _broadcast_in_place(call, x):
    y = _copied(x)
    _done(dist.broadcast(y, group=call.group.process_group, group_src=call.root, async_op=call.is_async))
    return y


def _parts_for(call, x):
    shapes = [x.shape] * call.group.size if call.dim is None else exchange.all_gather_shapes(call.group, x)
    return [_zeros(shape, x) for shape in shapes]


def _all_gather_in_place(call, x):
    parts = _parts_for(call, x)
    _done(dist.all_gather(parts, x.contiguous(), group=call.group.process_group, async_op=call.is_async))
    return _joined(call, parts)


def _gather_in_place(call, x):
    parts = _parts_for(call, x)
    is_root = call.group.rank == call.root
    parts_on_root = parts if is_root else None
    _done(dist.gather(x.contiguous(), parts_on_root, group=call.group.process_group, group_dst=call.root,
                      async_op=call.is_async))
    return _joined(call, parts)


def _reduce_scatter_in_place(call, x):
    chunks = [chunk.contiguous() for chunk in _chunks(call, x)]
    y = torch.zeros_like(chunks[call.group.rank].detach())
    _done(dist.reduce_scatter(y, chunks, torch_op(call), group=call.group.process_group, async_op=call.is_async))
    return y


def _scatter_in_place(call, x):
    chunks = [chunk.contiguous() for chunk in _chunks(call, x)]
    y = torch.zeros_like(chunks[call.group.rank].detach())
    is_root = call.group.rank == call.root
    chunks_on_root = chunks if is_root else None
    _done(dist.scatter(y, chunks_on_root, group=call.group.process_group, group_src=call.root, async_op=call.is_async))
    return y


def _all_to_all_in_place(call, x):
    dim = _dim_of(call, x)
    shapes = exchange.all_gather_shapes(call.group, x)
    received = _received_shapes(call, shapes, dim, call.group.rank)
    chunks = _chunks(call, x, call.group.rank)
    counts = [_zeros(shape, x).numel() for shape in received]
    y = _zeros([sum(counts)], x)
    flat = torch.cat([chunk.reshape(-1) for chunk in chunks])
    # Gloo has no list form.
    sent = [chunk.numel() for chunk in chunks]
    _done(dist.all_to_all_single(y, flat, counts, sent, group=call.group.process_group, async_op=call.is_async))
    return torch.cat([part.reshape(shape) for part, shape in zip(y.split(counts), received)], dim)


def _send_recv_in_place(call, x):
    group = call.group.process_group
    shapes = exchange.all_gather_shapes(call.group, x)
    source, rank = _source_of(call, call.group.rank), call.group.rank
    moves = [
        dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=to)
        for source_, to in call.pairs
        if source_ == rank and to != rank
    ]
    if source is None:
        result = attached_zeros(x)
    elif source == rank:  # nobody sends to himself
        result = x.clone()
    else:
        result = _zeros(shapes[source], x)
        moves.append(dist.P2POp(dist.irecv, result, group=group, group_peer=source))
    # Together: under NCCL a send waits on the stream for its receive, so that a ring of single ones would wait for ever.
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()
    return result


_IN_PLACE = {
    "all_reduce": _all_reduce_in_place,
    "reduce": _reduce_in_place,
    "broadcast": _broadcast_in_place,
    "all_gather": _all_gather_in_place,
    "gather": _gather_in_place,
    "reduce_scatter": _reduce_scatter_in_place,
    "scatter": _scatter_in_place,
    "all_to_all": _all_to_all_in_place,
    "send_recv": _send_recv_in_place,
    "copy": lambda call, x: x.clone(),
    "slice": lambda call, x: _chunks(call, x)[call.group.rank],
}
