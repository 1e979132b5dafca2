"""Lists training steps for check_gradients, right ones and ones with one planted mistake. Each is
what a colleague would write, and has no reference. Differences of the declared loss confirmed every
answer before check_gradients was asked."""

import contextlib
import functools

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from measured_material import (Bare, Classifier, Enter, Exchange, Gather, Leave, Lm, Mlp, Moe,
                               ReduceScatter, Sequence, Shift, Towers, Tp, build, cleared, cut,
                               groups_of, into, lm_loss, randn, reduce_, rows, text, tokens)

CASES = []
right, wrong = into(CASES)
_ = functools.partial

# --- DDP ---


def ddp(rank, n, dtype, variant="", mistake="", scale=1.0, micro_batches=1):
    model = build(Classifier, dtype, batch_norm=variant == "batch norm", branches="branch"
                  in variant, activation=F.relu if variant == "relu" else F.gelu)
    model.stem.bias.requires_grad_(variant != "frozen")
    if mistake == "head ignored":
        DDP._set_params_and_buffers_to_ignore_for_model(model, ["head.weight", "head.bias"])
    wrapped = DDP(model, static_graph=variant == "static graph", find_unused_parameters="branch"
                  in variant, gradient_as_bucket_view=variant == "views", bucket_cap_mb=0.001)
    if variant == "comm hook":

        def hook(state, bucket):
            future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return future.then(lambda f: f.value()[0] / (1 if mistake == "not divided" else n))

        wrapped.register_comm_hook(None, hook)
    x, y = rows(rank, dtype)
    branch = rank % 2 if variant == "branch by rank" else int("branch" in variant)

    def step():
        cleared(model)
        total = 0
        for i, (a, b) in enumerate(zip(x.chunk(micro_batches), y.chunk(micro_batches))):
            last = i == micro_batches - 1
            skips = not last or mistake == "never synchronised"
            with wrapped.no_sync() if skips else contextlib.nullcontext():
                called = model if mistake == "module called" else wrapped
                logits = called(a, branch) if "branch" in variant else called(a)
                loss = F.cross_entropy(logits, b) / micro_batches
                if rank == 0 and variant == "penalty on rank 0":
                    loss = loss + 0.1 * model.head.weight.square().sum()
                total = total + loss.detach()
                if variant == "loss averaged with autograd":
                    loss = total = dist_nn.all_reduce(loss) / n
                if variant == "loss averaged by g":
                    loss = total = Leave.apply(loss) / n
                (loss * scale).backward()
            if mistake == "zeroed in between" and not last:
                cleared(model)
        return total

    return (model if variant in ("frozen", "views") else wrapped), step


right("ddp", ddp, "mean", "DDP averages the gradients of the ranks' own losses.")
right("ddp frozen bias", _(ddp, variant="frozen"), "mean",
      "A frozen parameter has no gradient and needs none.")
right("ddp bucket views, relu", _(ddp, variant="views"), "mean",
      "p.grad are views of the buckets that DDP averages.")
right("ddp batch norm", _(ddp, variant="batch norm"), "mean",
      "Each rank's batch norm sees its own rows, and the returned loss is of those.")
right("ddp no_sync", _(ddp, micro_batches=3), "mean",
      "Two micro-batches wait for the third; each counts a third.")
right("ddp static graph", _(ddp, variant="static graph"), "mean",
      "Static graph changes the order only.")
right("ddp branch by rank", _(ddp, variant="branch by rank"), "mean",
      "A branch that some ranks do not take counts with zeros from those.")
right("ddp branch of all", _(ddp, variant="one branch"), "mean",
      "body is used by no rank: no gradient, none needed.")
right("ddp comm hook", _(ddp, variant="comm hook"), "mean",
      "The hook sums and divides by the ranks.")
right(
    "ddp penalty on rank 0", _(ddp, variant="penalty on rank 0"), "mean",
    "Rank 0 returns its penalty too, so the mean of the losses has a quarter of it, as DDP takes.")
right("ddp loss averaged with autograd", _(ddp,
                                           variant="loss averaged with autograd"), "replicated",
      "dist.nn's all_reduce sums the cotangents as well, which undoes DDP's division.")
right("ddp times world size", _(ddp, scale=4.0), "sum",
      "The sum of the losses is what DDP's mean times 4 minimises.")
wrong("ddp loss averaged by g", _(ddp, variant="loss averaged by g"), "replicated", "*", 0.25,
      "averaged", "after backward",
      "The loss is divided already and its all_reduce hands cotangents on; DDP divides again.")
wrong("ddp no_sync everywhere", _(ddp, micro_batches=2,
                                  mistake="never synchronised"), "mean", "*", None,
      "missing-reduction", "after backward", "The last micro-batch runs under no_sync as well.")
wrong("ddp module called", _(ddp, mistake="module called"), "mean", "*", None, "missing-reduction",
      "after backward", "The bare module is called, so DDP's hooks never learn of the backward.")
