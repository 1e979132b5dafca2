"""Tests that a watched step gives the gradients that it gives unwatched, bit for bit: DTensor's
plans, FSDP2, DDP, checkpoints, pipelines; compiled models may differ by rounding."""

import multiprocessing
import os
import sys
import tempfile
import traceback
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
                                               PrepareModuleOutput, RowwiseParallel,
                                               SequenceParallel, loss_parallel, parallelize_module)
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from distgrad.step.recording import Recording  # noqa: E402

RANKS = 4
TOKENS = torch.randint(0, 16, (4, 8), generator=torch.Generator().manual_seed(5))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.norm = nn.Embedding(16, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 16)

    def block(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


def loss_of(logits, tokens=TOKENS):
    return cross_entropy(logits.flatten(0, 1), tokens.flatten())


def own(rank):
    return TOKENS.chunk(RANKS)[rank]


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def planned(plan, mesh=None, in_loss=False):
    model = Model()
    parallelize_module(model, mesh or init_device_mesh("cpu", (RANKS,)), plan)
    logits = model(TOKENS)
    if in_loss:
        with loss_parallel():
            loss_of(logits).backward()
    else:
        loss_of(logits).backward()
    return gradients(model)


def colwise_rowwise(rank):
    return planned({"up": ColwiseParallel(), "down": RowwiseParallel()})


def embedding_rowwise(rank):
    return planned({"embed": RowwiseParallel(input_layouts=Replicate(),
                                             output_layouts=Replicate())})


def embedding_rowwise_to_shards(rank):
    return planned({"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                    "norm": SequenceParallel(),
                    "up": ColwiseParallel(input_layouts=Shard(1)),
                    "down": RowwiseParallel(output_layouts=Shard(1)),
                    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})


def embedding_rowwise_kept(rank):
    """Has an output that stays a share of a sum until the user redistributes it."""
    model, mesh = Model(), init_device_mesh("cpu", (RANKS,))
    plan = RowwiseParallel(input_layouts=Replicate(), use_local_output=False)
    parallelize_module(model, mesh, {"embed": plan})
    x = model.embed(TOKENS).redistribute(mesh, [Replicate()]).to_local()
    loss_of(model.head(model.block(x))).backward()
    return gradients(model)


def embedding_colwise(rank):
    return planned({"embed": ColwiseParallel(output_layouts=Replicate())})


def losses_in_parallel(rank):
    return planned({"head": ColwiseParallel(use_local_output=False)}, in_loss=True)


def prepared(rank):
    return planned({
        "norm": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1),
                                    use_local_output=True),
        "up": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(),
                                 use_local_output=True)})


def trained(model, rank, tokens=None, clip=None, steps=2):
    for _ in range(steps):
        model.zero_grad()
        for x in (own(rank) if tokens is None else tokens).split(1):
            loss_of(model(x), x).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    return gradients(model)


def fsdp(rank):
    model = Model()
    for module in (model.up, model.down, model):
        fully_shard(module)
    return trained(model, rank, clip=0.1)


def fsdp_mixed(rank):
    model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (model.head, model):
        fully_shard(module, mp_policy=policy)
    return trained(model, rank)


