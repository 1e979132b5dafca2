"""Lists mistakes by a third author, in steps like those of model libraries and training loops
(decoders.py, trainers.py, expert_layers.py), and right variants. The author wrote down where each
mistake is and what it is before asking check_step."""

import functools

from catalogue import Step
from decoders import sequence_lm, tensor_lm, whole_lm
from expert_layers import gathered_experts, whole_gathered_experts
from planted import _SUM, PLANTED as FORMER, Planted
from strangers import PLANTED as STRANGERS, RIGHT as STRANGERS_RIGHT
from trainers import (
    barlow, ddp_loop, fsdp_loop, planned, scheduled, siglip, whole_barlow, whole_classifier,
    whole_siglip)

WORLD, NO = 4, "(?!)"
CLIP = 0.05


def _cases(function, single, cases, world=WORLD):
    name = function.func.__name__ + " " + " ".join(map(str,
    function.keywords.values())) if isinstance(function, functools.partial) else function.__name__
    found = {}
    for mistake, (stage, cause, names, place) in cases.items():
        step = Step(functools.partial(function, mistake=mistake), single, (world,))
        found[f"{name.replace('_', ' ')}: {mistake}"] = Planted(step, stage, cause, names, place)
    return found


PLANTED = {
    **_cases(tensor_lm, whole_lm, {
        "gate not entered": ("backward",
                "gate_proj's input is not copied into the region: its gradient is not summed over "
                "tp",
                NO, r"departs [^:]*and layers.1.post_attention_layernorm"),
        "key's rows of the other half": ("forward", "layer 0's k_proj has the other tp rank's rows",
                r"other ranks' pieces", r"departs in that of layers.0.self_attn.k_proj"),
        "mean over own tokens": ("weights", "each dp rank divides by its own tokens",
                r"in proportion to how many rows", NO),
        "head norms not reduced over tp": ("after",
                "q_norm and k_norm see the own heads alone and are not summed over tp",
                rf"[qk]_norm.weight *{_SUM}|{_SUM}[\s\S]*[qk]_norm", NO),
        "biases taken for replicated": ("after",
                "q_proj.bias, which is cut over tp, is summed over tp",
                r"q_proj.bias.*(sum over|each rank holds)", NO),
        "summed over the world": ("after", "the layernorms, whole already, are summed over tp, too",
                r"layernorm.weight *2 times the reference|2 times the reference[\s\S]*layernorm",
                NO),
    }),
    **_cases(functools.partial(sequence_lm, way="ulysses"), whole_lm, {
        "keys are rotated as if at 0": ("forward", "the keys' positions begin at 0 on each rank",
                NO, r"departs in that of layers.0.self_attn.o_proj"),
        "kv heads in turn": ("forward", "heads are repeated in another order", NO,
                r"departs in that of layers.0.self_attn.o_proj"),
        "output's exchange runs forwards again": ("backward",
                "the all-to-all behind attention has no exchange in backward", NO,
                r"departs [^:]*and layers.1.self_attn.(v_proj|q_norm|k_norm)[\s\S]*SeqAllToAll in"),
    }),
    **_cases(functools.partial(sequence_lm, way="gathered"), whole_lm, {
        "values are averaged in backward": ("backward",
                "the gather of the values averages in backward", r"0\.25 times",
                r"departs [^:]*and layers.1.self_attn.v_proj[\s\S]*GatherKeys in"),
        "padding counted": ("after", "the loss is divided by all tokens, padding included",
                r"14/32|7/16|tokens", NO),
        "labels cut before they are shifted": ("loss", "the last label of each part is lost",
                r"do(es)? not count|no gradient at|another label", r"lm_head"),
    }),
    **_cases(functools.partial(sequence_lm, way="ring"), whole_lm, {
        "gradients travel the same way round": ("backward",
                "the shift's backward sends to the next rank, too", NO,
                r"departs [^:]*and layers.1.self_attn.(v_proj|k_norm)[\s\S]*Shift in"),
        "own block left out of the sum": ("backward",
                "the own block's part of the softmax's norm is detached", NO,
                r"departs [^:]*and layers.1.self_attn.(q_norm|k_norm)"),
        "embedding already summed": ("after", "the embedding's gradient is multiplied by the ranks",
                r"embed_tokens.weight *4 times the reference", NO),
    }),
    **_cases(ddp_loop, whole_classifier, {
        "head ignored by DDP": ("after", "the head is in DDP's list of parameters to ignore",
                rf"head[\s\S]*{_SUM}|head[\s\S]*not reduced", NO),
        "the sampler's padding": ("after", "the last rank has row 0 instead of its last one",
                r"rows? [\d, -]+ of 24 (are|is) computed by no rank", NO),
        "no_sync everywhere": ("after", "gradients are never reduced", _SUM, NO),
        "unequal micro-batches averaged": ("weights", "micro-batches of 4 and 2 rows weigh alike",
                r"in proportion to how many rows", NO),
        "head not unscaled": ("after", "the loss scale is left in the head's gradients",
                r"head[\s\S]*64 times|64 times[\s\S]*head", NO),
        "accumulated in place twice": ("after", "the head's gradients are doubled",
                r"2 times the reference[\s\S]*head", NO),
    }),
    **_cases(fsdp_loop, whole_classifier, {
        "second block left out": ("after", "body.1 is ignored by FSDP and nobody reduces it",
                rf"{_SUM}[\s\S]*body.1", NO),
        "synchronised but for the first": ("after",
                "the second micro-batch's gradients are not reduced",
                r"micro-batch 2|only the first|body|no gradient", NO),
    }),
    **_cases(functools.partial(fsdp_loop, clip=CLIP),
             functools.partial(whole_classifier, clip=CLIP), {
        "norm of the own shards": ("after", "each rank clips by the norm of its own shards",
                r"own (pieces|shards)", NO),
        "clipped in each micro-batch": ("after",
                "the first micro-batch's gradients are clipped, too", r"clip_grad_norm_", NO),
    }),
    **_cases(planned, whole_classifier, {
        "head's input taken for a shard's": ("loss",
                "the gradient of replicated logits is declared partial", r"2 times", r"head"),
        "block's output hooked": ("backward", "a hook halves the gradient of body.1.2's input",
                r"0\.5 times|1/2", r"departs [^:]*and body.1.[01]"),
        "averaged over tp": ("after", "averaged over tp instead of dp",
                r"what it brought on each rank alone|"
                r"needs the (average|sum) over .*dp",
                r"allreduce in trainers.py"),
    }),
    **_cases(scheduled, whole_classifier, {
        "blocks in the other order": ("forward", "stages 1 and 2 are swapped", NO,
                r"departs in that of body.[01]|at once, in the output of body"),
        "residual detached": ("backward", "stage 2 detaches the residual", NO,
                r"departs [^:]*and body.0|departs [^:]*and stem"),
        "sum of the rows": ("loss", "the criterion sums", r"6 times the reference", r"head"),
        "labels smoothed": ("loss", "the criterion smooths labels", NO, r"head"),
        "not scaled": ("after", "gradients are not divided by the micro-batches",
                r"4 times the reference", NO),
    }),
    **_cases(siglip, whole_siglip, {
        "gradients stay where the texts went": ("loss", "the exchange has no exchange in backward",
                NO, r"text.2[\s\S]*PassOn in"),
        "one turn too few": ("loss", "one rank's texts are never negatives", NO, r"(text|image).2"),
        "bias of the negatives detached": ("loss", "the bias has no gradient from negatives",
                r"logit_bias", NO),
        "positives in every block": ("loss", "other ranks' diagonal is taken for positives", NO,
                r"(text|image).2"),
    }),
    **_cases(barlow, whole_barlow, {
        "all-reduced in place": ("loss", "the all-reduce has no backward, and DDP averages",
                r"1/4 of the reference",
                r"(text|image).2[\s\S]*in_place_sum|allreduce in trainers.py"),
        "correlation of the own rows": ("loss", "the correlation is of the own rows alone", NO,
                r"(text|image).2"),
    }),
    **_cases(gathered_experts, whole_gathered_experts, {
        "gather keeps the own rows' gradient": ("backward",
                "the gather's backward drops other ranks' share", NO,
                r"departs [^:]*and (norm|moe.router)[\s\S]*GatherTokens in"),
        "sums' gradient padded": ("backward", "the scatter's backward pads with zeros", NO,
                r"departs [^:]*and moe.experts.\d[\s\S]*ScatterSums in"),
        "softmax over all experts": ("forward", "weights are not made to add up to 1", NO,
                r"departs in that of moe.router"),
        "gates detached in the gather": ("backward", "the gathered gates are detached",
                r"no gradient|term", r"departs [^:]*and moe.router"),
        "shared expert on gathered tokens": ("forward", "the shared expert is added up over ep", NO,
                r"departs in that of (moe\b|leave)"),
        "z-loss added up": ("loss", "the z-loss is a sum of the rows", r"term",
                r"departs [^:]*and moe.router"),
        "shared expert taken for a routed one": ("after",
                "the shared expert is not reduced over ep",
                rf"shared[\s\S]*{_SUM}|{_SUM}[\s\S]*shared", NO),
        "experts divided by their copies": ("after", "experts are divided by dp, not by the ranks",
                r"experts[\s\S]*2 times the reference|2 times the reference[\s\S]*experts", NO),
    }),
    **_cases(functools.partial(sequence_lm, way="gathered"), whole_lm, {
        "mean over own tokens": ("weights",
                "each rank divides by its own tokens, and keys are gathered",
                r"in proportion to how many rows", NO),
    }),
}

