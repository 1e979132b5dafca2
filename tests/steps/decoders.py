"""Defines a decoder as in model libraries, with grouped-query attention, rotary positions and the
loss inside. Layers that know their group cut it over tp; an all-to-all around attention, gathered
keys or a ring of sends cut it over a sequence."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import gradients, made

WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY, LENGTH, BATCH = 32, 8, 4, 48, 40, 8, 4
HEAD = WIDTH // HEADS


class Parallel:
    """Holds who shares a layer, how, and the mistake. It is set before the model is made."""

    tp = cp = None  # groups
    tp_rank, tp_size, cp_rank, cp_size, way, mistake = 0, 1, 0, 1, "", None

    @classmethod
    @contextlib.contextmanager
    def set(cls, **values):
        before = {name: getattr(cls, name) for name in values}
        for name, value in values.items():
            setattr(cls, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(cls, name, value)


def is_planted(name):
    return Parallel.mistake == name


# --- Tensor parallel


class CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=Parallel.tp)
        return grad


class ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=Parallel.tp)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Column(nn.Linear):
    """Computes a part of the outputs on each rank."""

    def __init__(self, inputs, outputs, bias=False):
        super().__init__(inputs, outputs, bias=bias)

    def cut(self, rows=None):
        n = self.out_features // Parallel.tp_size
        rows = rows if rows is not None else torch.arange(n * Parallel.tp_rank,
                                                          n * (Parallel.tp_rank + 1))
        self.weight = nn.Parameter(self.weight.detach()[rows].clone())
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach()[rows].clone())


class Row(nn.Linear):
    """Takes a part of the inputs on each rank."""

    def cut(self):
        n = self.in_features // Parallel.tp_size
        self.weight = nn.Parameter(
            self.weight.detach()[:, n * Parallel.tp_rank:n * (Parallel.tp_rank + 1)].clone())

    def forward(self, x):
        y = F.linear(x, self.weight)
        if Parallel.tp_size > 1:
            y = ReduceFromRegion.apply(y)
        return y if self.bias is None else y + self.bias


def entered(x):
    return CopyToRegion.apply(x) if Parallel.tp_size > 1 else x


# --- Context parallel


def all_to_all(x, cut, join):
    pieces = torch.stack([t.contiguous() for t in x.chunk(Parallel.cp_size, cut)])
    out = torch.empty_like(pieces)
    dist.all_to_all_single(out, pieces, group=Parallel.cp)
    return torch.cat(list(out), join)


class SeqAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, join):
        ctx.dims = cut, join
        return all_to_all(x, cut, join)

    @staticmethod
    def backward(ctx, grad):
        cut, join = ctx.dims
        if is_planted("output's exchange runs forwards again") and cut == 1:
            return torch.cat(grad.chunk(Parallel.cp_size, join), cut), None, None
        return all_to_all(grad, join, cut), None, None


class GatherKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        pieces = [torch.empty_like(x) for _ in range(Parallel.cp_size)]
        dist.all_gather(pieces, x.contiguous(), group=Parallel.cp)
        return torch.cat(pieces, 1)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        if is_planted("values are averaged in backward") and ctx.name == "v":
            grad /= Parallel.cp_size
        dist.all_reduce(grad, group=Parallel.cp)
        return grad.chunk(Parallel.cp_size, 1)[Parallel.cp_rank].contiguous(), None


class Shift(torch.autograd.Function):
    """Sends to the next rank and receives from the previous one."""

    @staticmethod
    def passed(x, by):
        out, n = torch.empty(x.shape, dtype=x.dtype), Parallel.cp_size
        ranks = (dist.get_process_group_ranks(Parallel.cp) if Parallel.cp is not None
                 else list(range(n)))
        ops = [dist.P2POp(dist.isend, x.contiguous(), ranks[(Parallel.cp_rank + by) % n]),
               dist.P2POp(dist.irecv, out, ranks[(Parallel.cp_rank - by) % n])]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return out

    @staticmethod
    def forward(ctx, x):
        return Shift.passed(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return Shift.passed(grad, 1 if is_planted("gradients travel the same way round") else -1)


def ring(q, k, v, scale):
    """Adds up softmax attention block by block; q, k, v are [batch, heads, own length, head]."""
    n, rank, own = Parallel.cp_size, Parallel.cp_rank, q.size(2)
    total = torch.zeros_like(q)
    norm = q.new_zeros(q.shape[:3] + (1,))
    for step in range(n):
        source = (rank - step) % n
        at = torch.arange(own)
        seen = (source * own + at)[None] <= (rank * own + at)[:, None]
        weights = (q @ k.transpose(-1, -2) * scale).exp() * seen
        if is_planted("own block left out of the sum") and step == 0:
            norm = norm + weights.sum(-1, keepdim=True).detach()
        else:
            norm = norm + weights.sum(-1, keepdim=True)
        total = total + weights @ v
        if step < n - 1:
            k, v = Shift.apply(k), Shift.apply(v)
    return total / norm


# --- The model


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width) + 0.1 * torch.randn(width))

    def forward(self, x):
        return (self.weight * (x.float() * torch.rsqrt(x.float().square(
            ).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) if (x.dtype is torch.bfloat16)
                else self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def rotated(x, positions):
    half = x.size(-1) // 2
    angles = torch.outer(positions.to(torch.float64),
                         10.0**-torch.arange(half, dtype=torch.float64)).to(x.dtype)
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = Column(WIDTH, WIDTH, True), Column(WIDTH, KV_HEADS * HEAD, True)
        self.v_proj, self.o_proj = Column(WIDTH, KV_HEADS * HEAD, True), Row(WIDTH, WIDTH, False)
        self.q_norm, self.k_norm = RMSNorm(HEAD), RMSNorm(HEAD)

    def forward(self, x, positions):
        x = entered(x)
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q), self.k_norm(k)
        at = positions - positions[0] if is_planted("keys are rotated as if at 0") else positions
        q, k = rotated(q, positions), rotated(k, at)
        groups = HEADS // KV_HEADS
        if is_planted("kv heads in turn") and Parallel.way == "ulysses":
            k, v = (torch.cat([t] * groups, 2) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(groups, 2) for t in (k, v))
        return self.o_proj(self.mixed(q, k, v).flatten(2))

    def mixed(self, q, k, v):
        scale = HEAD**-0.5
        if Parallel.way == "ulysses":
            q, k, v = (SeqAllToAll.apply(t, 2, 1) for t in (q, k, v))
        if Parallel.way == "gathered":
            k, v = GatherKeys.apply(k, "k"), GatherKeys.apply(v, "v")
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if Parallel.way == "ring":
            return ring(q, k, v, scale).transpose(1, 2)
        first = Parallel.cp_rank * q.size(2) if Parallel.way == "gathered" else 0
        seen = torch.arange(k.size(2))[None] <= torch.arange(first, first + q.size(2))[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(1, 2)
        return SeqAllToAll.apply(out, 1, 2) if Parallel.way == "ulysses" else out


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Column(WIDTH, HIDDEN), Column(
            WIDTH, HIDDEN), Row(HIDDEN, WIDTH, True)

    def forward(self, x):
        inside = entered(x)
        gate = self.gate_proj(x if is_planted("gate not entered") else inside)
        return self.down_proj(F.silu(gate) * self.up_proj(inside))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), GatedMlp()

    def forward(self, x, positions):
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class CausalLM(nn.Module):
    """Returns (loss, logits), as transformers' models do."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.lm_head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, labels, positions=None, count=None):
        positions = torch.arange(tokens.size(1)) if positions is None else positions
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, positions)
        logits = self.lm_head(self.norm(x))
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return losses / (count if count is not None else (labels >= 0).sum()), logits