def hsdp(rank):
    model, mesh = Model(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    fully_shard(model, mesh=mesh)
    return trained(model, rank)


def fsdp_and_tensor_parallel(rank):
    model, mesh = Model(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {
        "embed": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(),
        "down": RowwiseParallel(), "head": ColwiseParallel(output_layouts=Replicate())})
    fully_shard(model, mesh=mesh["dp"])
    return trained(model, rank, TOKENS.chunk(2)[rank // 2])


def ddp(rank, model=None):
    model = nn.parallel.DistributedDataParallel(Model() if model is None else model,
                                                gradient_as_bucket_view=True)
    with model.no_sync():
        loss_of(model(own(rank)), own(rank)).backward()
    return trained(model, rank, clip=0.1)


def ddp_static(rank):
    return trained(nn.parallel.DistributedDataParallel(Model(), static_graph=True), rank)


def compiled(rank):
    return ddp(rank, torch.compile(Model(), backend="aot_eager"))


class Checkpointed(Model):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant, self.drop = use_reentrant, nn.Dropout(0.3)

    def forward(self, tokens):
        def block(x):
            return self.drop(self.block(x))

        return self.head(checkpoint(block, self.embed(tokens), use_reentrant=self.use_reentrant))


def checkpointed(rank):
    return ddp(rank, Checkpointed(False))


def checkpointed_reentrant(rank):
    return trained(Checkpointed(True), rank)


def pipeline_by_hand(rank):
    """Runs four stages, micro-batch by micro-batch."""
    model, kept = Model(), []
    stage = (model.embed, model.norm, lambda x: torch.tanh(model.up(x)),
             lambda x: loss_of(model.head(model.down(x)), x_of))[rank]
    for x_of in TOKENS.split(1):
        x = x_of
        if rank:
            x = torch.empty(1, 8, 12 if rank == 3 else 8)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < 3:
            dist.send(y.detach(), rank + 1)
        kept.append((x, y))
    for x, y in kept:
        cotangent = None
        if rank < 3:
            cotangent = torch.empty_like(y)
            dist.recv(cotangent, rank + 1)
        y.backward(cotangent)
        if rank:
            dist.send(x.grad, rank - 1)
    return gradients(model)


def pipelined(rank, schedule):
    model = Model()
    stage = (model.embed, model.norm, nn.Sequential(model.up, nn.Tanh()),
             nn.Sequential(model.down, model.head))[rank]
    stage = PipelineStage(stage, rank, RANKS, torch.device("cpu"))
    run = schedule(stage, n_microbatches=4, loss_fn=loss_of)
    run.step(*([TOKENS] if rank == 0 else []), **({"target": TOKENS} if rank == 3 else {}))
    return gradients(model)


def pipelined_1f1b(rank):
    return pipelined(rank, Schedule1F1B)


def pipelined_gpipe(rank):
    return pipelined(rank, ScheduleGPipe)


STEPS = [ddp, ddp_static, compiled, checkpointed, checkpointed_reentrant, pipeline_by_hand,
         pipelined_1f1b, pipelined_gpipe, colwise_rowwise, embedding_rowwise,
         embedding_rowwise_to_shards, embedding_rowwise_kept, embedding_colwise,
         losses_in_parallel, prepared, fsdp, fsdp_mixed, hsdp, fsdp_and_tensor_parallel]


def compiled_alone():
    return trained(torch.compile(Model(), backend="aot_eager"), 0, TOKENS)


def checkpointed_alone():
    return trained(Checkpointed(False), 0, TOKENS, clip=0.1)


def checkpointed_reentrant_alone():
    return trained(Checkpointed(True), 0, TOKENS)


def slopes_alone():
    model = Model()
    x = model.embed(TOKENS)
    loss = loss_of(model.head(model.block(x)))
    [slope] = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.square().sum()).backward()
    return gradients(model)


# Hooks are compiled as well, which makes other compiled pieces that round differently.
COMPILED, ROUNDING = [compiled, compiled_alone], 1e-6
SINGLE = [compiled_alone, checkpointed_alone, checkpointed_reentrant_alone, slopes_alone]


def local(gradient):
    return None if gradient is None else getattr(gradient, "_local_tensor", gradient).clone()


def found_by(step, *arguments):
    torch.manual_seed(7)
    return {name: local(g) for name, g in step(*arguments).items()}


def is_alike(g, other, limit):
    if g is None or other is None:
        return g is other
    return float((g - other).abs().max()) <= limit * float(g.abs().max())


def compare(steps, recording, *arguments):
    """Runs the steps unwatched, then watched; returns {step: what is wrong}."""
    before, wrong = {}, {}
    for step in steps:
        before[step] = found_by(step, *arguments)
    recording.start()
    torch._dynamo.reset()  # A watched process begins with nothing compiled, and compiles nothing.
    torch._dynamo.config.disable = True
    for step in steps:
        try:
            after = found_by(step, *arguments)
            limit = ROUNDING if step in COMPILED else 0
            wrong[step.__name__] = [name for name, g in before[step].items()
                                    if not is_alike(g, after[name], limit)]
            if not any(g is not None for g in before[step].values()):
                wrong[step.__name__] = "no gradient"
        except Exception:
            wrong[step.__name__] = traceback.format_exc()
            break  # The other ranks are lost.
    recording.trace()
    return wrong


def be_rank(rank, folder, queue):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if rank == RANKS:
            queue.put(("alone", compare(SINGLE, Recording([], retains=True))))
        else:
            store = dist.FileStore(os.path.join(folder, "store"), RANKS)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
            queue.put((rank, compare(STEPS, Recording([]), rank)))
    except Exception:  # An unwatched step raised.
        queue.put((rank, {"unwatched": traceback.format_exc()}))
    queue.close()
    queue.join_thread()
    os._exit(0)


class Watched(unittest.TestCase):
    def test_no_gradient_is_changed(self):
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        with tempfile.TemporaryDirectory() as folder:
            processes = [context.Process(target=be_rank, args=(rank, folder, queue))
                         for rank in range(RANKS + 1)]
            for process in processes:
                process.start()
            try:
                for _ in processes:
                    who, wrong = queue.get(timeout=90)
                    for step, what in wrong.items():
                        with self.subTest(step=step, rank=who):
                            self.assertFalse(what, what)
                    if "unwatched" not in wrong:
                        self.assertEqual(len(wrong), len(SINGLE if who == "alone" else STEPS))
            finally:
                for process in processes:
                    process.kill()


if __name__ == "__main__":
    unittest.main()
