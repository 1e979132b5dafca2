"""Lists more steps like those of measured_cases.py, of other families. check_gradients had not been
tried on them when it was written."""

import functools

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.parametrizations import weight_norm

from measured_material import (Enter, Exchange, Leave, Lm, Mlp, Shift, build, cleared, groups_of,
                               into, lm_loss, randn, reduce_, rows, text, tokens)

CASES = []
right, wrong = into(CASES)
_ = functools.partial

# --- Parameters sharded by hand, as flat pieces and as DTensors ---


class Unshard(torch.autograd.Function):
    """Gathers flat shards to the whole; backward reduces and scatters."""
    @staticmethod
    def forward(ctx, shard, divide, own):
        ctx.divide, ctx.own = divide, own
        whole = shard.new_empty(shard.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard.detach())
        return whole

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        if not ctx.own:
            dist.all_reduce(g)
        return g.chunk(dist.get_world_size())[dist.get_rank()] / ctx.divide, None, None


class FlatUnits(nn.Module):
    """Keeps a rank's part of one flat tensor for each unit's parameters."""
    def __init__(self, rank, n, dtype):
        super().__init__()
        self.units = [
            build(nn.Linear, dtype, 8, 16, seed=1),
            build(Mlp, dtype, 16, 20, seed=2),
            build(nn.Linear, dtype, 16, 5, seed=3)
        ]
        self.norm, self.flats = nn.LayerNorm(16, dtype=dtype), nn.ParameterList()
        for unit in self.units:
            flat = torch.cat([p.detach().flatten() for p in unit.parameters()])
            flat = F.pad(flat, (0, -len(flat) % n))
            self.flats.append(nn.Parameter(flat.chunk(n)[rank].clone()))

    def __setattr__(self, name, value):  # The units are shapes, no submodules.
        object.__setattr__(self, name, value) if name == "units" else super().__setattr__(
            name, value)

    def unit(self, i, x, divide, own):
        whole, at, values = Unshard.apply(self.flats[i], divide, own), 0, {}
        for name, p in self.units[i].named_parameters():
            values[name] = whole[at:at + p.numel()].view_as(p)
            at += p.numel()
        return torch.func.functional_call(self.units[i], values, (x, ))

    def forward(self, x, divide, own):
        h = self.unit(0, x, divide, own == 0)
        return self.unit(2, h + self.unit(1, self.norm(h), divide, own == 1), divide, own == 2)


def flat_shards(rank, n, dtype, divides=True, own=None, norm=True):
    model = FlatUnits(rank, n, dtype)
    x, y = rows(rank, dtype)

    def step():
        cleared(model)
        loss = F.cross_entropy(model(x, n if divides else 1, own), y)
        loss.backward()
        reduce_(model, n, but=("flats", ) + (() if norm else ("norm", )))
        return loss.detach()

    return model, step


FLATS = dict(pieces=("flats.*", ))
right("flat shards", flat_shards, "mean", "Unshard's backward is a reduce-scatter that averages.",
      worlds=(2, 3, 4), **FLATS)
wrong("flat shards, summed", _(flat_shards, divides=False), "mean", "flats.*", 4.0, "factor",
      "after backward", "The reduce-scatter sums under a mean.", **FLATS)
wrong("flat shards, own cotangent", _(flat_shards,
                                      own=1), "mean", "flats.1", None, "own-part-only", "flats.1",
      "Unit 1's unshard hands back the own rank's cotangent: the other ranks' rows are lost.",
      **FLATS)
wrong("flat shards, norm left", _(flat_shards,
                                  norm=False), "mean", "norm.*", None, "missing-reduction",
      "after backward", "The norm is not sharded, and reduced by nobody.", **FLATS)


class DtensorWeights(nn.Module):
    def __init__(self, dtype, mesh):
        super().__init__()
        torch.manual_seed(5)
        self.a = nn.Parameter(
            distribute_tensor((torch.randn(16, 8) / 3).to(dtype), mesh, [Shard(0)]))
        self.b = nn.Parameter(
            distribute_tensor((torch.randn(5, 16) / 4).to(dtype), mesh, [Shard(1)]))
        self.scale = nn.Parameter(
            distribute_tensor(torch.ones(16, dtype=dtype), mesh, [Replicate()]))


