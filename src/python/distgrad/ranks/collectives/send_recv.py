"""send_recv: what is sent here, else zeros of the operand's shape. `pairs` are (source, to), in the
group; nobody is sent to twice."""

import torch
import torch.distributed as dist

from .exchange import exchanged, gathered_shapes
from .pieces import attached_zeros

NAMES = ("send_recv",)


def source_of(rank, pairs):
    return next((source for source, to in pairs if to == rank), None)


def simulated_send_recv(xs, pairs):
    """send_recv of the ranks' operands, in one process."""
    sources = [source_of(rank, pairs) for rank in range(len(xs))]
    return [torch.zeros_like(x) if source is None else xs[source]
            for x, source in zip(xs, sources)]


def send_recv_forward(ctx, x, group=None, *, pairs):
    ctx.x = x
    rank, ranks = dist.get_rank(group), range(dist.get_world_size(group))
    shapes, source = gathered_shapes(x, group), source_of(rank, pairs)
    chunks = [x if (rank, to) in pairs else x.reshape(-1)[:0] for to in ranks]
    parts = exchanged(chunks, [shapes[r] if r == source else (0,) for r in ranks], group)
    if source is None:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    return parts[source].clone()


def send_recv_adjoint(ctx, g, group=None, *, pairs):
    rank, ranks = dist.get_rank(group), range(dist.get_world_size(group))
    chunks = [g if r == source_of(rank, pairs) else g.reshape(-1)[:0] for r in ranks]
    back = [ctx.x.shape if (rank, to) in pairs else (0,) for to in ranks]
    total = torch.zeros_like(ctx.x, memory_format=torch.contiguous_format)
    for to, part in enumerate(exchanged(chunks, back, group)):
        if (rank, to) in pairs:
            total += part
    return total


def plain_send_recv(x, group=None, *, pairs):
    """As calls of torch.distributed do it: autograd sees what it sees. All at once: under NCCL a
    send waits for its receive, so that a ring of single ones would wait for ever."""
    rank, shapes = dist.get_rank(group), gathered_shapes(x, group)
    source = source_of(rank, pairs)
    moves = [dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=to)
             for sender, to in pairs if sender == rank != to]
    if source is None:
        y = attached_zeros(x)
    elif source == rank:
        y = x.clone()
    else:
        y = torch.zeros(shapes[source], dtype=x.dtype, device=x.device)
        moves.append(dist.P2POp(dist.irecv, y, group=group, group_peer=source))
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()
    return y