wrong("ddp head ignored", _(ddp,
                            mistake="head ignored"), "mean", "*head.*", None, "missing-reduction",
      "after backward", "DDP was told to ignore the head's parameters and nobody reduces them.")
wrong("ddp scaled by ranks", _(ddp, scale=4.0), "mean", "*", 4.0, "factor", "loss",
      "The loss is multiplied by the world size though the mean is declared and returned.")
wrong("ddp hook not divided", _(ddp, variant="comm hook", mistake="not divided"), "mean", "*", 4.0,
      "factor", "after backward", "A comm hook replaces DDP's division, and this one only sums.")
wrong("ddp last micro-batch only", _(ddp, micro_batches=2,
                                     mistake="zeroed in between"), "mean", "*", None, "stale",
      "after backward", "Gradients are zeroed after each micro-batch: the last one is left.")

# --- Reductions by hand; scale, clipping, checkpointing, autocast, tokens ---


def by_hand(rank, n, dtype, mistake="", variant="", tied=False, divide=4, layers=1):
    model = build(Lm, dtype, layers, tied, 0.2 if "dropout" in variant else 0.0)
    x, y = text(rank)
    pairs = groups_of(rank, [0, 1], [2, 3]) if mistake == "pairs" else None
    if "checkpoint" in variant:
        model.checkpointing = dict(use_reentrant=False, preserve_rng_state=mistake
                                   != "masks drawn again")
    if "hooks" in variant:
        for name, p in model.named_parameters():

            def hook(p, name=name):
                dist.all_reduce(p.grad)
                p.grad /= n

            p.register_post_accumulate_grad_hook(hook)

    def reduced():
        params = [(name, p)
                  for name, p in model.named_parameters(remove_duplicate=mistake != "tied twice")
                  if mistake != "a key forgotten" or "norm2" not in name]
        if variant == "flat" or mistake in ("bucket's end", "copied too early"):
            grads = [p.grad for _name, p in params]
            flat = torch.cat([g.flatten() for g in grads])
            length = flat.numel() - (16 * 12 if mistake == "bucket's end" else 0)
            early = flat.clone()
            dist.all_reduce(flat[:length])
            flat[:length] /= divide
            source = (early if mistake == "copied too early" else flat).split(
                [g.numel() for g in grads])
            for g, part in zip(grads, source):
                g.copy_(part.view_as(g))
        elif mistake == "to rank 0 alone":
            for _name, p in params:
                every = [torch.empty_like(p) for _i in range(n)] if rank == 0 else None
                dist.gather(p.grad, every)
                p.grad = sum(every) / n if rank == 0 else torch.zeros_like(p)
        else:
            works = [dist.all_reduce(p.grad, async_op=True, group=pairs) for _name, p in params]
            for work in works:
                work.wait()
            if mistake == "reduced twice":
                for _name, p in params:
                    dist.all_reduce(p.grad)
            for p in {p for _name, p in params}:
                p.grad /= 2 if pairs else divide
            for name, p in params:
                if mistake == "norms doubled" and "norm" in name:
                    p.grad *= 2

    def step():
        cleared(model)
        if "seeded" in variant or "masks" in mistake:
            torch.manual_seed(70 + rank)
        bf16 = torch.autocast(
            "cpu", torch.bfloat16) if variant == "autocast" else contextlib.nullcontext()
        with bf16:
            loss = lm_loss(model, x, y)
        loss.backward()
        if "hooks" not in variant:
            reduced()
        return loss.detach()

    return model, step


right("by hand, async handles", by_hand, "mean",
      "All gradients are summed, waited for, and divided.")
right("by hand, flat bucket", _(by_hand, variant="flat", tied=True), "mean",
      "One bucket, tied weights in it once.")
right("by hand, hooks", _(by_hand, variant="hooks", tied=True), "mean",
      "A tied weight accumulates once, after both uses, so its hook sees the whole.")
right("by hand, sums", _(by_hand, divide=1), "sum", "Sums of gradients for the sum of losses.")
right("by hand, checkpointed", _(by_hand, variant="checkpoint dropout seeded", layers=2), "mean",
      "Blocks run again in backward under the RNG state of the first run.")
right("by hand, dropout from the global state", _(by_hand, variant="dropout"), "mean",
      "Masks come from the global RNG: with its state put back the step is the same twice.")
right("by hand, autocast", _(by_hand, variant="autocast"), "mean",
      "bfloat16 inside; in float64 autocast leaves everything as it is.")
wrong("by hand, norm forgotten", _(by_hand, mistake="a key forgotten"), "mean", "blocks.0.norm2.*",
      None, "missing-reduction", "after backward",
      "norm2 is in no bucket: its gradient stays the rank's own.")
wrong("by hand, pairs", _(by_hand, mistake="pairs"), "mean", "*", None, "wrong-group",
      "after backward", "Reduced over 2 of 4 ranks, though all four hold copies.")
wrong("by hand, bucket's end", _(by_hand, mistake="bucket's end"), "mean", "head.weight", None,
      "missing-reduction", "after backward",
      "The bucket's last parameter is behind the end of what is reduced.")