def batch(seed):
    """Returns tokens and labels. Some labels do not count, more of them in the first rows and at
    the end."""
    generator = torch.Generator().manual_seed(50 + seed)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    for row in range(BATCH):
        labels[row, 5 + row:] = -100
    return tokens[:, :-1].contiguous(), labels


def whole_lm(run):
    model = made(CausalLM, run.seed, run.dtype)
    model(*batch(run.seed))[0].backward()
    return gradients(model)


def cut(model):
    for layer in model.layers:
        attention = layer.self_attn
        for module in (attention.q_proj, attention.k_proj, attention.v_proj, layer.mlp.gate_proj,
                       layer.mlp.up_proj):
            module.cut()
        attention.o_proj.cut()
        layer.mlp.down_proj.cut()


def tensor_lm(run, mistake=None):
    """Runs with tp of 2 and dp over the rest."""
    n = run.world_size
    tps = [dist.new_group([r, r + 1]) for r in range(0, n, 2)]
    dps = [dist.new_group(list(range(r, n, 2))) for r in range(2)]
    with Parallel.set(tp=tps[run.rank // 2], tp_rank=run.rank % 2, tp_size=2, mistake=mistake):
        model = made(CausalLM, run.seed, run.dtype)
        cut(model)
        if mistake == "key's rows of the other half":
            k = model.layers[0].self_attn.k_proj
            whole = made(CausalLM, run.seed, run.dtype).layers[0].self_attn.k_proj
            with torch.no_grad():
                k.weight.copy_(whole.weight.chunk(2)[1 - run.rank % 2])
                k.bias.copy_(whole.bias.chunk(2)[1 - run.rank % 2])
        tokens, labels = batch(run.seed)
        count = (labels >= 0).sum()
        tokens, labels = (t.chunk(n // 2)[run.rank // 2] for t in (tokens, labels))
        if mistake == "mean over own tokens":
            count = (labels >= 0).sum() * (n // 2)
        loss, _ = model(tokens, labels, count=count)
        loss.backward()
    for name, p in model.named_parameters():
        is_norm = "q_norm" in name or "k_norm" in name
        if is_norm and mistake != "head norms not reduced over tp":
            dist.all_reduce(p.grad, group=tps[run.rank // 2])
        if mistake == "biases taken for replicated" and name.endswith("q_proj.bias"):
            dist.all_reduce(p.grad, group=tps[run.rank // 2])
        dist.all_reduce(p.grad,
                        group=None if mistake == "summed over the world" and "layernorm" in name
                        else dps[run.rank % 2])
    return gradients(model)


def sequence_lm(run, mistake=None, way="ulysses"):
    """Gives each rank a part of all sequences, divides the loss by all tokens, and adds gradients
    up."""
    with Parallel.set(cp_rank=run.rank, cp_size=run.world_size, way=way, mistake=mistake):
        model = made(CausalLM, run.seed, run.dtype)
        tokens, labels = batch(run.seed)
        count = (labels >= 0).sum()
        if mistake == "padding counted":
            count = labels.numel()
        own = LENGTH // run.world_size
        labels = labels[:, own * run.rank:own * (run.rank + 1)]
        if mistake == "mean over own tokens":
            count = (labels >= 0).sum() * run.world_size
        if mistake == "labels cut before they are shifted":
            labels = F.pad(labels[:, :-1], (0, 1), value=-100)
        positions = torch.arange(own * run.rank, own * (run.rank + 1))
        loss, _ = model(tokens[:, own * run.rank:own * (run.rank + 1)], labels, positions, count)
        loss.backward()
    for name, p in model.named_parameters():
        if mistake == "embedding already summed" and name.startswith("embed"):
            p.grad *= run.world_size
        dist.all_reduce(p.grad)
    return gradients(model)
