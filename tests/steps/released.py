"""Lists mistakes by a fourth author, in steps with released packages (released_losses.py,
released_models.py), and right variants. The author wrote down where and what each mistake is before
asking check_step. A step is left out if its package is missing."""

import functools
import importlib.util

from catalogue import Step
from colleagues import ALL as FORMER, _cases
from planted import _SUM
from released_losses import (lightly_loss, metric, open_clip, open_clip_full, ranking,
                             whole_lightly, whole_metric, whole_open_clip, whole_ranking)
from released_models import (accelerated, expert_parallel, moe, pipelined, sharded_llama,
                             tied_llama, ulysses_reader, whole_text, whole_ulysses_reader)

NO = "(?!)"
whole_moe = functools.partial(whole_text, kind=moe)
whole_tied = functools.partial(whole_text, kind=tied_llama)
ntxent, barlow = (functools.partial(lightly_loss, loss=loss)
                  for loss in ("NTXentLoss", "BarlowTwinsLoss"))
whole_ntxent, whole_barlow = (functools.partial(whole_lightly, loss=loss)
                              for loss in ("NTXentLoss", "BarlowTwinsLoss"))

# Each step imports these modules of the packages that it needs.
NEEDS = {
    "open clip": ["open_clip.loss", "open_clip.model"],
    "open clip full": ["open_clip.loss", "open_clip.model"],
    "ranking": ["sentence_transformers.sentence_transformer.losses"],
    "lightly loss NTXentLoss": ["lightly.loss"], "lightly loss BarlowTwinsLoss": ["lightly.loss"],
    "metric": ["pytorch_metric_learning.losses", "pytorch_metric_learning.utils.distributed"],
    "expert parallel": ["transformers.models.qwen3_moe.modeling_qwen3_moe"],
    "accelerated": ["accelerate", "transformers.models.llama.modeling_llama"],
    "sharded llama": ["transformers.models.llama.modeling_llama"],
    "pipelined": ["transformers.models.llama.modeling_llama"],
    "ulysses reader": ["yunchang.ulysses.attn_layer"],
}

