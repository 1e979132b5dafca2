"""What an operand is cut into, and joined of. A group's `splits` are rows of sizes by rank: one row
for all ranks, or one a rank; None cuts evenly."""

import torch
import torch.distributed as dist

from .exchange import gathered_shapes


def dim_of(x, dim):
    """Counted from the front; None is 0."""
    dim = dim or 0
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim {dim} of an operand with {x.dim()} dimensions")
    return dim % x.dim()


def chunk_sizes(length, size, splits=None, row=0):
    """By rank, of what `row`'s operand is cut into."""
    if splits is None:
        if length % size:
            raise ValueError(f"a dimension of {length} does not divide evenly among {size} ranks;"
                             " give splits")
        return [length // size] * size
    sizes = list(splits[0 if len(splits) == 1 else row])
    if len(sizes) != size or sum(sizes) != length:
        raise ValueError(f"the splits {sizes} of a dimension of {length} among {size} ranks")
    return sizes


def chunks_of(x, size, dim, splits=None, row=0):
    dim = dim_of(x, dim)
    return x.split(chunk_sizes(x.size(dim), size, splits, row), dim)


def group_chunks(x, group, dim, splits=None):
    """Of this rank's operand, by rank of the group."""
    return chunks_of(x, dist.get_world_size(group), dim, splits, dist.get_rank(group))


def own_chunk(x, group, dim, splits=None):
    chunk = group_chunks(x, group, dim, splits)[dist.get_rank(group)]
    return chunk.clone(memory_format=torch.contiguous_format)


def joined(parts, dim):
    """Stacked where dim is None."""
    if dim is None:
        return torch.stack(list(parts))
    return torch.cat(list(parts), dim_of(parts[0], dim))


def empty_pieces(x, group, dim):
    """Zeros to receive what is then joined: of x's shape, or along a dim of each rank's own."""
    size = dist.get_world_size(group)
    shapes = [x.shape] * size if dim is None else gathered_shapes(x, group)
    return [torch.zeros(shape, dtype=x.dtype, device=x.device) for shape in shapes]


def own_piece(whole, sizes, dim, group=None):
    """This rank's of what is joined, of these sizes along dim."""
    pieces = whole if dim is None else whole.split(sizes, dim_of(whole, dim))
    return pieces[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)


def attached_zeros(x):
    """Zeros that autograd connects with x: by where, as a product with 0 would keep NaN."""
    never = torch.zeros((), dtype=torch.bool, device=x.device)
    return torch.where(never, x, torch.zeros((), dtype=x.dtype, device=x.device))


class Zeros(torch.autograd.Function):
    """Zeros that stay attached to `sources`, whose cotangents are zero whatever they hold: 0 times
    NaN would not be."""

    @staticmethod
    def forward(ctx, shape, like, *sources):
        ctx.forms = [(s.shape, s.new_zeros(())) for s in sources]
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    @staticmethod
    def backward(ctx, g):
        # Attached to the cotangent, for who differentiates twice: the ranks' graphs then have the
        # same collectives.
        return (None, None, *(Zeros.apply(shape, like, g) for shape, like in ctx.forms))


def zeros_attached(shape, value, x):
    """A result off root, attached to the tensors of `value` that are in the graph, or to x where
    none is: the backward that made them has to run there, too."""
    tensors = value if isinstance(value, (list, tuple)) else [value]
    sources = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    return Zeros.apply(tuple(shape), x.detach(), *(sources or [x]))