wrong("by hand, copied too early", _(by_hand, mistake="copied too early"), "mean", "*", None,
      "missing-reduction", "after backward", "The bucket was copied back before it was reduced.")
wrong("by hand, reduced twice", _(by_hand,
                                  mistake="reduced twice"), "mean", "*", 4.0, "double-reduction",
      "after backward", "A second all_reduce multiplies what is the sum already.")
wrong("by hand, tied reduced twice", _(by_hand, mistake="tied twice", tied=True,
                                       divide=1), "sum", "embed.weight", 4.0, "double-reduction",
      "after backward", "The loop meets the tied weight under both names and sums it twice.")
wrong("by hand, sum for a mean", _(by_hand, divide=1), "mean", "*", 4.0, "factor", "after backward",
      "Summed, not divided, under a mean.")
wrong("by hand, norms doubled", _(by_hand, mistake="norms doubled", layers=2), "mean", "*norm*",
      2.0, "factor", "after backward",
      "A few among many: of all together the factor is another one.")
wrong("by hand, rank 0 alone", _(by_hand, mistake="to rank 0 alone"), "mean", "*", None,
      "one-rank-only", "after backward",
      "Rank 0 has the mean and nobody broadcasts it; the others' gradients are zero.")
wrong("by hand, masks drawn again",
      _(by_hand, variant="checkpoint dropout",
        mistake="masks drawn again"), "mean", "embed.weight position blocks.*", None, "other",
      "blocks.0", "preserve_rng_state=False: the recomputed forward has other dropout masks.")


