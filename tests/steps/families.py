"""Defines more steps, by family: data parallel in all its ways, context parallel, tensor parallel
by hand, experts, pipelines, contrastive.

`mistake` plants one of the mistakes that catalogue.py lists.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import (BATCH, HEADS, LENGTH, VOCABULARY, WIDTH, Mlp, Transformer, gradients, loss_of,
                    made, pairs, rows, text)
from steps import Copy, Reduce, embedded, part

# --- Data parallel


def averaged(model, run, mistake=None):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= run.world_size


def data_parallel(run, mistake=None, micro_batches=1):
    """Runs DDP, or averages by hand for 'penalty' and other mistakes, as DDP would repair these."""
    model = made(Transformer, run.seed + (mistake == "another initialisation" and run.rank == 1),
                 run.dtype)
    if mistake == "head not broadcast" and run.rank == 1:
        nn.init.normal_(model.head.weight)
    if mistake == "frozen by accident":
        model.final.bias.requires_grad_(False)
    by_hand = mistake in ("another initialisation", "head not broadcast",
                          "clipped before the reduction", "stopped early", "in half the ranks")
    wrapped = model if by_hand else nn.parallel.DistributedDataParallel(model)
    if mistake == "hook that adds up":
        wrapped.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(
            ), async_op=True).get_future().then(lambda f: f.value()[0]))
    if mistake == "hook in half the ranks":
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        half = halves[run.rank // 2]
        wrapped.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer().div_(
            2), group=half, async_op= True).get_future().then(lambda f: f.value()[0]))
    index = {"the same data everywhere": 0,
             "a rank has another's data": 0 if run.rank == 1 else run.rank}.get(mistake, run.rank)
    x, target = part(text, run, index, run.world_size)
    if mistake == "targets not shifted":
        target = x
    if mistake == "a row dropped":
        x, target = x[:-1], target[:-1]
    parts = list(zip(x.chunk(micro_batches), target.chunk(micro_batches)))
    for i, (x_part, target_part) in enumerate(parts):
        wrapped.require_backward_grad_sync = i == (0 if mistake == "synchronised at the first"
                                                   else len(parts) - 1)
        logits = wrapped(x_part)
        loss = F.cross_entropy(logits.flatten(0, -2), target_part.flatten(), reduction="sum"
                               if mistake == "sum of the tokens" else "mean") / micro_batches
        if mistake == "penalty on every rank":
            loss = loss + 0.1 * run.world_size * sum(p.square().sum() for p in model.parameters())
        elif mistake == "penalty in every micro-batch":
            loss = loss + 0.1 * sum(p.square().sum() for p in model.parameters())
        else:
            loss = loss + 0.1 * sum(p.square().sum() for p in model.parameters()) / micro_batches
        loss.backward()
    if mistake == "clipped before the reduction":
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if by_hand:
        for i, p in enumerate(model.parameters()):
            if mistake == "stopped early" and i >= 20:
                break
            dist.all_reduce(p.grad)
            p.grad /= run.world_size
    elif mistake != "not clipped" and mistake is not None and "clip" in mistake:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return gradients(model)


def whole_data_parallel(run, clip=False):
    model = made(Transformer, run.seed, run.dtype)
    x, target = text(run.seed)
    (loss_of(model(x), target) + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return gradients(model)


def sharded(run, mistake=None, clip=False):
    """Runs FSDP2, or HSDP with 4 ranks, and clips if asked to."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = made(Transformer, run.seed, run.dtype)
    mesh = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("replicate", "shard"))
    ignored = {p for n, p in model.named_parameters() if "norm" in n
              } if mistake == "norms ignored" else set()
    for layer in [*model.layers, model]:
        fully_shard(layer, mesh=mesh, ignored_params=ignored)
    if mistake == "divided by the shards alone":
        for module in [*model.layers, model]:
            module.set_gradient_divide_factor(float(run.world_size // 2))
    if mistake == "replicas not reduced":
        model.set_requires_all_reduce(False)
    x, target = part(text, run)
    (loss_of(model(x), target) * (run.world_size if mistake == "loss times the ranks"
                                  else 1)).backward()
    if mistake == "clipped by the pieces":
        nn.utils.clip_grad_norm_([p.grad.to_local() for p in model.parameters()], 0.5)
        local = [nn.Parameter(p.to_local().detach()) for p in model.parameters()]
        for mine, p in zip(local, model.parameters()):
            mine.grad = p.grad.to_local()
        nn.utils.clip_grad_norm_(local, 0.5)
    elif clip:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return gradients(model)


def whole_sharded(run, clip=False):
    model = made(Transformer, run.seed, run.dtype)
    x, target = text(run.seed)
    loss_of(model(x), target).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return gradients(model)


# --- Context parallel: each rank has a part of the sequence


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces[::-1] if mistake == "gathered in reverse" else pieces, dim=2)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        if ctx.mistake != "own slice":
            dist.all_reduce(gradient)
        if ctx.mistake == "averaged":
            gradient /= dist.get_world_size()
        at = (dist.get_rank() + (ctx.mistake == "another's slice")) % dist.get_world_size()
        return gradient.chunk(dist.get_world_size(), dim=2)[at].contiguous(), None


class Exchange(torch.autograd.Function):
    """Runs an all-to-all: cuts dim `cut`, and joins what arrives along `join`."""

    @staticmethod
    def forward(ctx, x, cut, join, mistake):
        ctx.cut, ctx.join, ctx.mistake = cut, join, mistake
        return Exchange.exchanged(x, cut, join)

    @staticmethod
    def exchanged(x, cut, join):
        sent = [t.contiguous() for t in x.chunk(dist.get_world_size(), cut)]
        received = [torch.empty_like(t) for t in sent]
        dist.all_to_all(received, sent) if dist.get_backend() != "gloo" else _all_to_all(
            received, sent)
        return torch.cat(received, join)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.mistake == "no exchange in backward":  # The shapes happen to fit.
            cut = gradient.chunk(dist.get_world_size(), ctx.join)
            return torch.cat(cut, ctx.cut), None, None, None
        if ctx.mistake == "averaged":
            gradient = gradient / dist.get_world_size()
        return Exchange.exchanged(gradient, ctx.join, ctx.cut), None, None, None


def _all_to_all(received, sent):
    """Runs all_to_all on lists by way of one tensor, as Gloo has no other."""
    packed = torch.stack(sent)
    unpacked = torch.empty_like(packed)
    dist.all_to_all_single(unpacked, packed)
    for x, y in zip(received, unpacked):
        x.copy_(y)


def _heads(x):
    return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)