def dtensor_weights(rank, n, dtype, partial="abs"):
    """Stores weights as DTensors and unshards them in forward for each rank's own rows."""
    model = DtensorWeights(dtype, init_device_mesh(torch.get_default_device().type, (n, )))
    x, y = rows(rank, dtype)

    def whole(p, letter):
        return p.full_tensor(grad_placements=[Partial()]) if letter in partial else p.full_tensor()

    def step():
        cleared(model)
        h = F.linear(x, whole(model.a, "a"))
        h = F.gelu(F.layer_norm(h, (16, )) * whole(model.scale, "s"))
        loss = F.cross_entropy(F.linear(h, whole(model.b, "b")), y)
        (loss / n).backward()
        return loss.detach()

    return model, step


right("dtensor weights unsharded", dtensor_weights, "mean",
      "full_tensor is told that cotangents are parts of a sum.")
wrong("dtensor weights, plain full_tensor", _(dtensor_weights,
                                              partial="as"), "mean", "b", None, "own-part-only",
      "b", "full_tensor() without grad_placements takes each rank's cotangent for the whole one.")
wrong("dtensor weights, replicated one too", _(dtensor_weights, partial="ab"), "mean", "scale",
      None, "missing-reduction", "scale",
      "The replicated scale's cotangents are parts and taken for copies.")


def fsdp_parts(rank, n, dtype, mistake="", clip=None):
    """Runs micro-batches under FSDP2, which leaves the positions to a reduction by hand."""
    model = build(Lm, dtype, 1, True)
    for module in [*model.blocks, model]:
        fully_shard(module, ignored_params={model.position}, reshard_after_forward=False)
    x, y = text(rank, 4)

    def local(g):
        return g.to_local() if isinstance(g, DTensor) else g

    def step():
        cleared(model)
        total = 0
        for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
            model.set_requires_gradient_sync(i == 1)
            loss = lm_loss(model, a, b) / 2
            total = total + loss.detach()
            loss.backward()
            if mistake == "in each micro-batch" and i == 0:
                dist.all_reduce(model.position.grad)
                model.position.grad /= n
        if mistake != "positions left":
            dist.all_reduce(model.position.grad)
            model.position.grad /= n
        if mistake == "clipped by parameter":
            for p in model.parameters():
                nn.utils.clip_grad_norm_([p], clip)
        elif clip:  # Squares of shards are summed, those of copies count once.
            shards = [
                local(p.grad).square().sum() for p in model.parameters() if isinstance(p, DTensor)
            ]
            square = torch.stack(shards).sum()
            dist.all_reduce(square)
            norm = float((square + model.position.grad.square().sum()).sqrt())
            for p in model.parameters():
                local(p.grad).mul_(min(1.0, clip / norm))
        return total

    return model, step


right("fsdp, positions by hand", fsdp_parts, "mean",
      "Shards by FSDP, the ignored positions by an all_reduce.")
right("fsdp, positions in each micro-batch", _(fsdp_parts, mistake="in each micro-batch"), "mean",
      "Averaged after both micro-batches: the mean of what is a mean already stays.")
wrong("fsdp, positions left", _(fsdp_parts, mistake="positions left"), "mean", "position", None,
      "missing-reduction", "after backward",
      "FSDP ignores the positions, and so does everybody else.")
right("fsdp, positions by hand, clipped", _(fsdp_parts, clip=0.05), "mean",
      "One coefficient on all ranks.", clips=True)
wrong("fsdp, clipped by parameter", _(fsdp_parts, mistake="clipped by parameter",
                                      clip=0.003), "mean", "*", None, "other", "after backward",
      "Each parameter is clipped to a norm of its own: no one coefficient.")

# --- Fields and sequences cut along a length: halos, moments, states ---