def scaled(rank, n, dtype, mistake="", clip=None, wrap="ddp"):
    """Uses a loss scale, accumulation over unequal micro-batches, and clipping."""
    model = build(Lm, dtype, 1)
    if wrap == "fsdp":
        for m in [*model.blocks, model]:
            fully_shard(m)
    wrapped = DDP(model) if wrap == "ddp" else model
    x, y = text(rank, 3)
    y = y.clone()
    y[0, 1:] = -100
    y[1, rank + 1:] = -100
    count = (y >= 0).sum()

    def local(t):
        return t.to_local() if isinstance(t, DTensor) else t

    def step():
        cleared(model)
        scaler = torch.amp.GradScaler("cpu", 1.0 if mistake == "zeroed in between" else 128.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        total = 0
        for i, (a, b) in enumerate(zip(x.split(2), y.split(2))):
            if wrap == "fsdp" and mistake != "zeroed in between":
                model.set_requires_gradient_sync(i == 1)
            with wrapped.no_sync() if wrap == "ddp" and i == 0 else contextlib.nullcontext():
                loss = lm_loss(wrapped, a, b, reduction="sum", ignore_index=-100) / count
                total = total + loss.detach()
                if mistake == "mean of means":
                    loss = lm_loss(wrapped, a, b) / 2
                scaler.scale(loss).backward()
            if mistake == "zeroed in between" and i == 0:
                cleared(model)
        if mistake != "not unscaled":
            scaler.unscale_(optimizer)
        if clip and wrap == "own norm":
            norm = torch.stack([local(p.grad).norm() for p in model.parameters()]).norm()
            for p in model.parameters():
                p.grad.mul_(min(1.0, clip / (float(norm) + 1e-6)))
            reduce_(model, n)
        elif clip and mistake == "own shards":
            norm = torch.stack([local(p.grad).norm() for p in model.parameters()]).norm()
            for p in model.parameters():
                local(p.grad).mul_(min(1.0, clip / (float(norm) + 1e-6)))
        elif clip and mistake == "by hand":
            square = torch.stack([local(p.grad).square().sum() for p in model.parameters()]).sum()
            dist.all_reduce(square)
            for p in model.parameters():
                local(p.grad).mul_(min(1.0, clip / (float(square.sqrt()) + 1e-6)))
        elif clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        return total

    return model, step


right(
    "grad scaler, tokens counted", scaled, "mean",
    "The scaler's factor is taken out; micro-batches weigh by their tokens, as in the loss."
)
right("fsdp, scaler, clip above the norm", _(scaled, wrap="fsdp", clip=1e3), "mean",
      "The clip does not bite.")
right("fsdp, clipped by torch", _(scaled, wrap="fsdp", clip=0.05), "mean",
      "clip_grad_norm_ takes the norm of the whole DTensors: one number for all shards.",
      clips=True)
right("ddp, clipped by torch", _(scaled, clip=0.05), "mean",
      "Clipped after the reduction: one number.", clips=True)
right("fsdp, clipped by hand", _(scaled, wrap="fsdp", clip=0.05, mistake="by hand"), "mean",
      "The squares of the shards are summed over the ranks.", clips=True)
wrong("fsdp, clipped by own shards", _(scaled, wrap="fsdp", clip=0.05,
                                       mistake="own shards"), "mean", "*", None, "wrong-group",
      "after backward", "Each rank clips by the norm of its own shards: one factor per rank.")
wrong("fsdp, last micro-batch only", _(scaled, wrap="fsdp", mistake="zeroed in between"), "mean",
      "*", None, "other", "after backward",
      "Gradients are zeroed after the first micro-batch: the last one is left.")
wrong("clipped before the reduction", _(scaled, wrap="own norm",
                                        clip=0.05), "mean", "*", None, "other", "after backward",
      "Each rank clips its own gradient, and the mean of those is no multiple of the derivative.")
wrong("scale left in", _(scaled, mistake="not unscaled"), "mean", "*", 128.0, "factor",
      "after backward", "Nobody calls unscale_.")
wrong(
    "mean of means", _(scaled, mistake="mean of means"), "mean", "*", None, "other", "loss",
    "Micro-batches of unequal token counts weigh alike in backward, by tokens in the returned loss."
)
# --- FSDP2, HSDP, with tensor parallelism, DTensor alone ---


def sharded(rank, n, dtype, mesh=(4, ), mistake="", factor=None, tp=False, scale=1.0, tied=False):
    model = build(Lm, dtype, 2, tied)
    names = ("dp", "tp") if tp else ("replicate", "shard")[-len(mesh):]
    mesh = init_device_mesh(torch.get_default_device().type, mesh, mesh_dim_names=names)
    if tp:
        for block in model.blocks:
            plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
            plan |= {
                "mlp.up": ColwiseParallel(),
                "mlp.down": RowwiseParallel(),
                "attention.o": RowwiseParallel()
            }
            parallelize_module(block, mesh["tp"], plan)
    dp = mesh["dp"] if tp else mesh
    ignored = set(model.blocks[1].parameters()) if mistake == "block ignored" else set()
    for module in [model.blocks[0], *([] if ignored else [model.blocks[1]]), model]:
        fully_shard(module, mesh=dp, ignored_params=ignored)
        if factor:
            module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(True)
    if mistake == "detached skip":
        model.blocks[1].norm1.register_forward_pre_hook(lambda m, args: (args[0].detach(), ))
    x, y = text(mesh.get_local_rank("dp") if tp else rank)

    def step():
        cleared(model)
        loss = lm_loss(model, x, y)
        (loss * scale).backward()
        if mistake == "shards averaged":
            for p in model.blocks.parameters():
                dist.all_reduce(p.grad.to_local())
                p.grad.to_local().div_(n)
        return loss.detach()

    return model, step


right("fsdp", sharded, "mean", "FSDP2's reduce-scatter averages.")
right("fsdp tied", _(sharded, tied=True), "mean", "The tied weight is in the root's group, once.")
right("fsdp divide factor for a sum", _(sharded, factor=1.0), "sum",
      "With a divide factor of 1 the shards are sums.")
right("hsdp", _(sharded, mesh=(2, 2)), "mean",
      "Reduce-scatter within a row, all-reduce between rows.")
right("fsdp and tensor parallel", _(sharded, mesh=(2, 2), tp=True), "mean",
      "Both tp ranks return the loss of their dp index: the mean of four is the mean of two.")
wrong("fsdp divide factor for a mean", _(sharded, factor=1.0), "mean", "*", 4.0, "factor",
      "after backward", "The divide factor of 1 leaves sums.")
wrong("fsdp block ignored", _(sharded, mistake="block ignored"), "mean", "blocks.1.*", None,
      "missing-reduction", "after backward",
      "blocks.1 is in ignored_params, and nobody reduces it.")
wrong("fsdp shards averaged", _(sharded, mistake="shards averaged"), "mean", "blocks.*", None,
      "wrong-group", "after backward",
      "Shards of one parameter are other elements on each rank: their mean is no gradient.")
wrong("fsdp and tp, branch detached", _(sharded, mesh=(2, 2), tp=True, mistake="detached skip"),
      "mean", "embed.weight position blocks.0.*", None, "other", "blocks.1.norm1",
      "The attention branch of blocks.1 gets a detached input: all before it lacks that branch.")


def dtensor(rank, n, dtype, variant="", mistake=""):
    """Runs plans with sequence parallelism, an embedding cut by rows, or loss parallelism."""
    model, mesh = build(Lm, dtype, 1), init_device_mesh(torch.get_default_device().type, (n, ))
    split = variant in ("sequence", "loss")
    col = _(ColwiseParallel, input_layouts=Shard(1)) if split else ColwiseParallel
    row = _(RowwiseParallel, output_layouts=Shard(1)) if split else RowwiseParallel
    plan = {f"blocks.0.attention.{name}": col() for name in "qkv"}
    plan |= {"blocks.0.mlp.up": col(), "blocks.0.mlp.down": row(), "blocks.0.attention.o": row()}
    if split:
        plan |= {
            "blocks.0.norm1": SequenceParallel(),
            "blocks.0.norm2": SequenceParallel(),
            "norm": SequenceParallel(),
            "head": col(output_layouts=Shard(-1) if variant == "loss" else Replicate(),
                        use_local_output=variant != "loss")
        }
    plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    if mistake == "averaged":
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad / n))
    x, y = (t[:, :4] for t in text(0))

    def forward():
        h = model.embed(x) + model.position[:4]
        if split:
            h = DTensor.from_local(h, mesh,
                                   [Replicate()]).redistribute(placements=[Shard(1)]).to_local()
        h = model.norm(model.blocks[0](h))
        if variant == "own rows":
            # Each rank works on its own rows of the tensor that all hold; logits are gathered.
            h = DTensor.from_local(h, mesh, [Replicate()])
            own = h.to_local() if mistake == "no partial" else h.to_local(
                grad_placements=[Partial()])
            own = own.flatten(0, 1).chunk(n)[rank]
            return Gather.apply(model.head(own), "own")
        return model.head(h).flatten(0, 1)

    def step():
        cleared(model)
        with loss_parallel() if variant == "loss" else contextlib.nullcontext():
            loss = F.cross_entropy(forward(), y.flatten())
            loss.backward()
        if variant == "own rows":
            dist.all_reduce(model.head.weight.grad)
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        return loss.detach()

    return model, step


