"""Lists mistakes planted in steps, with where and what they are, as written down before asking
check_step.

`stage` is where the run departs from the right one: "forward", "loss" (its value or its backward),
"weights" (of the ranks' losses), "backward", "after". `cause` is for the reader. A report names a
mistake if the pattern `names` is in it. It places a mistake if the stage is right and its text on
where the mistake is, the line of the call or the module, has `place`.
"""

import dataclasses
import functools

from catalogue import TEXT, WHOLE, WRONG, Step
from families import (
    clip, context, data_parallel, routed, sharded, tied, vocabulary, whole_clip, whole_context,
    whole_data_parallel, whole_routed,
    whole_sharded, whole_tied, whole_vocabulary)
from steps import tensor_parallel


@dataclasses.dataclass
class Planted:
    step: Step
    stage: str
    cause: str
    names: str = "(?!)"  # This pattern matches nothing.
    place: str = "(?!)"


def _old(name, stage, cause, names="(?!)", place="(?!)"):
    return {name: Planted(WRONG[name], stage, cause, names, place)}


def _new(function, single, world, mistake, stage, cause, names="(?!)", place="(?!)", **more):
    step = Step(functools.partial(function, mistake=mistake, **more), single, (world,))
    name = f"{function.__name__.replace('_', ' ')}: {mistake}"
    return {name: Planted(step, stage, cause, names, place)}


_SUM = r"needs (a sum|the average) over"