class Halo(torch.autograd.Function):
    """Adds the neighbours' edge rows; backward brings the edges' cotangents home, or keeps them
    (mistake `lost`), or adds them at the other end (mistake `swapped`)."""
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        first, last = Halo.exchange(x[:1], x[-1:])
        return torch.cat([first, x, last])

    @staticmethod
    def backward(ctx, g):
        inner = g[1:-1].clone()
        if ctx.mistake != "lost":
            first, last = Halo.exchange(g[:1], g[-1:])
            at, end = (-1, 0) if ctx.mistake == "swapped" else (0, -1)
            inner[at] += first[0]
            inner[end] += last[0]
        return inner, None

    @staticmethod
    def exchange(to_before, to_next):
        rank, n = dist.get_rank(), dist.get_world_size()
        first, last, works = torch.zeros_like(to_before), torch.zeros_like(to_next), []
        to_before, to_next = to_before.contiguous(), to_next.contiguous()
        for peer, out, into_ in ((rank - 1, to_before, first), (rank + 1, to_next, last)):
            if 0 <= peer < n:
                works += [dist.isend(out, peer), dist.irecv(into_, peer)]
        for work in works:
            work.wait()
        return first, last


class Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        ctx.how = how
        x = x.clone()
        dist.all_reduce(x)
        return x / dist.get_world_size()

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        if ctx.how != "own":
            dist.all_reduce(g)
        return g / dist.get_world_size(), None


class Field(nn.Module):
    """Has two convolutions over [length, channels] and between them a norm over the length."""
    def __init__(self):
        super().__init__()
        self.stem, self.conv1, self.conv2 = nn.Linear(4, 8), nn.Linear(24, 8), nn.Linear(24, 3)
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x, halo, moments):
        h = F.gelu(self.stem(x))
        h = self.conv1(halo(h).unfold(0, 3, 1).flatten(1))
        mean, square = moments(torch.stack((h.mean(0), h.square().mean(0))))
        h = F.gelu((h - mean) / (square - mean * mean + 1e-5).sqrt() * self.weight + self.bias)
        return self.conv2(halo(h).unfold(0, 3, 1).flatten(1))


def field(rank, n, dtype, mistake=""):
    model = build(Field, dtype, seed=6)
    x, y = randn(8, dtype, 24, 4).chunk(n)[rank], randn(9, dtype, 24, 3).chunk(n)[rank]
    moments = "own" if mistake == "moments own" else "mean"

    def step():
        cleared(model)
        out = model(x, lambda t: Halo.apply(t, mistake), lambda t: Moments.apply(t, moments))
        loss = (out - y).square().sum() / 72
        loss.backward()
        reduce_(model)
        return loss.detach()

    return model, step


right("field with halos", field, "sum",
      "Halos' cotangents go home, moments' are averaged as they are taken.", worlds=(2, 4))
wrong("field, halos lost", _(field, mistake="lost"), "sum", "stem.* conv1.weight weight bias", None,
      "own-part-only", "conv2", "The halo's backward drops what belongs to the neighbours.")
wrong("field, halos swapped", _(field, mistake="swapped"), "sum", "stem.* conv1.weight weight bias",
      None, "other", "conv2", "The edges' cotangents are added at the other end.")
wrong(
    "field, moments own", _(field, mistake="moments own"), "sum", "stem.* conv1.*", None,
    "missing-reduction", "conv1",
    "The moments' cotangents are not summed over the ranks that normalise by them. (The norm takes "
    "any constant out: conv1.bias' derivative is zero, its gradient is not.)")


class Prefix(torch.autograd.Function):
    """Sums the states of all ranks before; backward sums the cotangents of all ranks behind."""
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        return Prefix.sum(x, lambda r, me: r < me)

    @staticmethod
    def backward(ctx, g):
        if ctx.mistake == "prefix again":
            return Prefix.sum(g, lambda r, me: r < me), None
        return Prefix.sum(g, lambda r, me: r > me), None

    @staticmethod
    def sum(x, counts):
        every = [torch.empty_like(x) for _i in range(dist.get_world_size())]
        dist.all_gather(every, x.contiguous())
        return sum((t for r, t in enumerate(every) if counts(r, dist.get_rank())),
                   torch.zeros_like(x))