RIGHT = {
    **STRANGERS_RIGHT,
    "decoder on tp and dp": Step(tensor_lm, whole_lm, (2, 4)),
    "decoder, Ulysses": Step(functools.partial(sequence_lm, way="ulysses"), whole_lm, (2, 4)),
    "decoder, gathered keys": Step(functools.partial(sequence_lm, way="gathered"), whole_lm,
            (2, 4)),
    "decoder, ring": Step(functools.partial(sequence_lm, way="ring"), whole_lm, (2, 4)),
    "DDP, unequal micro-batches": Step(ddp_loop, whole_classifier, (2, 4)),
    "FSDP2, clipped": Step(functools.partial(fsdp_loop, clip=CLIP),
            functools.partial(whole_classifier, clip=CLIP), (4,)),
    "DTensor's plan": Step(planned, whole_classifier, (4,)),
    "torch's pipeline": Step(scheduled, whole_classifier, (4,)),
    "SigLIP": Step(siglip, whole_siglip, (2, 4)),
    "Barlow Twins": Step(barlow, whole_barlow, (2, 4)),
    "experts, gathered": Step(gathered_experts, whole_gathered_experts, (2, 4)),
}

ALL = {**FORMER, **STRANGERS, **PLANTED}

# check_step was asked about every third one only once, after the reports were finished.
UNSEEN = list(PLANTED)[1::3]
