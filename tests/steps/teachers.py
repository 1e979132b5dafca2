"""Defines steps with more than one loss or model, or an optimizer's buffers: a student of a teacher
with a centre over all ranks; a policy whose advantages are normalised over all ranks; gradients in
flat buckets of which each rank reduces a part; a generator and its judge."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from fields import averaged, trained
from models import made

# --- A student and its teacher

PIXELS, PROTOTYPES, PICTURES = 20, 14, 16


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PIXELS, 28), nn.GELU(), nn.LayerNorm(28),
                                  nn.Linear(28, 16))
        self.prototypes = nn.Linear(16, PROTOTYPES, bias=False)

    def forward(self, x):
        return self.prototypes(F.normalize(self.body(x), dim=-1))


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = Trunk(), Trunk()
        self.teacher.requires_grad_(False)
        self.register_buffer("centre", torch.linspace(-0.2, 0.2, PROTOTYPES))


def views(run):
    generator = torch.Generator().manual_seed(700 + run.seed)
    x = torch.randn(PICTURES, PIXELS, generator=generator)
    return [(x + 0.5 * torch.randn(PICTURES, PIXELS, generator=generator)).to(run.dtype)
            for _ in range(2)]


def distilled_loss(model, views, mistake=None, n=1):
    """Returns the loss of each view's student against the other view's teacher, less the centre,
    which follows the teacher."""
    said = model.student(torch.cat(views)).chunk(2)
    with torch.no_grad():
        taught = model.teacher(torch.cat(views))
        mean = taught.mean(0)
        if n > 1 and mistake != "centre of the own rows":
            dist.all_reduce(mean)
            mean /= n * n if mistake == "centre divided twice" else n
        model.centre.mul_(0.7).add_(mean, alpha=0.3)
        taught = ((taught - model.centre) / 0.2).softmax(-1).chunk(2)
    if mistake == "teacher of the same view":
        taught = taught[::-1]
    return sum(-(t * F.log_softmax(s / 0.4, -1)).sum(-1).mean()
               for s, t in zip(said, taught[::-1])) / 2


def whole_distilled(run):
    model = made(Distiller, run.seed, run.dtype)
    distilled_loss(model, views(run)).backward()
    return trained(model)


def distilled(run, mistake=None):
    model = made(Distiller, run.seed, run.dtype)
    own = [view.chunk(run.world_size)[run.rank] for view in views(run)]
    distilled_loss(model, own, mistake, run.world_size).backward()
    # Freezing the last layer in the first epoch must happen on all ranks; here only rank 0 does it.
    if mistake == "last layer's gradient dropped on rank 0" and run.rank == 0:
        model.student.prototypes.weight.grad = None
    if mistake == "each gradient clipped before the mean":
        for p in model.student.parameters():
            p.grad *= torch.clamp(0.02 / (p.grad.norm() + 1e-6), max=1.0)
    averaged(model.student.parameters())
    return trained(model)


# --- A policy

ANSWERS, STEPS, TOKENS, HIDDEN = 16, 10, 18, 20


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(TOKENS, HIDDEN), nn.GRU(HIDDEN, HIDDEN,
                                                                    batch_first=True)
        self.norm = nn.LayerNorm(HIDDEN)
        self.lm_head, self.value_head = nn.Linear(HIDDEN, TOKENS), nn.Linear(HIDDEN, 1)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens) + self.mix(self.embed(tokens))[0])
        return self.lm_head(x), self.value_head(x)[..., 0]


def answers(run):
    """Returns tokens, an old policy's and a reference's log-probabilities, rewards, and which
    tokens are answers: fewer on the last ranks."""
    generator = torch.Generator().manual_seed(800 + run.seed)
    tokens = torch.randint(TOKENS, (ANSWERS, STEPS + 1), generator=generator)
    old, reference = (-2.9 + 0.3 * torch.randn(ANSWERS, STEPS, generator=generator)
                      for _ in range(2))
    rewards = torch.randn(ANSWERS, generator=generator) + torch.linspace(0, 2, ANSWERS)
    at = torch.arange(STEPS)
    mask = (at >= 2) & (at < torch.linspace(STEPS, 4, ANSWERS)[:, None])
    return tokens, old.to(run.dtype), reference.to(run.dtype), rewards.to(run.dtype), mask


def all_sum(x, n):
    x = x.clone()
    if n > 1:
        dist.all_reduce(x)
    return x


def normalised(rewards, n, mistake):
    if mistake == "advantages of the own answers":
        n = 1
    count = len(rewards) * n
    mean = all_sum(rewards.sum(), n) / count
    square = (rewards - mean).square().sum()
    if mistake == "own answers' spread":
        return (rewards - mean) / (square / len(rewards)).sqrt()
    return (rewards - mean) / (all_sum(square, n) / count).sqrt()


def policy_loss(model, batch, n=1, mistake=None):
    """Returns the rank's loss for a mean of the ranks' gradients."""
    tokens, old, reference, rewards, mask = batch
    logits, values = model(tokens[:, :-1])
    following = tokens[:, :-1] if mistake == "log-probabilities of the tokens before" else (
        tokens[:, 1:])
    log_p = F.log_softmax(logits, -1).gather(-1, following[..., None])[..., 0]
    advantages, ratio = normalised(rewards, n, mistake)[:, None], (log_p - old).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.7, 1.3) * advantages)
    distance = (reference - log_p).exp() - (reference - log_p) - 1
    each = 0.1 * distance - surrogate
    valued = (values - rewards[:, None]).square()
    count = (mask.sum() if mistake == "answers' tokens of the own rank" else all_sum(mask.sum(), n))
    scale = 1 if mistake == "answers' tokens of the own rank" else n
    value = 0.5 * (valued * mask).sum() * scale / count
    if mistake == "values of all tokens":
        value = 0.5 * valued.mean()
    if mistake == "each answer's own mean":
        return ((each * mask).sum(1) / mask.sum(1)).mean() + value
    if mistake == "not scaled by the ranks":
        return (each * mask).sum() / count + value / n
    return (each * mask).sum() * scale / count + value


def whole_policy(run):
    model = made(Policy, run.seed, run.dtype)
    policy_loss(model, answers(run)).backward()
    return trained(model)


def policy(run, mistake=None):
    model = made(Policy, run.seed, run.dtype)
    own = [t.chunk(run.world_size)[run.rank] for t in answers(run)]
    wrapped = nn.parallel.DistributedDataParallel(model)
    policy_loss(wrapped, own, run.world_size, mistake).backward()
    return trained(model)


# --- Flat buckets

FEATURES, LABELS, SAMPLES = 18, 9, 32


class Plain(nn.Module):
    """Has parameters whose sizes are no multiples of the number of ranks."""

    def __init__(self):
        super().__init__()
        self.enter, self.norm = nn.Linear(FEATURES, 15), nn.LayerNorm(15)
        self.middle, self.leave = nn.Linear(15, 13), nn.Linear(13, LABELS)

    def forward(self, x):
        return self.leave(torch.tanh(self.middle(self.norm(F.gelu(self.enter(x))))))


class Buckets:
    """Reduces each rank's part of each bucket, adds it up over micro-batches, and gathers it at the
    end."""

    def __init__(self, model, most, n, mistake):
        self.n, self.mistake = n, mistake
        named = list(model.named_parameters())[::-1]
        self.buckets, size = [[]], 0
        for name, p in named:
            if size and size + p.numel() > most:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append((name, p))
            size += p.numel()
        self.shards = [None] * len(self.buckets)

    def padded(self, bucket):
        size = sum(p.numel() for _, p in bucket)
        return -(-size // self.n) * self.n

    def reduce(self):
        """Reduces the buckets after a backward."""
        for i, bucket in enumerate(self.buckets):
            if self.mistake == "last bucket not flushed" and i == len(self.buckets) - 1:
                continue
            flat = bucket[0][1].new_zeros(self.padded(bucket))
            at = 0
            for _, p in bucket:
                flat[at:at + p.numel()] = p.grad.flatten() / self.n
                at += p.numel()
                p.grad = None
            shard = flat.new_empty(len(flat) // self.n)
            dist.reduce_scatter_tensor(shard, flat)
            if self.mistake == "divided by the ranks again" and i == 0:
                shard /= self.n
            if self.shards[i] is None or self.mistake == "shards overwritten":
                self.shards[i] = shard
            else:
                self.shards[i] += shard

    def clip(self, most):
        square = sum(shard.square().sum() for shard in self.shards)
        if self.mistake != "norm of the own shards":
            dist.all_reduce(square)
        for shard in self.shards:
            shard *= torch.clamp(most / (square.sqrt() + 1e-6), max=1.0)

    def gather(self):
        found = {}
        for shard, bucket in zip(self.shards, self.buckets):
            if shard is None:
                found |= {name: p.grad for name, p in bucket}
                continue
            flat = shard.new_empty(len(shard) * self.n)
            dist.all_gather_into_tensor(flat, shard)
            at = 0
            for i, (name, p) in enumerate(bucket):
                if self.mistake == "offset without norm.bias" and i > 0 and (
                        bucket[i - 1][0] == "norm.bias"):
                    at -= bucket[i - 1][1].numel()
                found[name] = flat[at:at + p.numel()].view_as(p)
                at += p.numel()
        return found


def samples(run):
    generator = torch.Generator().manual_seed(900 + run.seed)
    x = torch.randn(SAMPLES, FEATURES, generator=generator).to(run.dtype)
    return x, torch.randint(LABELS, (SAMPLES,), generator=generator)


def whole_buckets(run, clip=None):
    model = made(Plain, run.seed, run.dtype)
    x, y = samples(run)
    F.cross_entropy(model(x), y).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    return trained(model)


def buckets(run, mistake=None, clip=None):
    model = made(Plain, run.seed, run.dtype)
    x, y = (t.chunk(run.world_size)[run.rank] for t in samples(run))
    reducer = Buckets(model, 250, run.world_size, mistake)
    for a, b in zip(x.chunk(2), y.chunk(2)):
        (F.cross_entropy(model(a), b) / 2).backward()
        reducer.reduce()
    if clip:
        reducer.clip(clip)
    return reducer.gather()


# --- A generator and its judge

NOISE, SHAPE, JUDGED = 7, 12, 16


class SumOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake, x = mistake, x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        if ctx.mistake == "spread's gradient of the own rows":
            return grad, None
        return SumOfRows.apply(grad.contiguous(), ctx.mistake), None


class Spread(nn.Module):
    """Adds the batch's spread as one more feature of each row."""

    def __init__(self):
        super().__init__()
        self.n, self.mistake = 1, None

    def mean(self, x):
        total = x.sum(0)
        if self.n > 1 and self.mistake != "spread of the own rows":
            return SumOfRows.apply(total, self.mistake) / (len(x) * self.n)
        return total / len(x)

    def forward(self, x):
        spread = (self.mean((x - self.mean(x)).square()) + 1e-3).sqrt().mean()
        return torch.cat([x, spread.expand(len(x), 1)], 1)


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 22), nn.GELU(), nn.Linear(22, SHAPE))
        self.enter, self.spread = nn.Linear(SHAPE, 18), Spread()
        self.judge = nn.Sequential(nn.Linear(19, 16), nn.Tanh(), nn.Linear(16, 1))

    def judged(self, x):
        return self.judge(self.spread(torch.tanh(self.enter(x))))


