"""Of a script: the leaves, what ranks hold of them, and their gradients."""

import torch


def drawn(shape, kind, low, high, key):
    """Reproducible random numbers: splitmix64, started by the FNV-1a hash of the key."""
    mask = 2**64 - 1
    start = 0xCBF29CE484222325
    for byte in key.encode():
        start = ((start ^ byte) * 0x100000001B3) & mask

    def bits(i):
        z = (start + (i + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def uniform(i):
        return (bits(i) >> 11) * 2.0**-53

    def number(i):
        if kind == "integers":
            return low + float(bits(i) % int(high - low + 1))
        if kind == "uniform":
            return low + (high - low) * uniform(i)
        total = 0.0
        for k in range(12):  # normal, nearly (Irwin-Hall); sum() would round otherwise
            total += uniform(12 * i + k)
        return total - 6

    count = 1
    for size in shape:
        count *= size
    return torch.tensor([number(i) for i in range(count)]).reshape(shape)


def leaf(value, as_dtype=torch.float64, requires_grad=True):
    value = value.to(dtype).to(as_dtype).clone(memory_format=torch.contiguous_format)
    return value.requires_grad_(requires_grad)


def gradient(leaf):
    if isinstance(leaf, list):
        return [gradient(of_rank) for of_rank in leaf]
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def shard(x, dim, index, count):
    """The piece of a rank, as torch.chunk cuts: the last may be shorter, or empty."""
    each = -(-x.size(dim) // count)
    begin = min(index * each, x.size(dim))
    return x.narrow(dim, begin, min(each, x.size(dim) - begin))


def ranks_with(partition, rank):
    return next(ranks for ranks in partition if rank in ranks)


def squared_gradient_norm(loss, leaves):
    """Of the gradients of all ranks' losses, which a first backward brings through the
    collectives."""
    norm = torch.zeros((), dtype=loss.dtype)
    if loss.requires_grad:
        for gradient in torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True):
            if gradient is not None:
                norm = norm + (gradient * gradient).sum()
    return norm


def squared_gradient_norms(losses, leaves):
    """By rank: of the gradient of the sum of the losses with respect to the rank's leaves."""
    return [squared_gradient_norm(sum(losses), [by_rank[rank] for by_rank in leaves])
            for rank in range(world_size)]


def by_group(partition, simulated, xs, **options):
    ys = [None] * world_size
    for ranks in partition:
        for rank, y in zip(ranks, simulated([xs[rank] for rank in ranks], **options)):
            ys[rank] = y
    return ys


def put_together(pieces, gradients, like):
    """Each rank's gradient in its place; those of one place are summed."""
    whole = torch.zeros_like(like)
    for ranks, place in pieces:
        for rank in ranks:
            if gradients[rank] is not None:
                whole[place] += gradients[rank].double()
    return whole
