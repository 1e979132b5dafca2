"""Mistakes of one more hand, planted in steps that the reports were not improved on (sequences.py, contrasts.py, parallel_layers.py,
stages.py), and right variants. As in planted.py, where each is and what it is was written down before check_step was asked."""

import functools

from catalogue import Step
from contrasts import clip_full, simclr, whole_clip_full, whole_simclr
from parallel_layers import dtensor, hsdp, megatron_sp, whole_clipped
from planted import _SUM, PLANTED as FORMER, Planted
from sequences import ring, ulysses, whole_decoder, zigzag
from stages import moe, one_f_one_b, whole_moe, whole_net

WORLD = 4


def _cases(function, single, cases):
    found = {}
    for mistake, (stage, cause, names, place) in cases.items():
        step = Step(functools.partial(function, mistake=mistake), single, (WORLD,))
        found[f"{function.__name__.replace('_', ' ')}: {mistake}"] = Planted(step, stage, cause, names, place)
    return found


NO = "(?!)"
PLANTED = {
    **_cases(ring, whole_decoder, {
        "sums of exponentials forgotten": ("forward", "blocks of the ring are merged as a plain mean", NO, r"departs in that of blocks.0.attention.wo[\s\S]*RingAttention in"),
        "the future is seen": ("forward", "blocks of later ranks are attended to", NO, r"departs in that of blocks.0.attention.wo[\s\S]*RingAttention in"),
        "softmax's own term forgotten": ("backward", "delta is missing in the ring's backward", NO, r"departs at blocks.1.attention.w[qk]\b[\s\S]*RingAttention in"),
        "scale forgotten in backward": ("backward", "1/sqrt(d) is missing in the ring's backward", r"2\.449 times", r"departs at blocks.1.attention.w[qk]\b[\s\S]*RingAttention in"),
        "own block alone": ("backward", "the ring's backward takes the own keys alone", NO, r"departs at blocks.1.attention.w[qkv]\b[\s\S]*RingAttention in"),
        "one turn too few": ("backward", "dk and dv end at the next rank", NO, r"departs at blocks.1.attention.w[kv]\b[\s\S]*RingAttention in"),
        "sum over the ranks of means": ("after", "means of the ranks are added up", "4 times the reference", NO),
        "positions not reduced": ("after", "the positions' gradient is not reduced", rf"position.weight *{_SUM}|{_SUM}[^.]*position|position.weight *has only each rank.s own slice[^.]*needs a sum", NO),
        "averaged as data parallel": ("after", "averaged though the loss is divided already", "1/4 of the reference", NO),
    }),
    **_cases(zigzag, whole_decoder, {
        "the others' keys have no gradient": ("backward", "gathered without autograd, the own slot put in", NO, r"departs at blocks.1.attention.w[kv]\b[\s\S]*allgather in"),
        "keys in the order of the ranks": ("forward", "the mask takes the keys to be in the order of the sequence", NO, r"departs in that of blocks.0.attention.wo"),
        "labels of a contiguous shard": ("loss", "labels are cut otherwise than tokens", NO, r"lm_head"),
        "labels shifted in each chunk": ("loss", "labels are shifted within chunks, whose last tokens have none", r"do(es)? not count|no gradient at", r"lm_head"),
        "positions of a contiguous shard": ("forward", "positions are those of a contiguous shard", NO, r"in the output of position|in that of position|in that of blocks.0.input_norm"),
    }),
    **_cases(ulysses, whole_decoder, {
        "the world's mean in backward": ("backward", "the all-to-all of the keys averages in backward", r"0\.5 times", r"departs at blocks.1.attention.wk[\s\S]*SwapHeadsAndSequence in"),
        "same direction in backward": ("backward", "the keys' gradients come back to other heads", NO, r"departs at blocks.1.attention.wk[\s\S]*SwapHeadsAndSequence in"),
        "heads come back in another order": ("forward", "positions are flipped after the exchange", NO, r"departs in that of blocks.0.attention.wo"),
        "positions of the first half": ("forward", "positions begin at 0 on both sp ranks", NO, r"in the output of position|in that of position|in that of blocks.0.input_norm"),
        "loss times sp": ("after", "the loss is multiplied by sp", "2 times the reference", NO),
        "reduced over dp alone": ("after", "averaged over dp, not over sp", r"needs the average over (ranks 0, 1|sp|.*ranks 0, 1)|needs .*sp", NO),
        "clipped by each rank before": ("after", "each rank clips to another norm", r"clip_grad_norm_ in", NO),
    }),
    **_cases(simclr, whole_simclr, {
        "batch norm of each rank": ("forward", "the batch norm sees the own rows alone", NO, r"backbone.1"),
        "moments not summed in backward": ("backward", "the moments' gradient is not summed over the ranks", NO, r"departs at backbone.0[\s\S]*BatchMoments in"),
        "moments averaged in backward": ("backward", "the moments' gradient is averaged over the ranks", NO, r"departs at backbone.0[\s\S]*BatchMoments in"),
        "one view twice": ("forward", "both views are the same", r"rows [\d, -]+ of 48 are computed by no rank", r"backbone.0|at once"),
        "own gradient of the gather": ("loss", "the gather's backward keeps the own gradient", NO, r"GatherOwnGradient in"),
        "gather without gradient": ("loss", "the gathered features are detached", NO, r"GatherWithGradient in"),
        "rows of rank 0 as positives": ("loss", "labels and masks begin at 0 on each rank", NO, r"the output of (projector.2|\(Encoder\))"),
        "views added": ("loss", "the two views' losses are added, not averaged", "2 times the reference", r"projector.2"),
        "negatives of the own rank": ("loss", "no gather: negatives are the own rank's", NO, r"projector.2"),
    }),
    **_cases(clip_full, whole_clip_full, {
        "text features not gathered with gradient": ("loss", "the texts have no gradient", r"no gradient|zero", r"textual.3[\s\S]*allgather"),
        "own features in place, full loss": ("loss", "own features alone have a gradient in a loss of all rows", "1/4 of the reference", r"allgather|all_gather|AllGather"),
        "scale detached": ("loss", "the temperature is detached", r"logit_scale *(zero|no gradient|has no gradient)", NO),
        "text in another order": ("loss", "the texts are gathered in another order", NO, r"AllGather|all_gather|allgather|visual.2|textual.3"),
        "loss divided by the ranks": ("loss", "the loss is divided by the ranks, and DDP averages", "1/4 of the reference", NO),
    }),
    **_cases(megatron_sp, whole_decoder, {
        "split instead of reduce-scatter": ("backward", "the gather's backward splits and does not add up", NO, r"departs at (norm|blocks.1.post_norm|blocks.1)\b[\s\S]*GatherFromSequence in"),
        "reduce-scatter's backward divides": ("backward", "the reduce-scatter's backward divides by tp", r"0\.5 times", r"departs at blocks.1[\s\S]*ReduceScatterToSequence in"),
        "scatter without gather": ("backward", "the scatter's backward pads with zeros", r"needs a sum over", r"position"),
        "bias before the reduction": ("forward", "the row-parallel bias is added on each rank", NO, r"departs in that of blocks.0.down[\s\S]*ReduceScatterToSequence in"),
        "softmax over the own shard": ("loss", "the parallel cross-entropy's backward normalises by the own shard", NO, r"lm_head[\s\S]*ParallelCrossEntropy in"),
        "targets of others not masked": ("loss", "the parallel cross-entropy's backward subtracts 1 of other ranks' targets", NO, r"lm_head[\s\S]*ParallelCrossEntropy in"),
        "down's bias forgotten": ("after", "the bias after the reduce-scatter is not summed over tp", rf"{_SUM}[\s\S]*down.bias|down.bias[\s\S]*{_SUM}", NO),
        "norms forgotten": ("after", "norms under sequence parallelism are not summed over tp", rf"{_SUM}[\s\S]*norm", NO),
        "last norm forgotten": ("after", "the last norm is not summed over tp", rf"norm.weight *{_SUM}", NO),
        "norms averaged over tp": ("after", "norms under sequence parallelism are averaged over tp", r"1/2 of the reference", NO),
        "position summed, too": ("after", "a whole gradient is summed over tp", r"position.weight *2 times the reference", NO),
        "not divided by dp": ("after", "summed over dp, not averaged", "2 times the reference", NO),
    }),
    **_cases(megatron_sp, whole_clipped, {
        "clipped by the own pieces": ("after", "each rank clips by the norm of its own pieces", r"norms? of (its|their|the ranks'|the rank's) own", NO),
    }),
    **_cases(dtensor, whole_decoder, {
        "rows of its own after to_local": ("loss", "to_local of a replicated tensor whose gradient is a share", NO, r"lm_head|norm"),
        "gradient declared partial": ("loss", "the gradient of a replicated loss is declared partial", "2 times the reference", r"lm_head"),
        "vocabulary of its own": ("loss", "each rank's softmax is over its own part of the vocabulary", NO, r"lm_head"),
        "norm's gradient doubled by a hook": ("after", "the post norms' gradients are doubled", "2 times the reference", NO),
    }),
    **_cases(hsdp, whole_decoder, {
        "reduced in bfloat16": ("after", "gradients are reduced in bfloat16", r"bfloat16|precision|rounding", NO),
        "replicas have the same data": ("after", "both replicas compute the same rows", r"rows [\d, -]+ of 4 are computed by no rank", NO),
        "accumulated without sync at the end": ("after", "gradients are never synchronised", r"no gradient|missing|None", NO),
        "block 1 without all-reduce": ("after", "block 1 is not all-reduced over the replicas", r"needs .* over dp_replicate[\s\S]*blocks.1|set_requires_all_reduce", NO),
        "block 0 divides by the replicas alone": ("after", "block 0's divide factor is 2, not 4", r"2 times the reference", NO),
    }),
    **_cases(one_f_one_b, whole_net, {
        "labels of micro-batches 2 and 3 swapped": ("loss", "two micro-batches' labels are swapped", NO, r"classifier"),
        "stage 2's input without gradient": ("backward", "stage 2's input does not require grad: earlier stages get zeros", r"zero|no gradient", r"departs at stages.1"),
        "last stage divides twice": ("loss", "the loss is divided by the micro-batches twice", r"1/4 of the reference|0\.25 times", NO),
        "not divided by the micro-batches": ("loss", "the loss is not divided by the micro-batches", "4 times the reference", NO),
        "stage 1 goes back through the newest": ("backward", "stage 1 goes back through another micro-batch than the cotangent is of", NO, r"departs at stages.0|departs at stages.1"),
        "stage 1 zeroes after the first": ("after", "stage 1 zeroes its gradient after the first micro-batch", r"does not count: .*micro-batch 1\b", NO),
        "stage 3 sends half": ("backward", "the last stage sends half of its cotangent", r"1/2 of the reference", r"departs at stages.2"),
    }),
    **_cases(moe, whole_moe, {
        "dispatch averages in backward": ("backward", "the dispatch's backward averages", NO, r"departs at moe.norm[\s\S]*AllToAll in"),
        "combine keeps the own tokens alone": ("backward", "the combine's backward drops other ranks' tokens", NO, r"departs at moe.experts.\d.w2[\s\S]*AllToAll in"),
        "weights of the router detached": ("backward", "the router's weights have no gradient", r"term of the loss|no gradient|share", r"departs at moe.gate"),
        "weights made to add up to 1": ("forward", "the router's weights are normalised", NO, r"departs in that of leave"),
        "combined in the order of the experts": ("forward", "what comes back is combined in another order", NO, r"departs in that of leave[\s\S]*AllToAll in"),
        "dropped by capacity": ("forward", "some tokens are dropped", NO, r"departs in that of leave"),
        "balance times the ranks": ("loss", "the balancing loss is multiplied by the ranks", r"term", r"departs at moe.gate"),
        "experts not divided": ("after", "the experts' gradients are not divided by the ranks", r"experts[\s\S]*4 times the reference|4 times the reference[\s\S]*experts", NO),
        "experts reduced like the rest": ("after", "each rank's other expert is all-reduced with the rest", r"experts", NO),
        "gate taken for an expert": ("after", "the gate is not reduced", rf"gate.weight *{_SUM}", NO),
    }),
}

RIGHT = {
    "ring": Step(ring, whole_decoder, (2, 4)),
    "zigzag": Step(zigzag, whole_decoder, (2, 4)),
    "Ulysses on dp and sp": Step(ulysses, whole_decoder, (4,)),
    "SimCLR": Step(simclr, whole_simclr, (2, 4)),
    "CLIP, all rows on each rank": Step(clip_full, whole_clip_full, (2, 4)),
    "Megatron with sequence parallelism": Step(megatron_sp, whole_decoder, (2, 4)),
    "DTensor and FSDP2": Step(dtensor, whole_decoder, (4,)),
    "DTensor, gradient declared": Step(functools.partial(dtensor, mistake="rows of its own, declared"), whole_decoder, (4,)),
    "HSDP": Step(hsdp, whole_decoder, (4,)),
    "pipeline, one forward and one backward": Step(one_f_one_b, whole_net, (4,)),
    "experts by counts": Step(moe, whole_moe, (4,)),
}