def shapes(run):
    generator = torch.Generator().manual_seed(950 + run.seed)
    noise = torch.randn(JUDGED, NOISE, generator=generator).to(run.dtype)
    return noise, (torch.randn(JUDGED, SHAPE, generator=generator) + 0.5).to(run.dtype)


def judge_and_generate(model, noise, real, mistake=None):
    """Runs the judge's loss with a penalty on its gradient at the data, and then the generator's,
    from which the judge does not learn."""
    judges = [*model.enter.parameters(), *model.judge.parameters()]
    fake = model.generator(noise)
    judged = fake if mistake == "generator learns from the judge's loss" else fake.detach()
    (F.softplus(model.judged(judged)).mean()).backward(retain_graph=True)
    real = real.clone().requires_grad_()
    said = model.judged(real)
    slope, = torch.autograd.grad(said.sum(), real, retain_graph=True,
                                 create_graph=mistake != "penalty without a graph")
    penalty = (slope.detach() if mistake == "penalty without a graph" else slope).square()
    (F.softplus(-said).mean() + 0.5 * penalty.sum(1).mean()).backward()
    for p in judges:
        p.requires_grad_(mistake == "judge learns from the generator's loss")
    F.softplus(-model.judged(fake)).mean().backward()
    for p in judges:
        p.requires_grad_(True)


def whole_adversaries(run):
    model = made(Adversaries, run.seed, run.dtype)
    judge_and_generate(model, *shapes(run))
    return trained(model)


def adversaries(run, mistake=None):
    model = made(Adversaries, run.seed, run.dtype)
    model.spread.n, model.spread.mistake = run.world_size, mistake
    own = [t.chunk(run.world_size)[run.rank] for t in shapes(run)]
    judge_and_generate(model, *own, mistake)
    averaged(model.generator.parameters() if mistake == "judge not reduced"
             else model.parameters())
    return trained(model)
