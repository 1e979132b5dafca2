"""Finds parameters that are trained on some ranks and frozen on others, where the loss depends on
their copies, too."""

from ..words import ranks_text, some
from .running import union
from .variables import digest, local_of, matches, plain

_MOVED = 1e-2  # Values move by this, relatively.
_FEW = 8  # Up to so many parameters are moved one by one.
_SEEN = 1e-6  # A change of the loss by this, relatively, is one.


def half_frozen(runs, known, base, pieces):
    """Returns text on those that are equal on all these ranks, or "". Names that match `pieces` are
    left out. All ranks call it; base is the loss."""
    digests = {}
    for piece in known:
        if piece.digest and not piece.is_constant and not matches(piece.name, pieces):
            digests.setdefault(piece.name, set()).add(piece.digest)
    frozen = {plain(name): p for name, p in runs.model.named_parameters()
              if not p.requires_grad and plain(name) in digests.keys() - runs.parameters.keys()}
    own = {name: p for name, p in frozen.items() if digest(local_of(p)) in digests[name]}
    every = runs.gather(list(own))
    names = list(union(every))

    def matter(names):
        with runs.moved([own[name] for name in names if name in own], _MOVED):
            loss = runs.loss()
        return abs(loss - base) > _SEEN * max(abs(loss), abs(base))

    if not names or not matter(names):
        return ""
    if len(names) <= _FEW:
        names = [name for name in names if matter([name])] or names
    on = ranks_text([rank for rank, row in enumerate(every) if set(row) & set(names)])
    return (f"{some(names, 4)}: frozen on {on}, where the values are equal and the loss depends on"
            " them, too. If it is one parameter, name it in `copies`")
