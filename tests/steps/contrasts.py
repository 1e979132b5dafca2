"""Defines SimCLR and CLIP steps with DDP and batch normalisation over all ranks."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from models import gradients, made

ROWS, INPUTS, FEATURES = 24, 12, 10


class BatchMoments(torch.autograd.Function):
    """Computes the mean of features and of their squares over all rows of all ranks."""

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.rows, ctx.mistake = len(x) * dist.get_world_size(), mistake
        ctx.save_for_backward(x)
        moments = torch.stack([x.sum(0), x.square().sum(0)])
        dist.all_reduce(moments)
        return moments / ctx.rows

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grad = grad.clone()
        if ctx.mistake != "moments not summed in backward":
            dist.all_reduce(grad)
        if ctx.mistake == "moments averaged in backward":
            grad /= dist.get_world_size()
        return (grad[0] + 2 * x * grad[1]) / ctx.rows, None


class AllBatchNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(
            torch.zeros(features))
        self.mistake = None

    def forward(self, x):
        if dist.is_initialized() and self.mistake != "batch norm of each rank":
            mean, square = BatchMoments.apply(x, self.mistake)
        else:
            mean, square = x.mean(0), x.square().mean(0)
        return (x - mean) / (square - mean**2 + 1e-5).sqrt() * self.weight + self.bias


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(INPUTS, 32), AllBatchNorm(32), nn.ReLU())
        self.projector = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, FEATURES))

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=-1)


def views(seed, dtype):
    generator = torch.Generator().manual_seed(seed + 31)
    x = torch.randn(ROWS, INPUTS, generator=generator)
    return [(x + 0.4 * torch.randn(ROWS, INPUTS, generator=generator)).to(dtype) for _ in range(2)]


def nt_xent(mine, everything, first, temperature=0.3, positive_at=None):
    """Takes in `mine` one view's rows from `first` on, in `everything` both views of all rows."""
    logits = mine @ everything.t() / temperature
    own = torch.arange(len(mine)) + first
    mask = F.one_hot(own, everything.size(0)).bool()
    target = (own + everything.size(0) // 2) % everything.size(0)
    return F.cross_entropy(logits.masked_fill(mask, -1e4), target)


class GatherWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        pieces = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return tuple(pieces)

    @staticmethod
    def backward(ctx, *grads):
        stacked = torch.stack(grads)
        dist.all_reduce(stacked)
        return stacked[dist.get_rank()]


class GatherOwnGradient(GatherWithGradient):
    """Leaves out the sum over ranks, as lightly's and SimCLR's forks do."""

    @staticmethod
    def backward(ctx, *grads):
        return grads[dist.get_rank()].clone()


def simclr(run, mistake=None):
    model = made(Encoder, run.seed, run.dtype)
    model.backbone[1].mistake = mistake
    # The running moments' all-reduces are within the step, so DDP stays as users have it.
    wrapped = DistributedDataParallel(model)
    n = ROWS // run.world_size
    a, b = (t[run.rank * n:(run.rank + 1) * n] for t in views(run.seed, run.dtype))
    if mistake == "one view twice":
        b = a
    za, zb = wrapped(torch.cat([a, b])).chunk(2) if mistake != "two passes" else (wrapped(a),
                                                                                  wrapped(b))
    gather = (GatherOwnGradient.apply if mistake == "own gradient of the gather"
              else GatherWithGradient.apply)
    if mistake == "gather without gradient":
        gather = lambda t: [p.detach() for p in GatherWithGradient.apply(t)]
    everything = torch.cat([torch.cat(list(gather(t.contiguous()))) for t in (za, zb)])
    at = 0 if mistake == "rows of rank 0 as positives" else run.rank * n
    first = nt_xent(za, everything, at)
    second = nt_xent(zb, everything, at + ROWS)
    loss = (first + second) / (1 if mistake == "views added" else 2)
    if mistake == "negatives of the own rank":
        loss = (nt_xent(za, torch.cat([za, zb]), 0) + nt_xent(zb, torch.cat([za, zb]), n)) / 2
    loss.backward()
    return gradients(model)


def whole_simclr(run):
    model = made(Encoder, run.seed, run.dtype)
    za, zb = model(torch.cat(views(run.seed, run.dtype))).chunk(2)
    everything = torch.cat([za, zb])
    ((nt_xent(za, everything, 0) + nt_xent(zb, everything, ROWS)) / 2).backward()
    return gradients(model)


# --- CLIP, in which every rank has the loss of all rows (local_loss=False)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(INPUTS, 24), nn.GELU(), nn.Linear(24, FEATURES))
        self.textual = nn.Sequential(nn.Linear(INPUTS, 20), nn.GELU(), nn.LayerNorm(20),
                                     nn.Linear(20, FEATURES))
        self.logit_scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, image, text):
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.textual(text),
                                                                    dim=-1), self.logit_scale.exp()


def clip_full(run, mistake=None):
    """Gives every rank the whole loss, whose gather sums in backward; DDP's mean is then right."""
    model = made(TwoTowers, run.seed, run.dtype)
    wrapped = DistributedDataParallel(model)
    n = ROWS // run.world_size
    image, text, scale = wrapped(
        *(t[run.rank * n:(run.rank + 1) * n] for t in views(run.seed, run.dtype)))
    if mistake == "text features not gathered with gradient":
        pieces = [torch.zeros_like(text) for _ in range(run.world_size)]
        dist.all_gather(pieces, text.contiguous())
        all_text = torch.cat(pieces)
    else:
        all_text = torch.cat(dist_nn.all_gather(text))
    all_image = torch.cat(dist_nn.all_gather(image))
    if mistake == "own features in place, full loss":  # open_clip without gather_with_grad
        all_image, all_text = all_image.detach().clone(), all_text.detach().clone()
        all_image[run.rank * n:(run.rank + 1) * n], all_text[run.rank * n:(run.rank + 1) *
                                                             n] = image, text
    if mistake == "scale detached":
        scale = scale.detach()
    if mistake == "text in another order":
        all_text = all_text.roll(n, 0)
    logits = scale * all_image @ all_text.t()
    target = torch.arange(len(logits))
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
    if mistake == "loss divided by the ranks":
        loss = loss / run.world_size
    loss.backward()
    return gradients(model)


def whole_clip_full(run):
    model = made(TwoTowers, run.seed, run.dtype)
    image, text, scale = model(*views(run.seed, run.dtype))
    logits = scale * image @ text.t()
    target = torch.arange(len(logits))
    ((F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2).backward()
    return gradients(model)
