"""What users' functions look like: what they take and give besides a tensor, and along which
dimension. Beside each right one stands a wrong one."""

import torch
import torch.distributed as dist


def _gathered(x, group, dim):
    pieces = [torch.empty_like(x, memory_format=torch.contiguous_format)
              for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, x.contiguous(), group=group)
    return torch.cat(pieces, dim)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sums):
        ctx.given = group, dim, sums
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx, g):
        group, dim, sums = ctx.given
        if sums:
            g = g.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(g, group=group)
        return g.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)], None, None, None


def gather_and_count(x, sums=True, group=None):
    return _Gather.apply(x, group, 0, sums), dist.get_world_size(group)


def gather_and_count_own(x, group=None):
    return gather_and_count(x, False, group)


def gather_as_dict(x, group=None):
    return {"all": _Gather.apply(x, group, 0, True), "rows": len(x)}


def gather_as_dict_own(x, group=None):
    return {"all": _Gather.apply(x, group, 0, False), "rows": len(x)}


def gather_with_labels(x, labels, group=None):
    assert labels.dtype == torch.int64 and labels.shape == x.shape[:1]
    return _Gather.apply(x, group, 0, True), _gathered(labels, group, 0)


def gather_with_labels_own(x, labels, group=None):
    return _Gather.apply(x, group, 0, False), _gathered(labels, group, 0)


def gather_around_own(x, group=None):
    """torchmetrics': the others' pieces are constants, and the operand is in its own place."""
    with torch.no_grad():
        pieces = list(_gathered(x, group, 0).chunk(dist.get_world_size(group)))
    pieces[dist.get_rank(group)] = x
    return pieces


def gather_around_own_own(x, group=None):
    """As above, with a piece that is cut off as well."""
    pieces = gather_around_own(x, group)
    pieces[dist.get_rank(group)] = x.detach() + 0 * x.sum()
    return pieces


def gather_and_copy(x, group=None):
    """On two ranks as many tensors as ranks, and one of them is meant."""
    y = _Gather.apply(x, group, 0, True)
    return y, y.detach()


def gather_and_copy_own(x, group=None):
    y = _Gather.apply(x, group, 0, False)
    return y, y.detach()


def gather_heads(x, group=None):
    batch, sequence, heads, width = x.shape
    return _Gather.apply(x, group, 0, True)


def gather_heads_own(x, group=None):
    batch, sequence, heads, width = x.shape
    return _Gather.apply(x, group, 0, False)


def gather_last(x, group=None):
    return _Gather.apply(x, group, -1, True)


def gather_last_own(x, group=None):
    return _Gather.apply(x, group, -1, False)


def gather_in_a_group(x, group=None):
    if group is None:
        raise ValueError("the group is not initialized")
    return _Gather.apply(x, group, 0, True)


def gather_in_a_group_own(x, group=None):
    if group is None:
        raise ValueError("the group is not initialized")
    return _Gather.apply(x, group, 0, False)


class _Enter(torch.autograd.Function):
    """Megatron's f: whether there is a group shows in backward only."""

    @staticmethod
    def forward(ctx, x, group, sums):
        ctx.given = group, sums
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        group, sums = ctx.given
        assert group is not None, "group should not be None"
        g = g.clone(memory_format=torch.contiguous_format)
        if sums:
            dist.all_reduce(g, group=group)
        return g, None, None


def get_parallel_group():
    return None


def enter(x, group=None):
    return _Enter.apply(x, get_parallel_group() if group is None else group, True)


def enter_own(x, group=None):
    return _Enter.apply(x, get_parallel_group() if group is None else group, False)


class _SliceLast(torch.autograd.Function):
    """Megatron's scatter_to_tensor_model_parallel_region."""

    @staticmethod
    def forward(ctx, x, group, gathers):
        ctx.given = group, gathers
        size = dist.get_world_size(group)
        assert x.shape[-1] % size == 0, f"{x.shape[-1]} is not divisible by {size}"
        return x.chunk(size, -1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx, g):
        group, gathers = ctx.given
        return (_gathered(g, group, -1)
                if gathers else torch.cat([g] * dist.get_world_size(group), -1)), None, None


def slice_last(x, group=None):
    return _SliceLast.apply(x, group, True)


def slice_last_own(x, group=None):
    return _SliceLast.apply(x, group, False)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, sends):
        ctx.given = group, sends
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        group, sends = ctx.given
        return (_Exchange.apply(g, group, True) if sends else g.clone()), None, None


def exchange_stacked(x, group=None):
    return _Exchange.apply(x, group, True).unflatten(0, (dist.get_world_size(group), -1))


def exchange_stacked_own(x, group=None):
    return _Exchange.apply(x, group, False).unflatten(0, (dist.get_world_size(group), -1))


def exchange_flat(x, group=None):
    return _Exchange.apply(x, group, True).flatten()


def exchange_flat_own(x, group=None):
    return _Exchange.apply(x, group, False).flatten()


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, src, gathers, *pieces):
        ctx.given = src, gathers, len(pieces)
        dist.scatter(output, [p.contiguous() for p in pieces] if dist.get_rank() == src else None,
                     src)
        return output.clone()

    @staticmethod
    def backward(ctx, g):
        src, gathers, count = ctx.given
        if not gathers:
            return (None, None, None, *[g] * count)
        is_root = dist.get_rank() == src
        pieces = [torch.empty_like(g, memory_format=torch.contiguous_format)
                  for _ in range(dist.get_world_size())]
        dist.gather(g.contiguous(), pieces if is_root else None, src)
        return (None, None, None, *(pieces if is_root else ()))


def scatter_pieces(output, scatter_list=None, src=0):
    """Off root only the buffer tells autograd that there is a backward to run."""
    return _Scatter.apply(output, src, True, *(scatter_list or ()))


def scatter_pieces_own(output, scatter_list=None, src=0):
    return _Scatter.apply(output, src, False, *(scatter_list or ()))


class Comm:
    def all_gather(self, x, bits):
        return x


def with_axis_text(x, axis: str, bits):
    return x


def with_axis_group(x, axis: dist.ProcessGroup, bits):
    return x


def on_gpus_only(x):
    assert x.is_cuda
    return x
