"""Mistakes. Some have a detach, a Function or a no_grad beside the mistake, which are no excuse."""

import torch
import torch.distributed as dist


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, g):
        return g[dist.get_rank()]


class _Copy(torch.autograd.Function):
    """Megatron's f: forward communicates nothing, backward does."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class _Sum(_Identity):
    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


def identity_backward(x, w):
    return _Identity.apply(x * w)


def own_slice(x, w):
    return (_Own.apply(x * w) ** 2).sum(0)


def in_place(x, w):
    y = x * w
    dist.all_reduce(y)
    return y


def simcse(x, w):
    y = x * w
    parts = [torch.zeros_like(y) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, y.contiguous())
    parts[dist.get_rank()] = y
    return (torch.stack(parts) ** 2).sum(0)


def summed_twice(x, w):
    return _Sum.apply(_Copy.apply(x * w))


def identity_backward_in_a_loss(x, w):
    return identity_backward(x, w).square().sum()


def identity_beside_detach(x, w):
    y = _Identity.apply(x * w)
    print("mean", y.detach().mean().item())
    with torch.no_grad():
        largest = y.abs().max()
    return y if bool(largest >= 0) else -y


def identity_beside_ste(x, w):
    return _Identity.apply((x + (x.round() - x).detach()) * w)


def identity_beside_a_function(x, w):
    return _Identity.apply(_Clamp.apply(x) * w)


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def identity_beside_relu_at_zero(x, w):
    return _Identity.apply((torch.relu(x) + 1) * w)


def identity_beside_a_hook(x, w):
    p = x * w
    p.register_hook(lambda g: g * 0.1)
    return torch.tanh(_Identity.apply(p))


# The hook is on what a Function gets, and no excuse for its backward, which is its derivative.
def identity_beside_a_function_and_a_look(x, w):
    p = x * w
    p.register_hook(lambda g: None)
    return _Identity.apply(_Clamp.apply(p))


# A reduction by a hook is held to be right.
def reducing_hook_that_averages(x, w):
    def average(g):
        g = g.clone()
        dist.all_reduce(g)
        return g / dist.get_world_size()

    p = x * w
    p.register_hook(average)
    return torch.tanh(_Identity.apply(p))


# Beside casts, which are no excuse.
def identity_in_float32(x, w):
    return _Identity.apply(x * w).float() ** 2


def identity_before_a_norm_in_float32(x, w):
    h = _Identity.apply(x).float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def identity_through_bfloat16(x, w):
    return _Identity.apply((x * w).bfloat16()).to(x.dtype)


def identity_that_asks_for_float32(x, w):
    y = _Identity.apply(x * w).float()
    assert y.dtype == torch.float32
    return torch.sin(0.3 * y)


class _InBfloat16(_Identity):
    @staticmethod
    def backward(ctx, cotangent):
        narrow = cotangent.bfloat16()
        dist.all_reduce(narrow)
        return narrow.to(cotangent.dtype)


def reduced_in_bfloat16(x, w):
    return _InBfloat16.apply(x) + w


def reduced_in_bfloat16_and_multiplied(x, w):
    return _InBfloat16.apply(x * w)


def identity_beside_more_in_bfloat16(x, w):
    return (30 * w).bfloat16().to(w.dtype) + _Identity.apply(x)


class _Nothing(_Identity):
    @staticmethod
    def backward(ctx, g):
        return 0 * g


def nothing_through_bfloat16(x, w):
    return _Nothing.apply(x.bfloat16()).to(x.dtype)


class _Most(_Identity):
    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return 0.8 * g


class _MostByRank(_Identity):
    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return (0.8 - 0.1 * dist.get_rank()) * g


class _MoreInFloat32(_Identity):
    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return 1.5 * g if g.dtype == torch.float32 else g


def most(x, w):
    return _Most.apply(x * w)


def most_through_bfloat16(x, w):
    return _Most.apply((x * w).bfloat16()).to(x.dtype)


def most_by_rank(x, w):
    return _MostByRank.apply(x * w)


def more_in_float32(x, w):
    return _MoreInFloat32.apply(x * w)


def sum_of_all(xs, ws):
    total = sum(x * w for x, w in zip(xs, ws))
    return [total for _ in xs]


def overwrites(x, w):
    """Leaves in x what the steps after it are not to see."""
    total = x.detach()
    dist.all_reduce(total)
    return _Sum.apply(w)