right("dtensor plan", dtensor, "replicated", "Column and row layers; torch places the all-reduces.")
right("dtensor sequence parallel", _(dtensor, variant="sequence"), "replicated",
      "SequenceParallel norms, the head gathers; the embedding is cut by rows.")
right("dtensor loss parallel", _(dtensor, variant="loss"), "replicated",
      "Logits stay cut by vocabulary through cross entropy; norms see a part of the sequence.")
right("dtensor, own rows with partial", _(dtensor, variant="own rows"), "replicated",
      "to_local is told that the ranks' cotangents are parts of a sum.")
wrong("dtensor, own rows", _(dtensor, variant="own rows", mistake="no partial"), "replicated",
      "embed.weight position blocks.* norm.*", None, "own-part-only", "norm",
      "to_local() without grad_placements: each rank's cotangent has its own rows alone.")
wrong("dtensor plan averaged", _(dtensor, mistake="averaged"), "replicated", "*", 0.25, "averaged",
      "after backward", "A hook left from data parallelism divides gradients of one common loss.")

# --- Megatron by hand: column and row layers, sequence parallel, vocabulary ---


def megatron(rank, n, dtype, mistake="", residual=False, sequence=False, vocabulary=False):
    model = build(Tp, dtype)
    cut(model.mlp.up, "weight", 0, rank, n), cut(model.mlp.up, "bias", 0, rank, n)
    cut(model.mlp.down, "weight", 1, rank, n)
    if vocabulary:
        cut(model.head, "weight", 0, rank, n), cut(model.head, "bias", 0, rank, n)
    x, y = randn(5, dtype, 8, 8), tokens(6, 8)
    if sequence:
        x, y = x.chunk(n)[rank], y.chunk(n)[rank]

    def mlp(h):
        if sequence:
            e = Gather.apply(h, "own" if mistake == "gather splits" else "sum")
        else:
            e = h if mistake == "no f" else Enter.apply(h)
            e = Enter.apply(e) if mistake == "f twice" else e
        z = F.linear(F.gelu(model.mlp.up(e)), model.mlp.down.weight)
        if mistake == "bias before g":
            z = z + model.mlp.down.bias
        z = ReduceScatter.apply(z) if sequence else Leave.apply(z, mistake == "g sums")
        return z if mistake == "bias before g" else z + model.mlp.down.bias

    def cross_entropy(h):
        logits = model.head(h if mistake == "no f at the head" else Enter.apply(h))
        top = logits.detach().max(-1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        logits, width = logits - top[:, None], logits.shape[1]
        total = logits.exp().sum(-1)
        at = y - rank * width
        mine = (at >= 0) & (at < width)
        target = logits.gather(1, at.clamp(0, width - 1)[:, None])[:, 0] * mine
        if mistake == "sums with autograd":
            total, target = dist_nn.all_reduce(total), dist_nn.all_reduce(target)
        else:  # Backward passes the cotangent through a plain in-place collective unchanged.
            dist.all_reduce(total)
            dist.all_reduce(target)
        return (total.log() - target).mean()

    def step():
        cleared(model)
        h = model.norm(model.stem(x))
        h = (h if residual else 0) + mlp(h)
        if vocabulary:
            loss = cross_entropy(h)
        else:
            loss = F.cross_entropy(model.head(h), y, reduction="sum") / 8
        loss.backward()
        if sequence:
            cut_ones = ("mlp.up", "mlp.down.weight")
            left = ("norm", ) if mistake == "norm left" else ()
            reduce_(model, n if mistake == "averaged" else 1,
                    but=left if mistake == "pieces too" else cut_ones + left)
        return loss.detach()

    return model, step


TP = dict(pieces=("mlp.up.bias", ))
VOCABULARY = dict(pieces=("mlp.up.bias", "head.bias"))
right("megatron", _(megatron, residual=True), "replicated",
      "f before the column layer, g after the row layer.", **TP)
right("megatron sequence", _(megatron, sequence=True, residual=True), "sum",
      "Each rank returns its tokens' part; what sees a part of the sequence is summed.", **TP)
right(
    "megatron vocabulary", _(megatron, vocabulary=True), "replicated",
    "Sums over the vocabulary by plain in-place collectives: identity is right here, as in g.",
    **VOCABULARY)
wrong(
    "megatron no f, residual", _(megatron, mistake="no f", residual=True), "replicated",
    "stem.* norm.*", None, "missing-reduction", "mlp.up",
    "Where the copy enters the cut part the ranks' cotangents are not summed; the skip is right.",
    **TP)
wrong("megatron f twice", _(megatron, mistake="f twice"), "replicated", "stem.* norm.*", 4.0,
      "double-reduction", "mlp.up", "f sums what an f behind it has summed.", **TP)
wrong("megatron g sums", _(megatron, mistake="g sums"), "replicated",
      "stem.* norm.* mlp.up.* mlp.down.weight", 4.0, "double-reduction", "mlp.down",
      "g all-reduces in backward as well.", **TP)
wrong("megatron bias before g", _(megatron, mistake="bias before g"), "replicated", "mlp.down.bias",
      0.25, "missing-reduction", "mlp.down",
      "The bias is added on every rank before the sum: it counts four times.", **TP)
wrong("sequence, norm left", _(megatron, sequence=True,
                               mistake="norm left"), "sum", "norm.*", None, "missing-reduction",
      "after backward", "The norm saw a part of the sequence and is not summed.", **TP)
wrong("sequence averaged", _(megatron, sequence=True,
                             mistake="averaged"), "sum", "stem.* norm.* mlp.down.bias head.*", 0.25,
      "averaged", "after backward", "A mean where a sum is due.", **TP)
wrong("sequence, pieces summed too", _(megatron, sequence=True,
                                       mistake="pieces too"), "sum", "mlp.up.* mlp.down.weight",
      None, "wrong-group", "after backward", "Cut weights are other elements by rank.", **TP)
wrong("sequence, gather splits", _(megatron, sequence=True,
                                   mistake="gather splits"), "sum", "stem.* norm.*", None,
      "own-part-only", "mlp.up", "The gather's backward takes the own rows and does not sum.", **TP)
wrong("vocabulary, no f", _(megatron, vocabulary=True,
                            mistake="no f at the head"), "replicated", "stem.* norm.* mlp.*", None,
      "missing-reduction", "head", "No sum where hidden states enter the cut head.", **VOCABULARY)
wrong("vocabulary, autograd's all_reduce", _(megatron, vocabulary=True,
                                             mistake="sums with autograd"), "replicated", "*", 4.0,
      "double-reduction", "loss", "dist.nn's all_reduce sums cotangents that are equal copies.",
      **VOCABULARY)
# --- Context parallel: keys gathered, a ring, Ulysses ---


def context(rank, n, dtype, how="gather", mistake="", residual=True):
    model = build(Sequence, dtype, seed=2)
    x, y = (tokens(s, 12).chunk(n)[rank] for s in (3, 4))
    sent = [len(x)] * n

    def attend(h):
        a = model.attention
        q, k, v = (f(h).unflatten(-1, (4, 4)) for f in (a.q, a.k, a.v))
        if how == "ulysses":  # Heads go to [all tokens, one head, 4] and back.

            def heads(t):
                by = n if mistake == "exchange averaged" else 1
                return Exchange.apply(t.transpose(0, 1).reshape(len(x) * n, -1), sent, sent,
                                      by)[:, None]

            q, k, v = heads(q), heads(k), heads(v)
            first = 0
        elif how == "gather":
            mode = "own" if mistake == "own slice" else "sum"
            k, v, first = Gather.apply(k, mode), Gather.apply(
                v, "sum" if mistake == "" else mode), len(x) * rank
        else:
            blocks, block = [torch.stack((k, v))], torch.stack((k, v))
            for _step in range(n - 1):
                block = Shift.apply(block, mistake == "same direction")
                blocks.append(block.detach() if mistake == "blocks detached" else block)
            blocks = [blocks[(rank - source) % n] for source in range(n)]
            (k, v), first = torch.cat(blocks, 1), len(x) * rank
        scores = torch.einsum("qhd,khd->hqk", q, k) / 2
        past = torch.arange(len(k)) <= first + torch.arange(len(q))[:, None]
        out = torch.einsum("hqk,khd->qhd", scores.masked_fill(~past, float("-inf")).softmax(-1), v)
        if how == "ulysses":
            out = Exchange.apply(out[:, 0], sent, sent).unflatten(0, (n, len(x))).transpose(0, 1)
        return a.o(out.flatten(-2))

    def step():
        cleared(model)
        h = model.embed(x)
        h = (h if residual else 0) + attend(model.norm(h))
        loss = F.cross_entropy(model.head(model.final(h)), y)
        loss.backward()
        reduce_(model, n)
        return loss.detach()

    return model, step


BEFORE = "embed.weight norm.* attention.k.weight attention.v.weight"
right("keys gathered", context, "mean",
      "The gather's backward sums over the ranks that used the keys.")
right("ring", _(context, how="ring"), "mean", "Each turn's cotangent goes back one rank.")
right("ulysses", _(context, how="ulysses"), "mean", "An equal all_to_all is its own adjoint.")
wrong("keys gathered, own slice", _(context, mistake="own slice"), "mean", BEFORE, None,
      "own-part-only", "attention.k", "The gather's backward is the own rank's cotangent alone.")
wrong("ring, blocks detached", _(context, how="ring",
                                 mistake="blocks detached"), "mean", BEFORE, None, "own-part-only",
      "attention.k", "Received blocks are detached: only the own keys get a gradient.")
wrong(
    "ring, same direction", _(context, how="ring", mistake="same direction"), "mean",
    BEFORE.replace("norm.*", "norm.weight"), None, "other", "attention.k",
    "The cotangents travel on instead of back and end at other ranks; norm.bias sums over all"
    " tokens and is right."
)
wrong("ulysses, exchange averaged",
      _(context, how="ulysses", mistake="exchange averaged", residual=False), "mean",
      "embed.weight norm.* attention.q.weight attention.k.weight attention.v.weight", 0.25,
      "averaged", "attention.q", "The exchange divides by the ranks in backward.")
# --- Experts, contrastive losses, a pipeline ---


def moe(rank, n, dtype, mistake=""):
    model = build(Moe, dtype, rank)
    x, y = rows(rank, dtype, 8)

    def step():
        cleared(model)
        h = model.stem(x)
        weights = model.router(h).softmax(-1)
        weight, chosen = weights.max(-1)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=n)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sent, received = sent.tolist(), received.tolist()
        out = model.expert(Exchange.apply(h[order], sent, received))
        back = Exchange.apply(out, received, sent)
        h = h + (back * weight[order, None])[order.argsort()]
        loss = F.cross_entropy(model.head(h), y)
        loss.backward()
        experts = mistake == "experts averaged"
        reduce_(
            model, n, but=(() if experts else
                           ("expert", )) + (("router", ) if mistake == "router left" else ()))
        for p in model.expert.parameters():
            p.grad /= 1 if experts or mistake == "experts not divided" else n
        return loss.detach()

    return model, step