class Linear(nn.Module):
    """Has linear attention and a tied head."""
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(12, 16), nn.RMSNorm(16), nn.Linear(16, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _i in range(3))


def linear_attention(rank, n, dtype, mistake=""):
    model = build(Linear, dtype, seed=7)
    x, y = (tokens(s, 16).chunk(n)[rank] for s in (13, 14))

    def step():
        cleared(model)
        e = model.embed(x)
        h = model.norm(e)
        q, k, v = F.softplus(model.q(h)), F.softplus(model.k(h)), model.v(h)
        states = (k[:, :, None] * v[:, None, :]).cumsum(0)
        before = Prefix.apply(states[-1].detach() if mistake == "state detached" else states[-1],
                              mistake)
        a = torch.einsum("ti,tij->tj", q, states + before) / 40
        logits = F.linear(F.layer_norm(e + model.out(a), (16, )), model.embed.weight)
        loss = F.cross_entropy(logits, y, reduction="sum") / 16
        loss.backward()
        reduce_(model)
        return loss.detach()

    return model, step


UPSTREAM = "embed.weight norm.weight k.weight v.weight"
right("linear attention", linear_attention, "sum",
      "The state's cotangent is the sum from the ranks behind.")
wrong("linear attention, state detached", _(linear_attention, mistake="state detached"), "sum",
      UPSTREAM, None, "own-part-only", "k", "The state that is handed on has no gradient.")
wrong("linear attention, prefix again", _(linear_attention,
                                          mistake="prefix again"), "sum", UPSTREAM, None, "other",
      "k", "Backward sums the cotangents of the ranks before instead of behind.")
# --- Tables and experts ---


class Recommender(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.bottom, self.top, self.norm = nn.Linear(8, 8), Mlp(8, 16), nn.LayerNorm(8)
        torch.manual_seed(20 + rank)
        self.table = nn.EmbeddingBag(10, 8, mode="sum")


def recommender(rank, n, dtype, mistake=""):
    """Gives each rank a table and exchanges the looked-up rows of all ranks' users."""
    model = build(Recommender, dtype, rank)
    users = 4
    dense, label = randn(rank + 15, dtype, users, 8), randn(rank + 16, dtype, users)
    bags = tokens(rank + 17, users * n, 3, vocabulary=10)  # This table serves all ranks' users.
    counts = [users] * n

    def step():
        cleared(model)
        looked = Exchange.apply(model.table(bags), counts, counts)
        looked = looked.unflatten(0, (n, users))
        d = model.norm(model.bottom(dense))
        h = model.top(d * looked.sum(0) + d)
        loss = F.mse_loss((h * d).sum(-1), label)
        loss.backward()
        reduce_(model, n, but=("table", ))
        if mistake == "tables reduced":
            dist.all_reduce(model.table.weight.grad)
        if mistake != "tables not divided":
            model.table.weight.grad /= n
        return loss.detach()

    return model, step


right("recommender", recommender, "mean",
      "A table's gradient has all users' parts; it is divided for the mean.")
wrong("recommender, tables not divided", _(recommender,
                                           mistake="tables not divided"), "mean", "table.weight",
      4.0, "factor", "after backward", "The dense part is averaged, the tables hold sums.")
wrong("recommender, tables reduced", _(recommender,
                                       mistake="tables reduced"), "mean", "table.weight", None,
      "wrong-group", "after backward", "Different tables are averaged as copies.")


class Routed(nn.Module):
    def __init__(self, which):
        super().__init__()
        self.stem, self.router, self.head = nn.Linear(8,
                                                      16), nn.Linear(16, 2,
                                                                     bias=False), nn.Linear(16, 5)
        torch.manual_seed(30 + which)
        self.expert = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16, bias=False), nn.SiLU())
        nn.init.normal_(self.expert[0].weight, 1.0,
                        0.1), nn.init.normal_(self.expert[0].bias, 0.0, 0.1)