PLANTED = {
    **_cases(open_clip, whole_open_clip, {
        "gather without gradient": ("loss", "other ranks' losses give the own features nothing",
                NO, r"all_?gather in loss.py"),
        "rank left at 0": ("loss", "the labels are rank 0's on each rank", NO,
                r"all_?gather in loss.py"),
        "negatives of the own rank": ("loss", "ClipLoss thinks that there is one rank", NO,
                r"output of \(CLIP\)"),
        "text tower locked": ("after", "the text tower has no gradient", r"no gradient", NO),
        "scale of another step": ("parameters", "the scale is detached",
                r"logit_scale *no gradient|no gradient reaches logit_scale", r"logit_scale"),
    }),
    **_cases(open_clip_full, whole_open_clip, {
        "own features alone have a gradient": ("loss", "gathered features have no gradient, and"
                " DDP averages", r"1/4 of the reference", r"all_?gather in loss.py"),
    }),
    **_cases(ranking, whole_ranking, {
        "not gathered": ("loss", "candidates of the own rank alone", NO, r"\(?out|Sentences"),
        "times the ranks": ("factor", "the loss is multiplied by the ranks",
                r"4 times the reference", NO),
        "negatives without gradient": ("backward", "the third column is embedded in no_grad",
                r"no gradient|without a gradient", r"out|Sentences"),
    }),
    **_cases(ntxent, whole_ntxent, {
        "not gathered": ("loss", "negatives of the own rank alone", NO, r"projection_head"),
        "second view detached": ("loss", "the second view has no gradient",
                r"no gradient", r"projection_head"),
    }),
    **_cases(barlow, whole_barlow, {
        "as it is": ("loss", "features are normalised by the own rank's rows", NO,
                r"projection_head"),
    }),
    **_cases(metric, whole_metric, {
        "efficient": ("loss", "other ranks' losses give the own embeddings nothing", NO,
                r"distributed.py|projection_head"),
        "summed by hand": ("after", "the wrapper multiplies by the ranks for DDP's average,"
                " and gradients are added up", r"4 times the reference", NO),
        "labels counted from 0 on each rank": ("loss", "labels do not go together over the ranks",
                NO, r"distributed.py|projection_head"),
    }),
    **_cases(expert_parallel, whole_moe, {
        "tokens not entered": ("backward", "the gradient of the experts' input is not summed", NO,
                r"departs [^:]*and model.layers.1.post_attention_layernorm"),
        "routing weights not entered": ("backward", "the weights' gradient is not summed", NO,
                r"departs [^:]*and model.layers.1.mlp.gate"),
        "neighbour's experts loaded": ("forward", "experts of the other rank",
                r"other ranks' pieces", r"departs in that of model.layers.0.mlp.experts"),
        "balance loss on the ranks alone": ("loss", "the single run has no balance loss",
                r"term", r"mlp.gate"),
        "experts divided by ep": ("after", "experts are averaged over ep",
                r"1/2 of the reference[\s\S]*experts|experts.* 1/2 of the reference", NO),
    }),
    **_cases(accelerated, whole_text, {
        "items of the own rank": ("weights", "each rank divides by its own items",
                r"in proportion to how many rows", NO),
        "each micro-batch's mean": ("weights", "each micro-batch divides by its own items",
                r"in proportion to how many rows", NO),
        "divided by the steps, too": ("factor", "accelerate divides by the steps already",
                r"1/2 of the reference", NO),
        "synchronised at the first step": ("after", "the last micro-batch is not reduced",
                r"in backward pass 2 of 2 alone", NO),
        "zeroed in each step": ("after", "gradients are zeroed between micro-batches",
                r"in backward pass 2 of 2 alone", NO),
    }),
    **_cases(sharded_llama, whole_text, {
        "a layer's divide factor": ("after", "layer 0 is added up and not averaged",
                r"4 times the reference[\s\S]*layers.0", NO),
        "hook on the norms": ("after", "a hook halves the norms' gradients",
                r"1/2 of the reference[\s\S]*norm", NO),
        "hook that clips activations' gradients": ("backward", "layer 1's backward hook clips", NO,
                r"departs [^:]*and model.layers.0\b"),
    }),
    **_cases(pipelined, whole_tied, {
        "positions shifted in the second stage": ("forward", "the second stage's positions", NO,
                r"departs in that of model.(layers.1.self_attn.(q_proj|k_proj|o_proj)|rotary_emb)"
                r"|at once, in the output of model.rotary_emb"),
        "mean of each micro-batch": ("weights", "each micro-batch divides by its own tokens",
                r"in proportion to how many rows", NO),
        "tied weights not added up": ("after", "embedding and head have their own share each",
                rf"embed_tokens.weight *{_SUM}|{_SUM}[\s\S]*embed_tokens", NO),
    }),
    **_cases(ulysses_reader, whole_ulysses_reader, {
        "scatter and gather swapped": ("forward", "the exchange goes the other way round", NO,
                r"departs in that of (out|attention)"),
        "causal left out": ("forward", "attention looks ahead", NO,
                r"departs in that of (out|attention)"),
        "mean of the own tokens": ("weights", "each rank divides by its own tokens",
                r"in proportion to how many rows", NO),
        "reduced over dp alone": ("after", "a sequence's parts are not added up",
                rf"{_SUM} .*ranks 0, 1; ranks 2, 3|within ranks 0, 2 and", NO),
    }),
}

RIGHT = {
    "open_clip": Step(open_clip, whole_open_clip, (2, 4)),
    "open_clip, full loss": Step(open_clip_full, whole_open_clip, (2, 4)),
    "ranking loss": Step(ranking, whole_ranking, (2, 4)),
    "NTXent": Step(ntxent, whole_ntxent, (2, 4)),
    "metric learning": Step(metric, whole_metric, (2, 4)),
    "Qwen3-MoE, ep and dp": Step(expert_parallel, whole_moe, (2, 4)),
    "accelerate": Step(accelerated, whole_text, (2, 4)),
    "FSDP2 Llama": Step(sharded_llama, whole_text, (2, 4)),
    "pipelined Llama, tied": Step(pipelined, whole_tied, (2, 4)),
    "yunchang's Ulysses": Step(ulysses_reader, whole_ulysses_reader, (2, 4)),
}

ALL = {**FORMER, **PLANTED}

# check_step was asked about every third one only once, after the reports were finished.
UNSEEN = list(PLANTED)[1::3]


def modules(name):
    """Returns what the step of a mistake imports."""
    return NEEDS.get(name.partition(":")[0], [])


def missing(name):
    """Returns the packages that the step of a mistake needs and that are not here."""
    packages = dict.fromkeys(module.partition(".")[0] for module in modules(name))
    return [package for package in packages if importlib.util.find_spec(package) is None]