EXPERTS = dict(pieces=("expert.*.bias", ))
right("experts", moe, "mean",
      "An expert's gradient has all ranks' tokens already; it lacks the mean alone.", **EXPERTS)
wrong("experts not divided", _(moe, mistake="experts not divided"), "mean", "expert.*", 4.0,
      "factor", "after backward",
      "Experts have the sum over the ranks' losses where the mean is declared.", **EXPERTS)
wrong("experts averaged", _(moe,
                            mistake="experts averaged"), "mean", "expert.*", None, "wrong-group",
      "after backward", "Different experts are averaged as if they were copies.", **EXPERTS)
wrong("router left", _(moe, mistake="router left"), "mean", "router.*", None, "missing-reduction",
      "after backward", "The router is a copy on all ranks and is not reduced.", **EXPERTS)


def clip(rank, n, dtype, gather="torch", whole=False, scale=1.0):
    model = build(Towers, dtype)
    wrapped = DDP(model)
    a, b = randn(rank + 61, dtype, 4, 8), tokens(rank + 62, 4)

    def gathered(t):
        if gather == "torch":
            return torch.cat(dist_nn.all_gather(t))
        if gather == "detached":
            every = [torch.empty_like(t) for _i in range(n)]
            dist.all_gather(every, t.detach().contiguous())
            every[rank] = t
            return torch.cat(every)
        return Gather.apply(t, gather)

    def step():
        cleared(model)
        u, v = wrapped(a, b)
        all_u, all_v, at = gathered(u), gathered(v), torch.arange(4) + 4 * rank
        if whole:
            u, v, at = all_u, all_v, torch.arange(4 * n)
        s = model.logit_scale.exp()
        loss = (F.cross_entropy(s * u @ all_v.t(), at) + F.cross_entropy(s * v @ all_u.t(), at)) / 2
        (loss * scale).backward()
        return loss.detach()

    return model, step