def expert_data(rank, n, dtype, mistake="", balance=""):
    """Has two experts, each on two ranks; ranks 0, 1 and 2, 3 exchange tokens."""
    model = build(Routed, dtype, rank % 2)
    own, twins = groups_of(rank, [0, 1], [2, 3]), groups_of(rank, [0, 2], [1, 3])
    x, y = rows(rank, dtype, 6)

    class Swap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, sent, received):
            ctx.counts = sent, received
            out = t.new_empty(sum(received), *t.shape[1:])
            dist.all_to_all_single(out, t.contiguous(), received, sent, group=own)
            return out

        @staticmethod
        def backward(ctx, g):
            sent, received = ctx.counts
            return Swap.forward(ctx, g, received, sent), None, None

    def step():
        cleared(model)
        h = model.stem(x)
        weights = model.router(h).softmax(-1)
        weight, chosen = weights.max(-1)
        order, sent = chosen.argsort(stable=True), torch.bincount(chosen, minlength=2)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=own)
        sent, received = sent.tolist(), received.tolist()
        out = Swap.apply(model.expert(Swap.apply(h[order], sent, received)), received, sent)
        loss = F.cross_entropy(model.head(h + (out * weight[order, None])[order.argsort()]), y)
        if balance:
            share, fraction = weights.mean(0), torch.bincount(chosen,
                                                              minlength=2).to(dtype) / len(x)
            dist.all_reduce(fraction)
            share = Leave.apply(share) if balance == "g" else dist_nn.all_reduce(share)
            loss = loss + 0.3 * (share / n * fraction / n).sum()
        loss.backward()
        reduce_(model, n, but=("expert", ))
        for p in model.expert.parameters():
            dist.all_reduce(p.grad, group=own if mistake == "exchange's group" else twins)
            p.grad /= 2 if mistake == "divided by copies" else n
        return loss.detach()

    return model, step


right("experts on two ranks each", expert_data, "mean",
      "Copies of an expert are summed, and divided for the mean of four.")
right(
    "experts, balance over ranks", _(expert_data, balance="autograd"), "mean",
    "All ranks' losses have the common balance; autograd's all_reduce sums what they say."
)
wrong("experts, exchange's group", _(expert_data, mistake="exchange's group"), "mean", "expert.*",
      None, "wrong-group", "after backward",
      "Experts are reduced over the ranks that exchange tokens, not over their copies.")
wrong("experts, divided by copies", _(expert_data,
                                      mistake="divided by copies"), "mean", "expert.*", 2.0,
      "factor", "after backward", "Divided by the two copies, where the mean is over four losses.")
wrong(
    "experts, balance by g", _(expert_data,
                               balance="g"), "mean", "router.* stem.*", None, "averaged", "loss",
    "The balance loss is all-reduced with identity backward, then averaged: a quarter is left."
)

# --- Tensor and data parallel on 2 x 2: shared keys, adapters ---


class Shared(nn.Module):
    """Has queries of the rank's heads, one key and value for all, and a low-rank adapter."""
    def __init__(self, at):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 5)
        self.k, self.v = nn.Linear(16, 4, bias=False), nn.Linear(16, 4, bias=False)
        self.q, self.o = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.lora_a = nn.Parameter(torch.randn(3, 16) / 4)
        self.q.weight = nn.Parameter(self.q.weight.detach().chunk(2, 0)[at].clone())
        self.o.weight = nn.Parameter(4 * self.o.weight.detach().chunk(2, 1)[at],
                                     requires_grad=False)
        self.lora_b = nn.Parameter(torch.randn(16, 3).chunk(2, 0)[at].clone())


