"""Computes the chunk sizes along the call's dim that the user's function is given."""

from .collectives.traits import TRAITS


def chunk_sizes(call, x):
    """Returns the sizes of the chunks into which this rank cuts its operand, by rank of the
    group."""
    if call.splits is not None:
        return list(call.splits[call.group.rank if TRAITS[call.kind].shape == "exchanged" else 0])
    return [x.shape[call.dim or 0] // call.group.size] * call.group.size


def received_sizes(call, x):
    """Returns the sizes of the chunks that this rank receives in an all_to_all, by rank of the
    group."""
    if call.splits is not None:
        return [row[call.group.rank] for row in call.splits]
    return chunk_sizes(call, x)


def is_uneven(call):
    splits = call.splits or ()
    return any(size != splits[0][0] for row in splits for size in row)
