"""Defines steps with transformers' models: Qwen3-MoE with experts over ranks by hand; a Llama in
accelerate's loop, under FSDP2 and in torch's pipeline; and attention by yunchang's Ulysses."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from models import gradients, made

VOCABULARY, LENGTH, SEQUENCES = 32, 8, 12


def text(run):
    """Returns tokens and labels; later rows have fewer labels."""
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH),
                           generator=torch.Generator().manual_seed(400 + run.seed))
    labels = tokens.clone()
    for row in range(SEQUENCES):
        labels[row, LENGTH - row // 2:] = -100
    return tokens, labels


def counted(labels):
    """Returns how many labels count once they are shifted."""
    return (labels[:, 1:] != -100).sum()


_SIZES = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=4, max_position_embeddings=32,
              initializer_range=0.3, attn_implementation="sdpa", use_cache=False)


def moe():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **_SIZES, intermediate_size=24, moe_intermediate_size=12, num_experts=4,
        num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.1,
        experts_implementation="eager"))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_SIZES, intermediate_size=24))


def whole_text(run, kind=llama):
    model = made(kind, run.seed, run.dtype)
    tokens, labels = text(run)
    model(input_ids=tokens, labels=labels, num_items_in_batch=counted(labels)).loss.backward()
    return gradients(model)


# --- Experts over ranks


class Enter(torch.autograd.Function):
    """Hands what all ranks of the group hold on to each one's experts."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class OwnExperts(nn.Module):
    def __init__(self, experts, group, rank, size, mistake):
        super().__init__()
        self.first, self.group, self.mistake = rank * (experts.num_experts // size), group, mistake
        at = (rank + 1) % size if mistake == "neighbour's experts loaded" else rank
        self.gate_up_proj, self.down_proj = (
            nn.Parameter(w.detach().chunk(size)[at].clone())
            for w in (experts.gate_up_proj, experts.down_proj))
        self.act_fn = experts.act_fn

    def forward(self, hidden, index, weights):
        if self.mistake != "tokens not entered":
            hidden = Enter.apply(hidden, self.group)
        if self.mistake != "routing weights not entered":
            weights = Enter.apply(weights, self.group)
        out = torch.zeros_like(hidden)
        for i in range(len(self.gate_up_proj)):
            token, position = torch.where(index == self.first + i)
            gate, up = F.linear(hidden[token], self.gate_up_proj[i]).chunk(2, -1)
            found = F.linear(self.act_fn(gate) * up, self.down_proj[i])
            out = out.index_add(0, token, found * weights[token, position, None])
        return Combine.apply(out, self.group)


def expert_parallel(run, mistake=None):
    """Runs with ep of 2 and dp over the rest; the experts' ranks share their sequences."""
    n, size = run.world_size, 2
    eps = [dist.new_group([r, r + 1]) for r in range(0, n, 2)]
    dps = [dist.new_group(list(range(r, n, 2))) for r in range(2)]
    model = made(moe, run.seed, run.dtype)
    for layer in model.model.layers:
        layer.mlp.experts = OwnExperts(layer.mlp.experts, eps[run.rank // 2], run.rank % 2, size,
                                       mistake)
    tokens, labels = text(run)
    count = counted(labels)
    tokens, labels = (t.chunk(n // 2)[run.rank // 2] for t in (tokens, labels))
    model(input_ids=tokens, labels=labels, num_items_in_batch=count,
          output_router_logits=mistake == "balance loss on the ranks alone").loss.backward()
    for name, p in model.named_parameters():
        dist.all_reduce(p.grad, group=dps[run.rank % 2])
        if mistake == "experts divided by ep" and "experts" in name:
            p.grad /= size
    return gradients(model)


# --- accelerate's loop


def accelerated(run, mistake=None):
    """Runs micro-batches of 2 rows. As transformers divides by the items of all, the average over
    ranks and the division by the steps are undone."""
    from accelerate import Accelerator

    tokens, labels = (t.chunk(run.world_size)[run.rank] for t in text(run))
    pieces = list(zip(tokens.split(2), labels.split(2)))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(pieces))
    model = accelerator.prepare(made(llama, run.seed, run.dtype))
    items = counted(labels)
    if mistake != "items of the own rank":
        items = accelerator.gather(items).sum() / run.world_size
    for a, b in pieces:
        with accelerator.accumulate(model):
            if mistake == "synchronised at the first step":
                model.require_backward_grad_sync = a is pieces[0][0]
            if mistake == "each micro-batch's mean":
                loss = model(input_ids=a, labels=b).loss
            else:
                loss = model(input_ids=a, labels=b, num_items_in_batch=items).loss
                if mistake != "divided by the steps, too":
                    loss = loss * len(pieces)
            accelerator.backward(loss)
            if mistake == "zeroed in each step" and a is not pieces[-1][0]:
                model.zero_grad()
    return gradients(accelerator.unwrap_model(model))


# --- FSDP2


def sharded_llama(run, mistake=None):
    from torch.distributed.fsdp import fully_shard

    model = made(llama, run.seed, run.dtype)
    mesh = init_device_mesh("cpu", (run.world_size,), mesh_dim_names=("dp",))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if mistake == "a layer's divide factor":
        model.model.layers[0].set_gradient_divide_factor(1.0)
    if mistake == "hook on the norms":
        for name, p in model.named_parameters():
            if "layernorm" in name:
                p.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
    if mistake == "hook that clips activations' gradients":
        model.model.layers[1].register_full_backward_hook(
            lambda module, given, got: (given[0].clamp(-0.002, 0.002), *given[1:]))
    tokens, labels = text(run)
    items = counted(labels)
    tokens, labels = (t.chunk(run.world_size)[run.rank] for t in (tokens, labels))
    loss = model(input_ids=tokens, labels=labels, num_items_in_batch=items).loss
    (loss * run.world_size).backward()
    return gradients(model)


# --- torch's pipeline


class Half(nn.Module):
    """Has embedding and first layer, or the rest, under the whole model's names."""

    def __init__(self, whole, stage, mistake):
        super().__init__()
        self.stage, self.mistake = stage, mistake
        self.model = nn.Module()
        self.model.layers = nn.ModuleDict({str(stage): whole.model.layers[stage]})
        self.model.rotary_emb = whole.model.rotary_emb
        if stage == 0:
            self.model.embed_tokens = whole.model.embed_tokens
        else:
            self.model.norm, self.lm_head = whole.model.norm, whole.lm_head

    def forward(self, x):
        if self.stage == 0:
            x = self.model.embed_tokens(x)
        at = torch.arange(x.size(1))[None]
        if self.mistake == "positions shifted in the second stage" and self.stage == 1:
            at = at * 2
        x = self.model.layers[str(self.stage)](
            x, attention_mask=None, position_embeddings=self.model.rotary_emb(x, at))
        return x if self.stage == 0 else self.lm_head(self.model.norm(x))


def tied_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(**_SIZES, intermediate_size=24, tie_word_embeddings=True))


def pipelined(run, mistake=None):
    """Runs with pp of 2 and dp over the rest. Embedding and head are tied, and both stages add up
    their gradients."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    mesh = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("pp", "dp"))
    which = mesh.get_local_rank("pp")
    half = Half(made(tied_llama, run.seed, run.dtype), which, mistake)
    stage = PipelineStage(half, which, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    tokens, labels = text(run)
    count = counted(labels)
    tokens, labels = (t.chunk(run.world_size // 2)[mesh.get_local_rank("dp")]
                      for t in (tokens, labels))

    def loss_of(logits, target):
        mean = mistake == "mean of each micro-batch"
        sums = F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten(),
                               reduction="mean" if mean else "sum")
        return sums / (2 * mesh["dp"].size() if mean else count)

    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of, scale_grads=False)
    schedule.step(tokens) if which == 0 else schedule.step(target=labels)
    tied = half.model.embed_tokens if which == 0 else half.lm_head
    if mistake != "tied weights not added up":
        dist.all_reduce(tied.weight.grad, group=mesh.get_group("pp"))
    for p in half.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group("dp"))
    named = {name.replace("lm_head", "model.embed_tokens"): p for name, p in
             half.named_parameters()}
    return {name: p.grad for name, p in named.items()}


# --- yunchang


def _attended(q, k, v, causal=False, softmax_scale=None, **_):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                          scale=softmax_scale).transpose(1, 2)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, 16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, VOCABULARY)
        self.attention, self.causal = _attended, True

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = (t.unflatten(-1, (4, 4)) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(self.attention(q, k, v, causal=self.causal).flatten(2))
        return self.head(x + self.down(F.gelu(self.up(x))))


def _shifted(run):
    tokens, labels = text(run)
    return tokens, F.pad(labels[:, 1:], (0, 1), value=-100)


def whole_ulysses_reader(run):
    model = made(Reader, run.seed, run.dtype)
    tokens, labels = _shifted(run)
    F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()).backward()
    return gradients(model)


def ulysses_reader(run, mistake=None):
    """Cuts sequences over 2 ranks, with dp over the rest, and adds gradients up over all."""
    from yunchang.kernels import AttnType
    from yunchang.ulysses.attn_layer import UlyssesAttention

    n = run.world_size
    sps = [dist.new_group([r, r + 1]) for r in range(0, n, 2)]
    dps = [dist.new_group(list(range(r, n, 2))) for r in range(2)]
    model = made(Reader, run.seed, run.dtype)
    swapped = dict(scatter_idx=1, gather_idx=2) if mistake == "scatter and gather swapped" else {}
    model.attention = UlyssesAttention(sps[run.rank // 2], attn_type=AttnType.TORCH_MATH, **swapped)
    model.attention.attn_fn = _attended
    model.causal = mistake != "causal left out"
    tokens, labels = _shifted(run)
    count = (labels >= 0).sum()
    own = [t.chunk(n // 2)[run.rank // 2].chunk(2, 1)[run.rank % 2] for t in (tokens, labels)]
    if mistake == "mean of the own tokens":
        count = (own[1] >= 0).sum() * n
    loss = F.cross_entropy(model(own[0]).flatten(0, 1), own[1].flatten(), reduction="sum") / count
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=dps[run.rank % 2] if mistake == "reduced over dp alone"
                        else None)
    return gradients(model)