def shared_keys(rank, n, dtype, mistake=""):
    tp, dp = groups_of(rank, [0, 1], [2, 3]), groups_of(rank, [0, 2], [1, 3])
    model = build(Shared, dtype, rank % 2, seed=8)
    x, y = randn(rank // 2 + 18, dtype, 3, 4, 8), tokens(rank // 2 + 19, 12, vocabulary=5)

    def step():
        cleared(model)
        h = model.norm(model.stem(x))
        e = Enter.apply(h, dp if mistake == "f over dp" else tp)
        low = F.linear(e if mistake == "adapter behind f" else h, model.lora_a)
        low = low if "adapter" in mistake else Enter.apply(low, tp)
        q = (F.linear(e, model.q.weight) + 0.5 * F.linear(low, model.lora_b)).unflatten(-1, (2, 4))
        if mistake == "keys behind f":
            k, v = model.k(e), model.v(e)
        else:
            k, v = (Enter.apply(f(h), tp) for f in (model.k, model.v))
        w = torch.einsum("bqhd,bkd->bhqk", q, k).div(2).softmax(-1)
        out = F.linear(torch.einsum("bhqk,bkd->bqhd", w, v).flatten(-2), model.o.weight)
        logits = model.head(h + Leave.apply(out, False, tp))
        loss = F.cross_entropy(logits.flatten(0, 1), y)
        loss.backward()
        group = {"reduced over tp": tp, "reduced over all": None}.get(mistake, dp)
        reduce_(model, n if group is None else 2, group)
        return loss.detach()

    return model, step


right("shared keys, adapter", shared_keys, "mean",
      "Each copy that enters the cut part does so through one f.")
wrong(
    "shared keys behind f", _(shared_keys, mistake="keys behind f"), "mean", "k.* v.*", None,
    "missing-reduction", "k",
    "f sums for what is before the key layer; the layer's own weights see the own heads' alone."
)
wrong("shared keys, f over dp", _(shared_keys, mistake="f over dp"), "mean", "stem.* norm.*", None,
      "wrong-group", "q", "f sums over the data-parallel ranks.")
wrong("shared keys, adapter without f", _(shared_keys, mistake="adapter without f"), "mean",
      "lora_a stem.* norm.*", None, "missing-reduction", "lora_a",
      "The adapter's low-rank activations enter lora_b's rows without a sum.")
wrong("shared keys, adapter behind f", _(shared_keys, mistake="adapter behind f"), "mean", "lora_a",
      None, "missing-reduction", "lora_a",
      "f stands before lora_a, so lora_a sees the own heads' cotangents alone.")
wrong("shared keys, reduced over tp", _(shared_keys, mistake="reduced over tp"), "mean", "*", None,
      "wrong-group", "after backward", "Gradients are averaged over the tensor-parallel group.")
wrong("shared keys, reduced over all", _(shared_keys, mistake="reduced over all"), "mean",
      "q.weight lora_b", None, "wrong-group", "after backward",
      "Cut weights are averaged over ranks that hold other elements.")

# --- Losses: pairs with neighbours, a penalty on gradients, a fused head, counted tokens ---


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = weight_norm(nn.Linear(8, 8)), nn.Sequential(nn.Linear(6, 12), nn.Tanh(),
                                                                     nn.Linear(12, 8))
        self.scale, self.bias = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(-1.0))


def sigmoid_pairs(rank, n, dtype, mistake=""):
    """Computes SigLIP's loss, for which texts go round the ranks."""
    model = build(Pair, dtype, seed=9)
    x, t = randn(rank + 21, dtype, 3, 8), randn(rank + 22, dtype, 3, 6)

    def step():
        cleared(model)
        u, v = F.normalize(model.a(x), dim=-1), F.normalize(model.b(t), dim=-1)
        loss = 0
        for turn in range(n):
            logits = model.scale.exp() * u @ v.t() + model.bias
            sign = 2 * torch.eye(3, dtype=dtype) - 1 if turn == 0 else -torch.ones((), dtype=dtype)
            loss = loss - F.logsigmoid(sign * logits).sum() / 3
            if turn < n - 1:
                v = Shift.apply(v.detach() if mistake == "texts detached" else v,
                                mistake == "same direction")
        loss.backward()
        reduce_(model, n)
        return loss.detach()

    return model, step


right("sigmoid pairs", sigmoid_pairs, "mean", "Each turn's cotangent goes back with the texts.",
      worlds=(2, 3, 4))
