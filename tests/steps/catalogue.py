"""Lists RIGHT steps, and WRONG ones, which are the same with one planted mistake. Each name has a
Step: what every rank computes, what one process computes, and for how many ranks it is."""

import dataclasses
import functools
from typing import Callable

from families import (clip, context, data_parallel, routed, sharded, tied, vocabulary, whole_clip,
                      whole_context, whole_data_parallel, whole_routed, whole_sharded, whole_tied,
                      whole_vocabulary)
from models import Experts, Mlp, Transformer, rows, text
from steps import (by_hand, centred, ddp, experts, fsdp, gathered, masked_text, megatron, pipeline,
                   sequence_by_hand, tensor_parallel, whole, whole_centred, whole_contrastive,
                   whole_megatron)


@dataclasses.dataclass
class Step:
    parallel: Callable
    single: Callable
    worlds: tuple = (2, 4)


def _step(function, *arguments, single, worlds=(2, 4), **more):
    return Step(functools.partial(function, *arguments, **more), single, worlds)


ROWS, TEXT, MASKED = (Mlp, rows), (Transformer, text), (Transformer, masked_text)
WHOLE = {kind: functools.partial(whole, *kind) for kind in (ROWS, TEXT, MASKED)}

RIGHT = {
    "by hand, MLP": _step(by_hand, *ROWS, single=WHOLE[ROWS]),
    "by hand, transformer": _step(by_hand, *TEXT, single=WHOLE[TEXT]),
    "by hand, 2 micro-batches": _step(by_hand, *TEXT, single=WHOLE[TEXT], micro_batches=2),
    "by hand, loss in float32": _step(by_hand, *TEXT, single=WHOLE[TEXT], in_float32=True),
    "by hand, unequal numbers of tokens": _step(by_hand, *MASKED, single=WHOLE[MASKED]),
    "DDP, MLP": _step(ddp, *ROWS, single=WHOLE[ROWS]),
    "DDP, transformer, 4 micro-batches": _step(ddp, *TEXT, single=WHOLE[TEXT], micro_batches=4),
    "FSDP2, MLP": _step(fsdp, *ROWS, single=WHOLE[ROWS]),
    "FSDP2, transformer": _step(fsdp, *TEXT, single=WHOLE[TEXT]),
    "FSDP2, transformer, 2 micro-batches": _step(fsdp, *TEXT, single=WHOLE[TEXT], micro_batches=2),
    "tensor parallel": _step(tensor_parallel, single=WHOLE[TEXT]),
    "tensor and sequence parallel": _step(tensor_parallel, single=WHOLE[TEXT], sequence=True),
    "tensor parallel, FSDP2": _step(tensor_parallel, single=WHOLE[TEXT], shard=True, worlds=(4,)),
    "tensor and sequence parallel, FSDP2": _step(tensor_parallel, single=WHOLE[TEXT], sequence=True,
                                                 shard=True, worlds=(4,)),
    "tensor parallel by hand": _step(megatron, single=whole_megatron),
    "sequence parallel by hand": _step(sequence_by_hand, single=WHOLE[ROWS]),
    "contrastive, gathered": _step(gathered, single=whole_contrastive),
    "mean of the batch": _step(centred, single=whole_centred),
    "pipeline": _step(pipeline, single=WHOLE[ROWS]),
    "experts": _step(experts, single=functools.partial(whole, Experts, rows)),
    "DDP, penalty": _step(data_parallel, single=whole_data_parallel, micro_batches=2),
    "HSDP, clipped": _step(sharded, single=functools.partial(whole_sharded, clip=True), clip=True,
                           worlds=(4,)),
    "context parallel, gathered": _step(context, single=whole_context),
    "context parallel, Ulysses": _step(context, single=whole_context, ulysses=True),
    "vocabulary parallel": _step(vocabulary, single=whole_vocabulary),
    "routed experts": _step(routed, single=whole_routed, worlds=(4,)),
    "pipeline with a tied embedding": _step(tied, single=whole_tied, worlds=(2,)),
    "contrastive, with a temperature": _step(clip, single=whole_clip),
}


def _wrong(function, *arguments, single, of, worlds=(2, 4)):
    """Returns {name: Step} with one mistake each."""
    return {f"{function.__name__}: {m}": _step(function, *arguments, single=single, worlds=worlds,
                                               mistake=m, **more) for m, more in of.items()}


WRONG = {
    **_wrong(by_hand, *TEXT, single=WHOLE[TEXT],
             of={"not divided": {}, "divided twice": {}, "not reduced": {}, "reduced twice": {},
                 "norm forgotten": {}, "a key forgotten": {}, "not zeroed": {},
                 "a rank's share missing": {}, "a rank is stale": {},
                 "last micro-batch only": {"micro_batches": 4},
                 "micro-batches added": {"micro_batches": 4}}),
    **_wrong(by_hand, *MASKED, single=WHOLE[MASKED], of={"tokens not counted": {}}),
    "ddp: divided twice": _step(ddp, *ROWS, single=WHOLE[ROWS], scale=-1.0),
    "fsdp: not divided": _step(fsdp, *TEXT, single=WHOLE[TEXT], scale=1),
    **_wrong(megatron, single=whole_megatron,
             of={"identity backward": {}, "bias on every rank": {}, "averaged over all ranks": {},
                 "averaged over the wrong group": {}}),
    **_wrong(sequence_by_hand, single=WHOLE[ROWS], of={"norm not reduced": {}}),
    **_wrong(gathered, single=whole_contrastive,
             of={"own slice": {}, "detached": {}, "labels without offset": {}}),
    **_wrong(centred, single=whole_centred,
             of={"identity backward under averaging": {}, "loss counted by every rank": {}}),
    **_wrong(pipeline, single=WHOLE[ROWS], of={"every stage divides": {}}),
    **_wrong(experts, single=functools.partial(whole, Experts, rows),
             of={"router not reduced": {}, "experts averaged over all ranks": {}}),
}
