"""Defines steps around released packages' losses under DistributedDataParallel: open_clip's model
and ClipLoss, sentence-transformers' ranking loss, lightly's losses, and pytorch-metric-learning's
wrapper."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from models import gradients, made

ROWS, WIDTH, CLASSES = 16, 12, 5


def _generator(run):
    return torch.Generator().manual_seed(300 + run.seed)


def _own(run, *tensors):
    return [t.chunk(run.world_size)[run.rank] for t in tensors]


# --- open_clip


def _clip():
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=1, width=16, head_width=8, patch_size=4, image_size=8)
    text = CLIPTextCfg(context_length=6, vocab_size=24, width=16, heads=2, layers=1)
    return CLIP(10, vision, text, init_logit_scale=1.5)


def _pictures(run):
    generator = _generator(run)
    images = torch.randn(ROWS, 3, 8, 8, generator=generator).to(run.dtype)
    return images, torch.randint(1, 24, (ROWS, 6), generator=generator)


def whole_open_clip(run):
    from open_clip.loss import ClipLoss

    model = made(_clip, run.seed, run.dtype)
    ClipLoss()(*model(*_pictures(run))).backward()
    return gradients(model)


def open_clip(run, mistake=None):
    """Uses local_loss and gather_with_grad, as for many ranks."""
    from open_clip.loss import ClipLoss

    model = made(_clip, run.seed, run.dtype)
    if mistake == "text tower locked":
        for p in [*model.transformer.parameters(), *model.token_embedding.parameters(),
                  *model.ln_final.parameters(), model.positional_embedding, model.text_projection]:
            p.requires_grad = False
    wrapped = DistributedDataParallel(model)
    loss_of = ClipLoss(local_loss=True, gather_with_grad=mistake != "gather without gradient",
                       rank=0 if mistake == "rank left at 0" else run.rank,
                       world_size=1 if mistake == "negatives of the own rank" else run.world_size)
    image, text, scale = wrapped(*_own(run, *_pictures(run)))
    if mistake == "scale of another step":
        scale = scale.detach()
    loss_of(image, text, scale).backward()
    return gradients(model)


def open_clip_full(run, mistake=None):
    """Gives each rank the loss of all rows."""
    from open_clip.loss import ClipLoss

    model = made(_clip, run.seed, run.dtype)
    wrapped = DistributedDataParallel(model)
    loss_of = ClipLoss(gather_with_grad=mistake != "own features alone have a gradient",
                       rank=run.rank, world_size=run.world_size)
    loss_of(*wrapped(*_own(run, *_pictures(run)))).backward()
    return gradients(model)


# --- sentence-transformers


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.dense = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, features):
        mask = features["attention_mask"].to(self.out.weight.dtype)[..., None]
        pooled = (self.words(features["input_ids"]) * mask).sum(1) / mask.sum(1)
        return {"sentence_embedding": self.out(torch.tanh(self.dense(pooled)))}


def _triplets(run):
    generator = _generator(run)
    columns = []
    for _ in range(3):
        ids = torch.randint(30, (ROWS, 5), generator=generator)
        lengths = torch.randint(2, 6, (ROWS, 1), generator=generator)
        columns.append({"input_ids": ids, "attention_mask": torch.arange(5)[None] < lengths})
    return columns


def _ranked(model, columns, **options):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    return MultipleNegativesRankingLoss(model, scale=5.0, **options)(columns, None)


def whole_ranking(run):
    model = made(Sentences, run.seed, run.dtype)
    _ranked(model, _triplets(run)).backward()
    return gradients(model)


def ranking(run, mistake=None):
    model = made(Sentences, run.seed, run.dtype)
    wrapped = DistributedDataParallel(model)
    columns = [{name: _own(run, t)[0] for name, t in column.items()} for column in _triplets(run)]
    if mistake == "negatives without gradient":
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

        with torch.no_grad():
            fixed = wrapped(columns[2])["sentence_embedding"]
        embeddings = [wrapped(c)["sentence_embedding"] for c in columns[:2]] + [fixed]
        loss = MultipleNegativesRankingLoss(
            wrapped, scale=5.0, gather_across_devices=True
        ).compute_loss_from_embeddings(embeddings, None)
    else:
        loss = _ranked(wrapped, columns, gather_across_devices=mistake != "not gathered")
    if mistake == "times the ranks":
        loss = loss * run.world_size
    loss.backward()
    return gradients(model)


# --- lightly


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, 20), nn.GELU())
        self.projection_head = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 8))

    def forward(self, x):
        return self.projection_head(self.backbone(x))


def _views(run):
    generator = _generator(run)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return [(x + 0.5 * torch.randn(ROWS, WIDTH, generator=generator)).to(run.dtype)
            for _ in range(2)]


def whole_lightly(run, loss="NTXentLoss"):
    import lightly.loss

    model = made(Projected, run.seed, run.dtype)
    a, b = _views(run)
    getattr(lightly.loss, loss)()(model(a), model(b)).backward()
    return gradients(model)


def lightly_loss(run, loss="NTXentLoss", mistake=None):
    import lightly.loss

    model = made(Projected, run.seed, run.dtype)
    wrapped = DistributedDataParallel(model)
    criterion = getattr(lightly.loss, loss)(gather_distributed=mistake != "not gathered")
    a, b = _own(run, *_views(run))
    za, zb = wrapped(a), wrapped(b)
    if mistake == "second view detached":
        zb = zb.detach()
    criterion(za, zb).backward()
    return gradients(model)


# --- pytorch-metric-learning


def _labelled(run):
    generator = _generator(run)
    x = torch.randn(ROWS, WIDTH, generator=generator).to(run.dtype)
    return x, torch.randint(CLASSES, (ROWS,), generator=generator)


def whole_metric(run):
    from pytorch_metric_learning import losses

    model = made(Projected, run.seed, run.dtype)
    x, labels = _labelled(run)
    losses.SupConLoss(temperature=0.5)(model(x), labels).backward()
    return gradients(model)


def metric(run, mistake=None):
    import torch.distributed as dist
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    model = made(Projected, run.seed, run.dtype)
    by_hand = mistake == "summed by hand"
    wrapped = model if by_hand else DistributedDataParallel(model)
    criterion = DistributedLossWrapper(losses.SupConLoss(temperature=0.5),
                                       efficient=mistake == "efficient")
    x, labels = _own(run, *_labelled(run))
    if mistake == "labels counted from 0 on each rank":
        labels = labels.unique(return_inverse=True)[1]
    criterion(wrapped(x), labels).backward()
    if by_hand:
        for p in model.parameters():
            dist.all_reduce(p.grad)
    return gradients(model)
