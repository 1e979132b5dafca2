"""Right programs whose derivative is not, or not everywhere, what autograd is meant to give. And
one without any trick."""

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


class _Sum(torch.autograd.Function):
    """The sum over the ranks, with its adjoint."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


all_sum = _Sum.apply


def plain(x, w):
    return torch.tanh(all_sum(x * w))


# These compute something small from something large, so that it is rounded much.
def cancellation(x, w):
    return (all_sum(x * w + 1e5) - 1e5 * dist.get_world_size()) * 0.5


def near_an_optimum(x, w):
    return (all_sum(x * w * 1e-3 + 10) - 10 * dist.get_world_size()) ** 2


# 1: a target that gradients are stopped at
def stop_gradient_target(x, w):
    prediction = all_sum(x * w)
    return prediction - prediction.detach() * 0.5


# 2: statistics under no_grad, of all ranks
def no_grad_statistics(x, w):
    with torch.no_grad():
        mean = x.mean()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        scale = (x - mean).abs().max() + 1
    return all_sum((x - mean) / scale * w)


# 3: the same, where only the collective is under no_grad
def no_grad_gather(x, w):
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    with torch.no_grad():
        dist.all_gather(parts, x.contiguous())
    return all_sum(x * w) - torch.stack(parts).mean(0)


# 4: a straight-through round
def straight_through_round(x, w):
    return all_sum((x + (x.round() - x).detach()) * w)


class _Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, g):
        return g


quantized = _Quantized.apply


# 5: the same as a Function
def quantizer(x, w):
    return all_sum(quantized(x) * w)


# 6: kinks at the point: x has zeros
def relu_at_zero(x, w):
    return all_sum((torch.relu(x) + 1) * w)


# 7: at a tie max gives the gradient to one element
def max_at_a_tie(x, w):
    return all_sum(x.max(0).values * w)


# 8: the boundary of a clamp
def clamp_at_the_boundary(x, w):
    return all_sum(x.clamp(max=1.0) * w)


# 9: routing by a tie in topk
def routing(x, w):
    value, _ = x.topk(1)
    return all_sum(value * w)


# 10: torch.where at the point where its condition changes
def where_at_a_tie(x, w):
    return all_sum(torch.where(x > 1, 2 * x, x + 1) * w)


# 11: a sort with ties
def sorted_ties(x, w):
    return all_sum(x.sort().values * torch.arange(1.0, 1 + x.numel(), dtype=x.dtype) * w)


# 12: a gradient scaled for an earlier layer
def gradient_scaling(x, w):
    scaled = 0.1 * x + (0.9 * x).detach()
    return all_sum(scaled * w)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


# 13: gradient reversal
def gradient_reversal(x, w):
    return all_sum(_Reversed.apply(x) * w)


# 14: a guard against NaN, at its boundary
def guarded_log(x, w):
    safe = torch.where(x > 0, x, torch.ones_like(x))
    return all_sum(torch.where(x > 0, safe.log(), torch.zeros_like(x)) * w)


# 15: a scale as a plain number
def number_as_scale(x, w):
    return all_sum(x / x.abs().sum().item() * w)


# 16: a median, whose gradient goes to one of the middle elements
def median(x, w):
    return all_sum(x.median() * w)


_running = [torch.zeros(())]


# 17: a running mean, kept from call to call
def running_mean(x, w):
    _running[0] = 0.9 * _running[0] + 0.1 * x.detach().mean()
    return all_sum((x - _running[0]) * w)


# 18: noise that nobody seeded
def own_noise(x, w):
    noise = torch.randn(x.shape, generator=_generator).to(x.dtype)
    return all_sum((x + noise) * w)


_generator = torch.Generator()


# dropout: the same mask in every run
def dropout(x, w):
    return all_sum(torch.nn.functional.dropout(x * w, 0.5))


# detached for a log: nothing comes of it
_log = []


def logs(x, w):
    y = all_sum(x * w)
    _log.append((y.detach().mean(), y.sum().item()))
    return y


# a leaf that is meant to have no gradient
def ignores(x, w):
    return all_sum(x.detach() * w)


# a loss that is a call
def loss(y, rank):
    return (y * y).sum() * (rank + 1)


# 17: hooks that change a gradient
def scaling_hook(x, w):
    p = x * w
    p.register_hook(lambda g: g * 0.1)
    return all_sum(p)


def clipping_hook_beside_detach(x, w):
    p = x * w
    p.register_hook(lambda g: g.clamp(-1, 1))
    return all_sum(p) + x.detach()


def module_hook(x, w):
    half = torch.nn.Identity()
    half.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
    return all_sum(half(x * w))


# A hook that makes the reduction which the in-place all_reduce lacks.
def reducing_hook(x, w):
    p = x * w
    p.register_hook(all_sum)
    y = p.clone()
    dist.all_reduce(y)
    return torch.tanh(y)


# Hooks that look and change nothing.
def looking_hooks(x, w):
    seen = []
    p = torch.nn.Identity()
    p.register_full_backward_hook(lambda module, inputs, outputs: None)
    y = p(x * w)
    y.register_hook(lambda g: seen.append(g.norm()))
    return torch.tanh(all_sum(y))


# 18: torch's own Functions are none of the code's
def detach_in_a_reentrant_checkpoint(x, w):
    return checkpoint(lambda x, w: all_sum(torch.tanh(x * w) * (x * w).detach()), x, w,
                      use_reentrant=True)


def dtensor(x, w):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = DTensor.from_local(x * w, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    return whole.to_local(grad_placements=[Partial()])  # each rank's loss has a gradient of its own


# What is computed in a narrower dtype on purpose: the derivative of a cast is that of the identity.
def squares_in_float32(x, w):
    return all_sum(x * w).float() ** 2 + x


def rms_norm(x, w):
    h = all_sum(x).float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def cross_entropy_in_float32(x, w):
    logits = all_sum(torch.tanh(x * w)).float()
    return torch.nn.functional.cross_entropy(logits[None], torch.tensor([1])).reshape(1)


_BUFFER = torch.tensor([0.3, 0.7, 1.1, 1.3])


def float32_buffer(x, w):
    return all_sum((x * w).float() * _BUFFER)


def through_bfloat16(x, w):
    return all_sum((x * w).bfloat16()).to(x.dtype)


def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weight = torch.arange(12.0).reshape(3, 4) / 7
        return torch.nn.functional.linear(all_sum(x * w).float(), weight).float()


# These cannot run in float64: one asks for the dtype, one gathers into what is float32 already.
def asks_for_float32(x, w):
    y = all_sum(x * w).float()
    assert y.dtype == torch.float32
    return torch.sin(0.3 * y)


_GATHERED = [torch.zeros(4) for _ in range(2)]


class _GatherIntoBuffers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_gather(_GATHERED, x.float())
        return torch.cat(_GATHERED)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g.chunk(2)[dist.get_rank()]


def gathers_into_buffers(x, w):
    return _GatherIntoBuffers.apply(torch.tanh(x * w))
