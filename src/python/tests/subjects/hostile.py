"""all_reduce sums, right and wrong, that do to memory, graph and state what user code can do. Each
prints what it gets, so that who looks on can be seen to change nothing."""

import torch
import torch.distributed as dist

_KEPT = {}  # by group


def _saw(what, *tensors):
    for x in tensors:
        if x is None:
            print(what, None)
            continue
        print(what, list(x.shape), x.stride(), x.storage_offset(), x.is_contiguous(), x.dtype,
              x.requires_grad, x.is_leaf, x._version, x._is_view(), type(x.grad_fn).__name__,
              x._backward_hooks is None, x.detach().sum().item())


def _sum(x, group):
    y = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


def _collective(backward, forward=_sum):
    """A function whose value is forward(x, group) and whose gradient is backward(cotangent,
    group)."""

    class Collective(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            _saw("forward", x)
            ctx.group = group
            return forward(x, group)

        @staticmethod
        def backward(ctx, g):
            _saw("backward", g)
            given = backward(g, ctx.group)
            _saw("gives", given)
            return given, None

    def function(x, group=None):
        return Collective.apply(x, group)

    return function


right = _collective(_sum)


# --- memory of the cotangent ---


def _overwrite(g, group):
    dist.all_reduce(g, group=group)
    return g


def _clear(g, group):
    total = _sum(g, group)
    g.zero_()
    return total


def _write_where_it_may(g, group):
    """An expanded cotangent is one element in memory, and nothing can be written into it by
    element."""
    if 0 in g.stride():
        return _sum(g, group)
    g.mul_(2)
    return _sum(g, group) / 2


def _write_the_same(g, group):
    g.copy_(g.clone())
    return _sum(g, group)


overwrites = _collective(
    lambda g, group: _sum(g, group) if 0 in g.stride() else _overwrite(g, group))
clears = _collective(lambda g, group: _sum(g, group) if 0 in g.stride() else _clear(g, group))
doubles = _collective(_write_where_it_may)
identity = _collective(lambda g, group: g)
writes_the_same = _collective(
    lambda g, group: _sum(g, group) if 0 in g.stride() else _write_the_same(g, group))
expanded = _collective(lambda g, group: _sum(g, group).sum().expand(g.shape))


def through_a_view(x, group=None):
    """Its backward gets a view of the cotangent, and writes to that."""
    return overwrites(x, group).unsqueeze(0).squeeze(0)


class _Dirty(torch.autograd.Function):
    """In place on its operand, and says so."""

    @staticmethod
    def forward(ctx, x, group):
        _saw("forward", x)
        ctx.group = group
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        _saw("backward", g)
        return _sum(g, ctx.group), None


def in_place(x, group=None):
    # Several elements of an expanded one are one in memory
    x = x.clone(memory_format=torch.contiguous_format)
    return _Dirty.apply(x, group)


def unknown_to_autograd(x, group=None):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x.detach(), group=group)
    return x


def returns_operand(x, group=None):
    """And leaves the sum in its memory, where it can be left there."""
    if 0 not in x.stride() and x.is_contiguous():
        dist.all_reduce(x.detach(), group=group)
    return x


# --- hooks ---


def hook_on_operand(x, group=None):
    """In place on what comes, which may be shared."""
    _saw("forward", x)
    if x.requires_grad:
        x.register_hook(lambda g: None if 0 in g.stride() else dist.all_reduce(g, group=group))
    return x


def hook_on_result(x, group=None):
    y = right(x, group)

    def hook(g):
        _saw("hook", g)
        return 2 * g

    if y.requires_grad:
        y.register_hook(hook)
    return y


# --- graph ---


def twice(x, group=None):
    """Two nodes give to the operand."""
    return right(x, group) + 3 * x


def thrice(x, group=None):
    return right(x, group) + x * x.detach() + right(2 * x, group)


def residual(x, group=None):
    """The sum's two operands have one cotangent, which the backward of one overwrites."""
    return x + overwrites(x * 1.0, group)


class _Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _sum(x, group), x * 2

    @staticmethod
    def backward(ctx, g, h):
        _saw("backward", g, h)
        return _sum(g, ctx.group) + 2 * h, None


def first_of_two(x, group=None):
    return _Two.apply(x, group)[0]


def both_of_two(x, group=None):
    first, second = _Two.apply(x, group)
    return first + second


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return _sum(x, group)

    @staticmethod
    def backward(ctx, g):
        _saw("backward", g)
        return None, None


def none(x, group=None):
    return _Nothing.apply(x, group)


def none_in_every_second(x, group=None):
    """Of its calls, the first being right."""
    _KEPT["calls"] = _KEPT.get("calls", 0) + 1
    return right(x, group) if _KEPT["calls"] % 2 else _Nothing.apply(x, group)


def none_and_own(x, group=None):
    return _Nothing.apply(x, group) + x


def detached(x, group=None):
    return _sum(x, group)


class Scaled(torch.nn.Module):
    """With a weight of its own."""

    def __init__(self, group=None):
        super().__init__()
        self.group = group
        self.weight = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x):
        return right(x * self.weight, self.group)


# --- beside it ---


def _with_a_metric(g, group):
    norm = g.detach().square().sum()
    dist.all_reduce(norm, group=group)
    print("norm", norm.item())
    return _sum(g, group)


def _mixed_with_the_last(g, group):
    last = _KEPT.get((group, g.shape))
    _KEPT[group, g.shape] = g
    return _sum(g if last is None else g + last, group)


def _sum_if_not_zero(g, group):
    return _sum(g, group) if g.abs().max() > 0 else g


class LocalWhenCompiled(torch.nn.Module):
    """With what torch.compile looks at before it runs again what it compiled: each one is
    another."""

    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.number = type(self).made

    def forward(self, x):
        return x * (self.number / self.number) if torch.compiler.is_compiling() else 0 * x


metric = _collective(_with_a_metric)
skips_zeros = _collective(_sum_if_not_zero)
remembers = _collective(_mixed_with_the_last)


def warns(x, group=None):
    import warnings

    warnings.warn("of the user's")
    return right(x, group)


# --- linear maps, planted: what the rank's operand gets, of all cotangents ---


def _all(g, group):
    pieces = [torch.empty_like(g, memory_format=torch.contiguous_format)
              for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, g.contiguous(), group=group)
    return pieces


PLANTED = {
    "own_times_n": lambda all_g, rank: len(all_g) * all_g[rank],
    "own_twice": lambda all_g, rank: sum(all_g) + all_g[rank],
    "sign_turned": lambda all_g, rank: sum(-g if r == 1 else g for r, g in enumerate(all_g)),
    "prefix_sum": lambda all_g, rank: sum(all_g[: rank + 1]),
    "rolled": lambda all_g, rank: (rank + 1) * sum(all_g).roll(1),
}


def _planted(rule):
    return _collective(lambda g, group: rule(_all(g, group), dist.get_rank(group)))


own_times_n, own_twice, sign_turned, prefix_sum, rolled = map(_planted, PLANTED.values())


# --- as a library's operator ---


@torch.library.custom_op("distgrad_hostile::total", mutates_args=())
def _total(x: torch.Tensor, group_name: str) -> torch.Tensor:
    return _sum(x, dist.distributed_c10d._resolve_process_group(group_name))


@torch.library.register_fake("distgrad_hostile::total")
def _(x, group_name):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


torch.library.register_autograd(
    "distgrad_hostile::total", lambda ctx, g: (torch.ops.distgrad_hostile.total(g, ctx.name), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "name", inputs[1]))


def operator(x, group_name):
    return torch.ops.distgrad_hostile.total(x, group_name)