wrong("sigmoid pairs, texts detached", _(sigmoid_pairs, mistake="texts detached"), "mean", "b.*",
      None, "own-part-only", "b",
      "Other ranks' images say nothing of these texts; the images' side is right.")
wrong("sigmoid pairs, same direction", _(sigmoid_pairs, mistake="same direction"), "mean", "b.*",
      None, "other", "b", "Cotangents travel on with the texts instead of back.")


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 16), nn.Tanh(),
                                    nn.Linear(16, 1))
        self.generator = nn.Linear(3, 6).requires_grad_(False)


def critic(rank, n, dtype, mistake=""):
    model = build(Critic, dtype, seed=10)
    real, noise, mix = randn(rank + 23, dtype, 5, 6), randn(rank + 24, dtype, 5,
                                                            3), randn(rank + 25, dtype, 5, 1)

    def step():
        cleared(model)
        fake = model.generator(noise)
        between = (mix.sigmoid() * real + (1 - mix.sigmoid()) * fake).requires_grad_()
        g, = torch.autograd.grad(
            model.layers(between).sum(), between, create_graph=mistake != "no graph")
        penalty = (g.norm(dim=1) - 1).square().mean()
        loss = model.layers(fake).mean() - model.layers(real).mean() + 2 * penalty
        loss.backward()
        for p in model.parameters():
            if p.grad is None and p.requires_grad:
                p.grad = torch.zeros_like(p)
        reduce_(model, n)
        return loss.detach()

    return model, step


right("critic with a penalty on gradients", critic, "mean",
      "The penalty's gradient is a double backward. The last "
      "bias drops out of the loss.")
wrong("critic, no graph", _(critic,
                            mistake="no graph"), "mean", "layers.0.* layers.2.* layers.4.weight",
      None, "other", "loss", "Without create_graph the penalty is a constant for backward.")


class FusedHead(torch.autograd.Function):
    """Computes a head's cross entropy and, in forward, its gradients, as fused kernels do."""
    @staticmethod
    def forward(ctx, h, weight, y, mistake):
        p = (h @ weight.t()).softmax(-1)
        loss = -p.gather(1, y[:, None]).log().mean()
        p[torch.arange(len(y)), y] -= 1
        ctx.save_for_backward(p @ weight / len(y), p.t() @ h / len(y))
        ctx.mistake = mistake
        return loss

    @staticmethod
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors
        return (dh if ctx.mistake == "cotangent ignored" else dh * g,
                dw if "ignored" in ctx.mistake else dw * g, None, None)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mlp, self.norm = nn.Embedding(12, 16), Mlp(), nn.LayerNorm(16)
        self.head = nn.Linear(16, 12, bias=False)


def fused(rank, n, dtype, mistake=""):
    """Runs three micro-batches, with gradients kept in main_grad and reduced there."""
    model = build(Trunk, dtype, seed=11)
    x, y = tokens(rank + 26, 9), tokens(rank + 27, 9)

    def step():
        total, main = 0, {p: torch.zeros_like(p) for p in model.parameters()}
        for i, (a, b) in enumerate(zip(x.chunk(3), y.chunk(3))):
            cleared(model)
            h = model.embed(a)
            loss = FusedHead.apply(model.norm(h + model.mlp(h)), model.head.weight, b, mistake) / 3
            total = total + loss.detach()
            loss.backward()
            for name, p in model.named_parameters():
                if mistake == "main grad overwritten" and name == "embed.weight":
                    main[p] = p.grad.clone()
                else:
                    main[p] += p.grad
                if i == 1 and mistake == "reduced too early" and name.startswith("mlp"):
                    main[p, "early"] = main[p].clone()
        for p in model.parameters():
            p.grad = main.get((p, "early"), main[p])
            dist.all_reduce(p.grad)
            p.grad /= n
        return total

    return model, step