PLANTED = {
    **_old("by_hand: not divided", "after", "summed, not averaged", "4 times the reference"),
    **_old("by_hand: divided twice", "after", "averaged twice", "1/4 of the reference"),
    **_old("by_hand: not reduced", "after", "no all-reduce", _SUM),
    **_old("by_hand: reduced twice", "after", "two all-reduces, one division",
           "4 times the reference",),
    **_old("by_hand: norm forgotten", "after", "the norms' gradients are not reduced",
           rf"{_SUM}[\s\S]*norm"),
    **_old("by_hand: a key forgotten", "after", "layers.1.k.weight is not reduced",
           rf"layers.1.k.weight *{_SUM}"),
    **_old("by_hand: not zeroed", "after", "gradients of an earlier pass are left", r"zero_grad"),
    **_old("by_hand: a rank's share missing", "after",
           "the last rank's gradients are zeroed before the all-reduce",
           r"added up over ranks 0, 1, 2[.;]"),
    **_old("by_hand: a rank is stale", "after", "rank 1 keeps its own gradients",
           r"wrong on rank 1, right on ranks 0, 2, 3"),
    **_old("by_hand: last micro-batch only", "after", "zero_grad between micro-batches",
           r"in backward pass 4 of 4 alone"),
    **_old("by_hand: micro-batches added", "after",
           "the loss is not divided by the number of micro-batches",
           r"the number of backward passes"),
    **_old("by_hand: tokens not counted", "weights", "each rank's mean is over its own tokens",
           r"in proportion to how many rows"),
    **_old("ddp: divided twice", "after", "the loss is divided by the ranks, and DDP averages",
           "1/4 of the reference"),
    **_old("fsdp: not divided", "after", "the loss is multiplied by the number of ranks",
           "4 times the reference"),
    **_old("megatron: identity backward", "backward",
           "the copy into the tensor parallel region does not sum in backward", _SUM,
           r"departs [^:]*and final[\s\S]*Copy in"),
    **_old("megatron: bias on every rank", "forward", "the bias is added once a rank",
           place=r"departs in that of head"),
    **_old("megatron: averaged over all ranks", "after",
           "pieces cut over tp are averaged over tp, too", place=r"allreduce in steps.py"),
    **_old("megatron: averaged over the wrong group", "after", "averaged over tp instead of dp",
           r"what it brought on each rank alone", r"allreduce in steps.py"),
    **_old("sequence_by_hand: norm not reduced", "after",
           "the norms are not reduced over the sequence's parts", rf"{_SUM}"),
    **_old("gathered: own slice", "loss", "the gather's backward keeps the own slice",
           place=r"Gather in steps.py"),
    **_old("gathered: detached", "loss", "the gather has no backward", place=r"Gather in steps.py"),
    **_old("gathered: labels without offset", "loss", "labels of rank 0 on all ranks",
           place=r"the loss departs"),
    **_old("centred: identity backward under averaging", "after",
           "averaged where the shares are to be summed", "1/4 of the reference"),
    **_old("centred: loss counted by every rank", "after", "every rank's loss is the whole one",
           "4 times the reference"),
    **_old("pipeline: every stage divides", "backward",
           "stage 0 divides by the micro-batches, as stage 1 does", "1/2 of the reference",
           r"departs [^:]*and norm"),
    **_old("experts: router not reduced", "backward", "the gates' copy does not sum in backward",
           _SUM, r"departs [^:]*and router[\s\S]*Copy in"),
    **_old("experts: experts averaged over all ranks", "after",
           "experts are divided by all ranks, not by dp", "1/2 of the reference"),

    **_new(data_parallel, whole_data_parallel, 4, "another initialisation", "forward",
           "rank 1 has other weights",
           place=r"departs at once, in the output of embedding, on rank 1"),
    **_new(data_parallel, whole_data_parallel, 4, "head not broadcast", "forward",
           "rank 1 has another head", place=r"departs in that of head, on rank 1"),
    **_new(data_parallel, whole_data_parallel, 4, "frozen by accident", "after",
           "final.bias does not require a gradient", r"final.bias *no gradient"),
    **_new(data_parallel, whole_data_parallel, 4, "hook that adds up", "after",
           "a communication hook that does not divide", "4 times the reference"),
    **_new(data_parallel, whole_data_parallel, 4, "hook in half the ranks", "after",
           "a communication hook that reduces within pairs",
           r"sum over ranks 0, 1 and the sum over ranks 2, 3 alone"),
    **_new(data_parallel, whole_data_parallel, 4, "the same data everywhere", "after",
           "every rank has rank 0's rows", r"rows 4-15 of 16 of the"),
    **_new(data_parallel, whole_data_parallel, 4, "a rank has another's data", "after",
           "rank 1 has rank 0's rows", r"rows 4-7 of 16 of the"),
    **_new(data_parallel, whole_data_parallel, 4, "targets not shifted", "loss",
           "the targets are the tokens themselves", place=r"the loss departs"),
    **_new(data_parallel, whole_data_parallel, 4, "a row dropped", "after",
           "the last row of each rank is left out",
           r"rows 3, 7, 11, 15 of 16 of the"),
    **_new(data_parallel, whole_data_parallel, 4, "synchronised at the first", "after",
           "DDP synchronises at the first micro-batch, not at the last",
           r"in backward pass 2 of 2 alone", micro_batches=2),
    **_new(data_parallel, whole_data_parallel, 4, "sum of the tokens", "loss",
           "the loss is a sum, not a mean", r"counts 0\.\d+ times as much as the rest"),
    **_new(data_parallel, whole_data_parallel, 4, "penalty on every rank", "loss",
           "a term of the loss is multiplied by the ranks", r"term"),
    **_new(data_parallel, whole_data_parallel, 4, "penalty in every micro-batch", "loss",
           "a term of the loss is not divided by the micro-batches", r"term", micro_batches=2),
    **_new(data_parallel, functools.partial(whole_data_parallel, clip=True), 4,
           "clipped before the reduction", "after", "each rank clips its own gradient",
           r"clip_grad_norm_ in families.py:\d+ saw the norms"),
    **_new(data_parallel, functools.partial(whole_data_parallel, clip=True), 4, "not clipped",
           "after", "the ranks do not clip", r"clipped in the single run alone"),
    **_new(data_parallel, whole_data_parallel, 4, "stopped early", "after",
           "only the first 20 parameters are reduced", _SUM),

    **_new(sharded, whole_sharded, 4, "norms ignored", "after",
           "FSDP ignores the norms, which nobody reduces", _SUM),
    **_new(sharded, whole_sharded, 4, "divided by the shards alone", "after",
           "the gradient divide factor is the number of shards", "2 times the reference"),
    **_new(sharded, whole_sharded, 4, "replicas not reduced", "after",
           "no all-reduce among replicas", r"needs (a sum|the average) over replicate",
           r"reduce_scatter_base in families.py"),
    **_new(sharded, whole_sharded, 4, "loss times the ranks", "after",
           "the loss is multiplied by the ranks", "4 times the reference"),
    **_new(sharded, functools.partial(whole_sharded, clip=True), 4, "clipped by the pieces",
           "after", "each rank clips by the norm of its pieces",
           r"clip_grad_norm_ in families.py:\d+ saw the norms"),

    **_new(tensor_parallel, WHOLE[TEXT], 4, "pieces averaged", "after",
           "all gradients are averaged over tp, those of pieces, too",
           r"the sum over (all ranks|the ranks of tp) of the pieces"),
    **_new(tensor_parallel, WHOLE[TEXT], 4, "a layer detached", "backward",
           "the second layer's input is detached", r"layers.0[\s\S]*no gradient on every rank",
           r"departs [^:]*and layers.0\b"),

    **_new(context, whole_context, 4, "own slice", "backward",
           "the gather of keys and values keeps the own slice in backward",
           place=r"GatherSequence in"),
    **_new(context, whole_context, 4, "averaged", "backward", "the gather's backward averages",
           place=r"GatherSequence in"),
    **_new(context, whole_context, 4, "another's slice", "backward",
           "the gather's backward gives the next rank's slice", place=r"GatherSequence in"),
    **_new(context, whole_context, 4, "gathered in reverse", "forward",
           "the keys are joined in reverse order", place=r"GatherSequence in"),
    **_new(context, whole_context, 4, "mask without offset", "forward",
           "the causal mask begins at 0 on each rank", place=r"departs in that of layers.0.o"),
    **_new(context, whole_context, 4, "positions without offset", "forward",
           "positions begin at 0 on each rank", place=r"departs in that of layers.0.norm1"),
    **_new(context, whole_context, 4, "own tokens", "after", "each rank divides by its own tokens",
           "4 times the reference"),
    **_new(context, whole_context, 4, "embedding not reduced", "after",
           "embedding.weight is not reduced", rf"embedding.weight *{_SUM}"),
    **_new(context, whole_context, 4, "mean over the ranks", "after",
           "averaged where shares are to be summed", "1/4 of the reference"),
    **{"ulysses: no exchange in backward": Planted(
        Step(functools.partial(context, ulysses=True, mistake="no exchange in backward"),
             whole_context, (4,)),
        "backward", "the all-to-all of the values has no exchange in backward",
        place=r"departs [^:]*and layers.1.v[\s\S]*Exchange in")},
    **{"ulysses: averaged": Planted(
        Step(functools.partial(context, ulysses=True, mistake="averaged"), whole_context, (4,)),
        "backward", "the all-to-all of the values averages in backward",
        place=r"departs [^:]*and layers.1.v[\s\S]*Exchange in")},

    **_new(vocabulary, whole_vocabulary, 4, "tokens of other ranks not masked", "forward",
           "the cut embedding does not mask other ranks' tokens",
           place=r"departs at once, in the output of \(Embedding\)|"
                 r"departs in that of layers.0.norm2|output of layers.0.norm2"),
    **_new(vocabulary, whole_vocabulary, 4, "summed both ways", "backward",
           "the row-parallel sum is summed in backward, too", r"4 times the reference",
           r"SumBothWays in"),
    **_new(vocabulary, whole_vocabulary, 4, "copied without a sum", "backward",
           "the copy before up does not sum in backward",
           place=r"departs [^:]*and layers.0.norm2[\s\S]*Copy in"),
    **_new(vocabulary, whole_vocabulary, 4, "bias times the ranks", "forward",
           "the row-parallel bias is added once a rank", place=r"departs in that of final"),
    **_new(vocabulary, whole_vocabulary, 4, "head's input not summed", "backward",
           "the copy before the head does not sum in backward",
           place=r"at final[\s\S]*Copy in|output of final[\s\S]*Copy in"),
    **_new(vocabulary, whole_vocabulary, 4, "reduced though replicated", "loss",
           "the gather of logits sums the gradients of a replicated loss", "4 times the reference",
           r"GatherLast in"),

    **_new(routed, whole_routed, 4, "no exchange in backward", "backward",
           "the rows' gradients do not come back",
           place=r"departs [^:]*and inner[\s\S]*ToExperts in"),
    **_new(routed, whole_routed, 4, "own rows alone", "backward",
           "the gradients of rows from other ranks are lost",
           place=r"departs [^:]*and inner[\s\S]*ToExperts in"),
    **_new(routed, whole_routed, 4, "gates detached", "backward", "no gradient for the router",
           r"no gradient", r"departs [^:]*and router"),
    **_new(routed, whole_routed, 4, "experts in another order", "forward",
           "the experts' rows come back in another order",
           place=r"departs in that of norm[\s\S]*ToExperts in"),
    **_new(routed, whole_routed, 4, "balance forgotten", "loss", "no balancing loss", r"term",
           r"departs [^:]*and router"),
    **_new(routed, whole_routed, 4, "balance detached", "loss",
           "the balancing loss has no gradient", r"term", r"departs [^:]*and router"),
    **_new(routed, whole_routed, 4, "experts not divided", "after",
           "experts' gradients are not divided by the ranks", r"experts *4 times the reference"),
    **_new(routed, whole_routed, 4, "router not reduced", "after",
           "the router's gradient is not reduced", rf"router[\s\S]*{_SUM}|{_SUM}[\s\S]*router"),
    **_new(routed, whole_routed, 4, "loss times the ranks", "after",
           "the loss is multiplied by the ranks", "4 times the reference"),

    **_new(tied, whole_tied, 2, "cotangents swapped", "backward",
           "two micro-batches' cotangents are swapped",
           place=r"departs [^:]*and layers.0[\s\S]*(send|recv) in"),
    **_new(tied, whole_tied, 2, "backward of the last alone", "backward",
           "stage 0 runs backward for the last micro-batch alone", r"micro-batch",
           r"departs [^:]*and layers.0"),
    **_new(tied, whole_tied, 2, "loss not divided", "after",
           "the loss is not divided by the micro-batches", "4 times the reference"),
    **_new(tied, whole_tied, 2, "the first cotangent always", "backward",
           "every micro-batch gets the first one's cotangent", place=r"departs [^:]*and layers.0"),
    **_new(tied, whole_tied, 2, "a cotangent of zeros", "backward",
           "the last micro-batch's cotangent is zero", place=r"departs [^:]*and layers.0"),
    **_new(tied, whole_tied, 2, "embedding not summed", "after",
           "the tied embedding is not summed over the stages", rf"embedding.weight *{_SUM}"),
    **_new(tied, whole_tied, 2, "embedding averaged", "after",
           "the tied embedding is averaged over the stages",
           r"embedding.weight *1/2 of the reference"),

    **_new(clip, whole_clip, 4, "own slice", "loss", "the gather's backward keeps the own slice",
           place=r"GatherRows in"),
    **_new(clip, whole_clip, 4, "averaged", "loss", "the gather's backward averages",
           place=r"GatherRows in"),
    **_new(clip, whole_clip, 4, "gathered under no_grad", "loss",
           "the others' rows have no gradient", place=r"GatherRows in"),
    **_new(clip, whole_clip, 4, "own negatives", "loss",
           "each rank's loss has its own rows as negatives", place=r"the loss departs"),
    **_new(clip, whole_clip, 4, "one side without offset", "loss",
           "one side's labels are those of rank 0", place=r"the loss departs"),
    **_new(clip, whole_clip, 4, "scale not reduced", "after",
           "the temperature's gradient is not reduced", rf"scale *{_SUM}"),
}
