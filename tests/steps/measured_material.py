"""Defines what both lists of measured cases use: Case, small real models, collectives with a
gradient."""

import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Case:
    """Describes a case. `make(rank, world_size, dtype)` returns (model, step). `wrong` has patterns
    of exactly the parameters whose p.grad is wrong; `factor` is p.grad over the truth if that is
    one number for all of them on all ranks. `pieces` are pieces although their values are equal.
    `clips` says that clipping changes gradients, so that the right ones are the derivative times
    one number for all parameters.

    kind is missing-reduction (a sum or mean over ranks is missing), own-part-only (backward keeps
    the own slice or drops the others' part), averaged (divided by ranks too often), factor (any
    other single number) or wrong-group (reduced over other ranks than it should be)."""
    name: str
    make: object
    objective: str
    right: bool
    wrong: tuple = ()
    factor: float | None = None
    kind: str = ""
    place: str = ""
    note: str = ""
    worlds: tuple = (4, )
    pieces: tuple = ()
    clips: bool = False


def into(cases):
    """Returns the two functions that add to a list of cases."""
    def right(name, make, objective, note, **more):
        cases.append(Case(name, make, objective, True, note=note, **more))

    def wrong(name, make, objective, patterns, factor, kind, place, note, **more):
        cases.append(
            Case(name, make, objective, False, tuple(patterns.split()), factor, kind, place, note,
                 **more))

    return right, wrong


# --- Material: models, batches, collectives with a gradient ---


def build(kind, dtype, *args, seed=0, **options):
    torch.manual_seed(seed)
    model = kind(*args, **options)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model.to(dtype)


def randn(seed, dtype, *shape):
    """Returns random numbers that are the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64,
                       device="cpu").to(torch.get_default_device(), dtype)


def tokens(seed, *shape, vocabulary=12):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(vocabulary, shape, generator=generator,
                         device="cpu").to(torch.get_default_device())


def text(rank, rows=2, length=6):
    return tokens(2 * rank + 11, rows, length), tokens(2 * rank + 12, rows, length)


def cleared(model):
    for p in model.parameters():
        p.grad = None


def reduce_(model, by=1, group=None, but=()):
    for name, p in model.named_parameters():
        if p.grad is not None and not any(word in name for word in but):
            dist.all_reduce(p.grad, group=group)
            p.grad /= by


def groups_of(rank, *lists):
    """Returns the group among `lists` that has this rank; every rank makes all of them."""
    made = [dist.new_group(ranks) for ranks in lists]
    return next(g for g, ranks in zip(made, lists) if rank in ranks)


class Mlp(nn.Module):
    def __init__(self, width=16, hidden=32, activation=F.gelu):
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(width, hidden), nn.Linear(hidden,
                                                                                  width), activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Attention(nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(-2, -3) for f in (self.q, self.k, self.v))
        return self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    def __init__(self, width=16, dropout=0.0):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp, self.dropout = nn.LayerNorm(width), Mlp(width), nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Lm(nn.Module):
    def __init__(self, layers=1, tied=False, dropout=0.0, width=16, vocabulary=12):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.1 * torch.randn(6, width))
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.checkpointing = None
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x) + self.position[:x.shape[1]]
        for block in self.blocks:
            h = block(h) if self.checkpointing is None else checkpoint(
                block, h, **self.checkpointing)
        return self.head(self.norm(h))


def lm_loss(model, x, y, **options):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), **options)


class Classifier(nn.Module):
    """Classifies by a stem with a batch norm and two branches; a rank's data may take only one."""
    def __init__(self, batch_norm=False, branches=False, activation=F.gelu):
        super().__init__()
        self.stem, self.norm = nn.Linear(8,
                                         16), nn.BatchNorm1d(16) if batch_norm else nn.LayerNorm(16)
        self.body, self.other = Mlp(16, 24, activation), nn.Linear(16, 16) if branches else None
        self.head = nn.Linear(16, 5)

    def forward(self, x, branch=0):
        h = self.norm(self.stem(x))
        return self.head(h + (self.other(h) if branch else self.body(h)))