right("fused head, main_grad", fused, "mean", "The fused loss multiplies by the cotangent it gets.")
wrong("fused head, cotangent ignored", _(fused, mistake="cotangent ignored"), "mean", "*", 3.0,
      "factor", "loss",
      "Gradients from forward are handed out as they are: the division by micro-batches is lost.")
wrong("fused head, ignored for the weight", _(fused, mistake="ignored for the weight"), "mean",
      "head.weight", 3.0, "factor", "loss", "The head's weight alone misses the cotangent.")
wrong("fused head, main_grad overwritten", _(fused, mistake="main grad overwritten"), "mean",
      "embed.weight", None, "stale", "after backward",
      "The sparse-minded path assigns: the last micro-batch is left.")
wrong("fused head, reduced too early", _(fused, mistake="reduced too early"), "mean", "mlp.*", None,
      "stale", "after backward", "The bucket goes out after the second of three micro-batches.")


def counted(rank, n, dtype, mistake="", empty=False):
    """Counts tokens over all ranks, as trainers do with num_items_in_batch; the last rank may have
    none."""
    model = build(Lm, dtype, 1)
    wrapped = DDP(model) if mistake != "ranks with tokens" else model
    x, y = text(rank, 2)
    y = y.clone()
    y[1, rank + 1:] = -100
    if empty and rank == n - 1:
        y[:] = -100
    count = (y >= 0).sum()
    items = count.clone()
    dist.all_reduce(items)

    def step():
        cleared(model)
        share = lm_loss(wrapped, x, y, reduction="sum", ignore_index=-100)
        own = share / count.clamp(min=1)
        loss = own if mistake == "ranks with tokens" else share / items
        (loss * n if mistake == "" else loss).backward()
        if mistake == "ranks with tokens":
            reduce_(model, n - 1 if empty else n)
        return loss.detach()

    return model, step


right(
    "tokens over all ranks", _(counted, empty=True), "sum",
    "Each rank returns its share of the whole mean; DDP's mean is undone by the factor of ranks.")
wrong("tokens over all ranks, DDP's mean", _(counted,
                                             mistake="no ranks"), "sum", "*", 0.25, "averaged",
      "after backward", "The share is normalised over all ranks already, and DDP divides again.")
wrong("tokens, ranks with tokens", _(counted, mistake="ranks with tokens",
                                     empty=True), "mean", "*", 4 / 3, "factor", "after backward",
      "Divided by the ranks that have tokens, while the declared mean is over all.")
# --- torch's pipeline schedules ---


class Stage(nn.Module):
    def __init__(self, rank, n):
        super().__init__()
        torch.manual_seed(40 + rank)
        self.enter = nn.Linear(8, 16) if rank == 0 else nn.Identity()
        self.norm, self.mlp = nn.LayerNorm(16), Mlp()
        self.leave = nn.Linear(16, 5) if rank == n - 1 else nn.Identity()

    def forward(self, x):
        x = self.enter(x)
        return self.leave(x + self.mlp(self.norm(x)))


def scheduled(rank, n, dtype, schedule=ScheduleGPipe, scale=True):
    torch.manual_seed(0)
    inner = build(Stage, dtype, rank, n)
    model = nn.ModuleDict({f"stage{rank}": inner})
    stage = PipelineStage(inner, rank, n, torch.get_default_device())
    runs = schedule(stage, n_microbatches=4, loss_fn=F.cross_entropy, scale_grads=scale)
    x, y = rows(0, dtype, 8)

    def step():
        cleared(model)
        losses = []
        if rank == 0:
            runs.step(x)
        elif rank == n - 1:
            runs.step(target=y, losses=losses)
        else:
            runs.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), dtype=dtype)
        dist.broadcast(loss, n - 1)
        return loss

    return model, step


right("torch's GPipe", scheduled, "replicated", "The schedule divides by the micro-batches.")
right("torch's 1F1B", _(scheduled, schedule=Schedule1F1B), "replicated",
      "Another order, the same sums.")
wrong("torch's GPipe, not scaled", _(scheduled, scale=False), "replicated", "*", 4.0, "factor",
      "after backward", "scale_grads=False: gradients are the sum over the micro-batches.")