def positions(first, length, dtype):
    return torch.outer(torch.arange(first, first + length),
                       torch.arange(WIDTH)).mul(0.1).cos().to(dtype)


def attended(q, k, v, first):
    """Computes causal attention for the queries from `first` on."""
    seen = torch.arange(k.size(2)) <= torch.arange(first, first + q.size(2))[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def through(model, x, first, attention):
    x = model.embedding(x) + positions(first, x.size(1), model.head.weight.dtype)
    for layer in model.layers:
        normed = layer.norm1(x)
        q, k, v = (_heads(m(normed)) for m in (layer.q, layer.k, layer.v))
        x = x + layer.o(attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + layer.down(F.gelu(layer.up(layer.norm2(x))))
    return model.head(model.final(x))


def context(run, mistake=None, ulysses=False):
    model = made(Transformer, run.seed, run.dtype)
    tokens, target = text(run.seed)
    length = LENGTH // run.world_size
    first = run.rank * length
    here = slice(first, first + length)

    def gathered(q, k, v):
        k, v = GatherSequence.apply(k, mistake), GatherSequence.apply(
            v, None if mistake != "own slice" else mistake)
        return attended(q, k, v, 0 if mistake == "mask without offset" else first)

    def exchanged(q, k, v):
        q, k, v = (Exchange.apply(t, 1, 2, mistake if t is v else None) for t in (q, k, v))
        return Exchange.apply(attended(q, k, v, 0), 2, 1, None)

    logits = through(model, tokens[:, here], 0 if mistake == "positions without offset" else first,
                     exchanged if ulysses else gathered)
    loss = F.cross_entropy(logits.flatten(0, -2), target[:, here].flatten(), reduction="sum")
    (loss / (BATCH * (length if mistake == "own tokens" else LENGTH))).backward()
    for name, p in model.named_parameters():
        if not (mistake == "embedding not reduced" and name.startswith("embedding")):
            dist.all_reduce(p.grad)
        if mistake == "mean over the ranks":
            p.grad /= run.world_size
    return gradients(model)


def whole_context(run):
    model = made(Transformer, run.seed, run.dtype)
    tokens, target = text(run.seed)
    loss_of(through(model, tokens, 0, lambda q, k, v: attended(q, k, v, 0)), target).backward()
    return gradients(model)


# --- Tensor parallel by hand: a vocabulary that is cut


class SumBothWays(torch.autograd.Function):
    """Sums in both directions, as torch.distributed.nn.functional.all_reduce does."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class GatherLast(torch.autograd.Function):
    """Gathers all ranks' features. Every rank computes the same loss of them, so backward keeps the
    own ones."""

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces, -1)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.mistake == "reduced though replicated":
            gradient = gradient.contiguous().clone()
            dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous(), None


def vocabulary(run, mistake=None):
    """Cuts embedding, MLP and head over all ranks; every rank computes the loss of all rows."""
    model = made(Transformer, run.seed, run.dtype)
    tokens, target = text(run.seed)
    n, width = VOCABULARY // run.world_size, 4 * WIDTH // run.world_size
    at = slice(run.rank * n, (run.rank + 1) * n)
    embedding = nn.Embedding.from_pretrained(model.embedding.weight.detach()[at].clone(),
                                             freeze=False)
    head = nn.Linear(WIDTH, n, bias=False, dtype=run.dtype)
    head.weight = nn.Parameter(model.head.weight.detach()[at].clone())
    block = model.layers[0]
    up, down = nn.Linear(WIDTH, width, dtype=run.dtype), nn.Linear(width, WIDTH, bias=False,
                                                                   dtype=run.dtype)
    cut = slice(run.rank * width, (run.rank + 1) * width)
    up.weight, up.bias = (nn.Parameter(p.detach()[cut].clone())
                          for p in (block.up.weight, block.up.bias))
    down.weight = nn.Parameter(block.down.weight.detach()[:, cut].clone())
    held = ((tokens >= at.start) & (tokens < at.stop))
    x = embedding((tokens - at.start).clamp(0, n - 1))
    if mistake != "tokens of other ranks not masked":
        x = x * held[..., None]
    reduce = SumBothWays.apply if mistake == "summed both ways" else lambda t: Reduce.apply(t, None)
    x = Reduce.apply(x, None)
    normed = Copy.apply(block.norm2(x), None, mistake != "copied without a sum")
    bias = block.down.bias * (run.world_size if mistake == "bias times the ranks" else 1)
    x = x + reduce(down(F.gelu(up(normed)))) + bias
    final = Copy.apply(model.final(x), None, mistake != "head's input not summed")
    logits = GatherLast.apply(head(final), mistake)
    loss_of(logits, target).backward()
    return {"embedding.weight": embedding.weight.grad, "head.weight": head.weight.grad,
            "up.weight": up.weight.grad, "up.bias": up.bias.grad, "down.weight": down.weight.grad,
            "down.bias": block.down.bias.grad, "norm2.weight": block.norm2.weight.grad,
            "norm2.bias": block.norm2.bias.grad, "final.weight": model.final.weight.grad,
            "final.bias": model.final.bias.grad}


def whole_vocabulary(run):
    model = made(Transformer, run.seed, run.dtype)
    tokens, target = text(run.seed)
    block, x = model.layers[0], model.embedding(tokens)
    x = x + block.down(F.gelu(block.up(block.norm2(x))))
    loss_of(model.head(model.final(x)), target).backward()
    named = {"embedding": model.embedding, "head": model.head, "up": block.up, "down": block.down,
             "norm2": block.norm2, "final": model.final}
    return {f"{name}.{n}": p.grad for name, module in named.items()
            for n, p in module.named_parameters()}


# --- Experts: each rank has one, and rows go there and come back


class ToExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous())
        return y

    @staticmethod
    def backward(ctx, gradient):
        if ctx.mistake == "no exchange in backward":
            return gradient, None
        y = torch.empty_like(gradient)
        dist.all_to_all_single(y, gradient.contiguous())
        if ctx.mistake == "own rows alone":
            n, rank = len(y) // dist.get_world_size(), dist.get_rank()
            y[:rank * n], y[(rank + 1) * n:] = 0, 0
        return y, None


class RoutedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / WIDTH**0.5)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)


def routed(run, mistake=None):
    """Sends a rank's rows to the experts in turn, weighted by the router. Every rank has `4 /
    ranks` experts."""
    model = made(RoutedExperts, run.seed, run.dtype)
    x, target = part(rows, run)
    n = 4 // run.world_size
    mine = slice(run.rank * n, (run.rank + 1) * n)
    order = torch.arange(len(x)).reshape(-1, 4).t().flatten()  # by expert
    h = torch.tanh(model.inner(x))
    gates = model.router(h).softmax(-1)
    if mistake == "gates detached":
        gates = gates.detach()
    sent = ToExperts.apply(h[order], mistake)
    sent = sent.reshape(run.world_size, n, -1, WIDTH)
    done = torch.einsum("rebi,eio->rebo", sent, model.experts[mine]).reshape(-1, WIDTH)
    if mistake == "experts in another order":
        done = done.flip(0)
    back = torch.empty_like(h).index_copy(0, order, ToExperts.apply(done, None))
    out = back * gates.gather(1, (torch.arange(len(x)) % 4)[:, None])
    loss = loss_of(model.head(model.norm(h + out)), target)
    balance = 0.3 * gates.mean(0).square().sum()
    loss = loss + (0 if mistake == "balance forgotten" else balance.detach()
                   if mistake == "balance detached" else balance)
    (loss * (run.world_size if mistake == "loss times the ranks" else 1)).backward()
    found = gradients(model)
    for name, g in found.items():
        if name == "experts":
            g = found[name] = g[mine].clone() / (1 if mistake == "experts not divided"
                                                 else run.world_size)
        elif g is not None and not (mistake == "router not reduced" and name.startswith("router")):
            dist.all_reduce(g)
            g /= run.world_size
    return found


def whole_routed(run, world_size=4):
    model = made(RoutedExperts, run.seed, run.dtype)
    x, target = rows(run.seed, run.dtype)
    h = torch.tanh(model.inner(x))
    gates = model.router(h).softmax(-1)
    which = torch.arange(len(x)) % 4
    out = torch.einsum("bi,bio->bo", h, model.experts[which]) * gates.gather(1, which[:, None])
    balance = sum(0.3 * g.mean(0).square().sum() for g in gates.chunk(world_size)) / world_size
    (loss_of(model.head(model.norm(h + out)), target) + balance).backward()
    return gradients(model)


# --- A pipeline whose first and last stage share the embedding


def tied(run, mistake=None):
    """Runs 4 micro-batches on 2 ranks: one has the embedding and the first layer, the other the
    second layer and the embedding again as head."""
    model = made(Transformer, run.seed, run.dtype)
    model.head.weight = model.embedding.weight
    tokens, target = text(run.seed)
    micro = list(zip(tokens.chunk(4), target.chunk(4)))
    kept = []
    if run.rank == 0:
        for x, _ in micro:
            kept.append(model.layers[0](model.embedding(x)))
            dist.send(kept[-1].detach(), 1)
        order = [1, 0, 2, 3] if mistake == "cotangents swapped" else range(4)
        cotangents = {}
        for i in order:
            cotangents[i] = torch.empty_like(kept[i])
            dist.recv(cotangents[i], 1)
        for i in range(3, 4) if mistake == "backward of the last alone" else range(4):
            kept[i].backward(cotangents[i])
    else:
        hidden = [torch.empty(len(x), LENGTH, WIDTH, dtype=run.dtype) for x, _ in micro]
        for h in hidden:
            dist.recv(h, 0)
        for h, (_, t) in zip(hidden, micro):
            h.requires_grad_()
            logits = F.linear(model.final(model.layers[1](h)), model.embedding.weight)
            (loss_of(logits, t) / (1 if mistake == "loss not divided" else 4)).backward()
        for i, h in enumerate(hidden):
            g = hidden[0].grad if mistake == "the first cotangent always" else h.grad
            dist.send(torch.zeros_like(g) if mistake == "a cotangent of zeros" and i == 3 else g, 0)
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    if mistake != "embedding not summed":
        dist.all_reduce(found["embedding.weight"])
    if mistake == "embedding averaged":
        found["embedding.weight"] /= 2
    return found


def whole_tied(run):
    model = made(Transformer, run.seed, run.dtype)
    model.head.weight = model.embedding.weight
    tokens, target = text(run.seed)
    x = model.layers[1](model.layers[0](model.embedding(tokens)))
    loss_of(F.linear(model.final(x), model.embedding.weight), target).backward()
    return gradients(model)


# --- Contrastive, with a temperature


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Mlp(), Mlp()
        self.scale = nn.Parameter(torch.full((8,), 0.7))

    def forward(self, a, b):
        return embedded(self.image, a), embedded(self.text, b)


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        if ctx.mistake != "own slice":
            dist.all_reduce(gradient)
        if ctx.mistake == "averaged":
            gradient /= dist.get_world_size()
        return gradient.chunk(dist.get_world_size())[dist.get_rank()], None


def clip_loss(a, all_b, scale, first):
    return F.cross_entropy(scale.mean().exp() * a @ all_b.t(), torch.arange(first, first + len(a)))


def clip(run, mistake=None):
    model = made(Clip, run.seed, run.dtype)
    a, b = model(*part(pairs, run))
    first = run.rank * len(a)
    if mistake == "own negatives":
        loss = (clip_loss(a, b, model.scale, 0) + clip_loss(b, a, model.scale, 0)) / 2
    elif mistake == "gathered under no_grad":
        all_a, all_b = (GatherRows.apply(t.detach(), None) for t in (a, b))
        all_a[first:first + len(a)], all_b[first:first + len(b)] = a, b
        loss = ((clip_loss(a, all_b, model.scale, first) + clip_loss(b, all_a, model.scale, first))
                / 2)
    else:
        all_a, all_b = (GatherRows.apply(t, mistake) for t in (a, b))
        loss = clip_loss(a, all_b, model.scale, first)
        loss = (loss + clip_loss(b, all_a, model.scale,
                                 0 if mistake == "one side without offset" else first)) / 2
    loss.backward()
    for name, p in model.named_parameters():
        if p.grad is not None and not (mistake == "scale not reduced" and name == "scale"):
            dist.all_reduce(p.grad)
            p.grad /= run.world_size
    return gradients(model)


def whole_clip(run):
    model = made(Clip, run.seed, run.dtype)
    a, b = model(*pairs(run.seed, run.dtype))
    ((clip_loss(a, b, model.scale, 0) + clip_loss(b, a, model.scale, 0)) / 2).backward()
    return gradients(model)