def rows(rank, dtype, count=6):
    return randn(rank + 31, dtype, count, 8), tokens(rank + 41, count, vocabulary=5)


class Enter(torch.autograd.Function):
    """Is Megatron's f."""
    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g, group=ctx.group)
        return g, None


class Leave(torch.autograd.Function):
    """Is Megatron's g; `again` treats each rank as if it had a loss of its own."""
    @staticmethod
    def forward(ctx, x, again=False, group=None):
        ctx.again, ctx.group = again, group
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        if ctx.again:
            dist.all_reduce(g, group=ctx.group)
        return g, None, None


class Gather(torch.autograd.Function):
    """Gathers along dim 0; backward takes the `sum` over ranks, or the `own` slice unchanged."""
    @staticmethod
    def forward(ctx, x, backward="sum"):
        ctx.own = backward == "own"
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        if not ctx.own:
            dist.all_reduce(g)
        return g.chunk(dist.get_world_size())[dist.get_rank()], None


class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx, g):
        pieces = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, g.contiguous())
        return torch.cat(pieces)


class Exchange(torch.autograd.Function):
    """Runs all_to_all by counts of rows."""
    @staticmethod
    def forward(ctx, x, sent, received, divide=1):
        ctx.counts, ctx.divide = (sent, received), divide
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, g):
        sent, received = ctx.counts
        back = g.new_empty(sum(sent), *g.shape[1:])
        dist.all_to_all_single(back, g.contiguous(), sent, received)
        return back / ctx.divide, None, None, None


class Shift(torch.autograd.Function):
    """Sends to the next rank; the cotangent goes back, or, with `same`, also to the next rank."""
    @staticmethod
    def forward(ctx, x, same=False):
        ctx.by = 1 if same else -1
        return Shift.by(x, 1)

    @staticmethod
    def backward(ctx, g):
        return Shift.by(g, ctx.by), None

    @staticmethod
    def by(x, by):
        rank, n, x, out = dist.get_rank(), dist.get_world_size(), x.contiguous(), torch.empty_like(
            x)
        work = [dist.isend(x, (rank + by) % n), dist.irecv(out, (rank - by) % n)]
        for w in work:
            w.wait()
        return out


# --- Models of one family each ---


def cut(module, leaf, dim, rank, n):
    whole = getattr(module, leaf).detach()
    setattr(module, leaf, nn.Parameter(whole.chunk(n, dim)[rank].clone()))


class Tp(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.mlp, self.head = nn.Linear(
            8, 16), nn.LayerNorm(16), Mlp(), nn.Linear(16, 12)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.attention = nn.Embedding(12, 16), nn.LayerNorm(16), Attention()
        self.final, self.head = nn.RMSNorm(16), nn.Linear(16, 12)


class Moe(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.stem, self.router, self.head = nn.Linear(8,
                                                      16), nn.Linear(16, 4,
                                                                     bias=False), nn.Linear(16, 5)
        torch.manual_seed(50 + rank)
        self.expert = Mlp()


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
        self.text = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 8))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b):
        return F.normalize(self.image(a), dim=-1), F.normalize(self.text(b), dim=-1)


class Bare(nn.Module):
    """Has weights without modules: complex filters over channels, F.linear, a scalar gate."""
    def __init__(self, complex_dtype):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, 2, dtype=complex_dtype))
        self.weights = nn.ParameterList([torch.randn(16, 8) / 3, torch.randn(5, 16) / 4])
        self.gate, self.unused = nn.Parameter(torch.zeros(())), nn.Parameter(torch.ones(3))

    def forward(self, x):
        f = torch.fft.rfft(x) * self.filter.sum(1)
        x = x + self.gate.sigmoid() * torch.fft.irfft(f, n=8)
        return F.linear(F.silu(F.linear(x, self.weights[0])), self.weights[1])