ENCODERS = "image.* text.*"
right("clip", clip, "mean",
      "The gather's backward sums over ranks, DDP averages the losses of own rows.")
right("clip whole loss", _(clip, whole=True), "replicated",
      "All ranks compute one loss; summing equal cotangents is undone by DDP's mean.")
wrong("clip, identity backward", _(clip, gather="own"), "mean", ENCODERS, None, "own-part-only",
      "loss", "The gather hands back its own slice: what others' losses say of these rows is lost.")
wrong("clip, others detached", _(clip, gather="detached"), "mean", ENCODERS, None, "own-part-only",
      "loss", "Gathered without gradient with the own rows put in; the scale's gradient is right.")
wrong("clip whole loss, own slice", _(clip, gather="own",
                                      whole=True), "replicated", ENCODERS, 0.25, "averaged", "loss",
      "Own slices of one common loss are to be summed; DDP takes their mean. The scale is right.")


def pipeline(rank, n, dtype, mistake="", variant="replicated"):
    """Runs one stage per rank and two micro-batches; first and last stage share the embedding."""
    torch.manual_seed(90 + rank)
    stage = nn.Sequential(nn.LayerNorm(16), Mlp())
    torch.manual_seed(7)
    model = nn.ModuleDict({f"stage{rank}": stage})
    if rank in (0, n - 1):
        model["embed"] = nn.Embedding(12, 16)
    model, (x, y) = model.to(dtype), text(0, 4)
    ends = dist.new_group([0, n - 1])

    def step():
        cleared(model)
        kept, total = [], torch.zeros((), dtype=dtype)
        for a, b in zip(x.chunk(2), y.chunk(2)):
            if rank == 0:
                h = model["embed"](a)
            else:
                h = torch.empty(2, 6, 16, dtype=dtype)
                dist.recv(h, rank - 1)
                h.requires_grad_()
            out = h + stage(h)
            if rank < n - 1:
                dist.send(out.detach(), rank + 1)
            else:
                out = F.cross_entropy(
                    (out @ model["embed"].weight.t()).flatten(0, 1), b.flatten()) / 2
                total = total + out.detach()
            kept.append((h, out))
        received = torch.empty(2, 2, 6, 16, dtype=dtype)
        if rank < n - 1:
            for i in range(2):
                dist.recv(received[1 if rank == 1 and mistake == "one buffer" else i], rank + 1)
            if rank == 1 and mistake == "one buffer":
                received[0] = received[1]
        for i, (h, out) in enumerate(kept):
            scale = 2 if mistake == "not over micro-batches" else 1
            out.backward(received[i]) if rank < n - 1 else (out * scale).backward()
            if rank:
                dist.send(h.grad, rank - 1)
        if rank in (0, n - 1) and mistake != "tied left":
            dist.all_reduce(model["embed"].weight.grad, group=ends)
            model["embed"].weight.grad /= 2 if mistake == "tied averaged" else 1
        if variant == "replicated":
            dist.broadcast(total, n - 1)
        return total

    return model, step


BIAS = dict(pieces=("stage*.bias", ))
right("pipeline", pipeline, "replicated",
      "The loss is broadcast from the last stage; the tied weight is summed.")
right("pipeline, loss at the end", _(pipeline, variant="sum"), "sum",
      "Other stages return zero, so the sum is the loss.")
wrong("pipeline, tied left", _(pipeline, mistake="tied left"), "replicated", "embed.weight", None,
      "missing-reduction", "after backward",
      "Each end has the gradient of its own use of the tied weight.")
wrong("pipeline, tied averaged", _(pipeline, mistake="tied averaged"), "replicated", "embed.weight",
      0.5, "averaged", "after backward", "Uses of one weight are summed, not averaged.")
wrong("pipeline, one buffer", _(pipeline, mistake="one buffer"), "replicated",
      "embed.weight stage0.* stage1.*", None, "stale", "stage1",
      "Both cotangents are received into one buffer: the last counts twice.")
wrong("pipeline, not over micro-batches",
      _(pipeline, mistake="not over micro-batches", variant="sum"), "sum", "*", 2.0, "factor",
      "loss", "Backward lacks the division by the micro-batches that the returned loss has.")
# --- Penalties, complex and bare parameters, a teacher ---


def bare(rank, n, dtype, mistake="", teacher=False):
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    torch.manual_seed(4)
    model = Bare(torch.complex64)
    for name, p in model.named_parameters():
        p.data = p.data.to(complex_dtype if p.is_complex() else dtype)
    frozen = build(Classifier, dtype, seed=9).requires_grad_(False)
    if teacher:
        model.teacher = frozen
    x, y = rows(rank, dtype)

    def step():
        cleared(model)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        if teacher:
            loss = loss + F.kl_div(logits.log_softmax(-1),
                                   model.teacher(x).softmax(-1), reduction="batchmean")
        loss.backward()
        for p in model.parameters():
            if p.grad is None:
                continue
            if mistake == "imaginary left" and p.is_complex():
                real = p.grad.real.clone()
                dist.all_reduce(real)
                p.grad = torch.complex(real / n, p.grad.imag)
            else:
                dist.all_reduce(torch.view_as_real(p.grad) if p.is_complex() else p.grad)
                p.grad /= n
        if mistake == "gate zeroed":
            model.gate.grad.zero_()
        return loss.detach()

    return model, step


right("bare and complex weights", bare, "mean",
      "Real and imaginary parts are averaged as two real tensors.")
right("teacher frozen", _(bare, teacher=True), "mean",
      "The teacher moves the loss but is no parameter to train.")
wrong("complex, imaginary left", _(bare, mistake="imaginary left"), "mean", "filter", None,
      "missing-reduction", "after backward", "The imaginary part stays the rank's own.")
wrong("gate zeroed", _(bare, mistake="gate zeroed"), "mean", "gate", 0.0, "zero", "after backward",
      "A scalar's gradient is cleared with those of unused parameters.")
