"""Finds parameters that are trained on some ranks and frozen on others, where the loss depends on
their copies, too."""

import contextlib

import torch

from ..words import ranks_text, some
from .variables import digest, local_of, matches, plain

_MOVED = 1e-2  # Values move by this, relatively.
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
    every, found = runs.gather(list(own)), {}  # {name: [rank that has it frozen]}
    for name in dict.fromkeys(name for row in every for name in row):
        with _moved(runs, own.get(name)):
            loss = runs.loss()
        if abs(loss - base) > _SEEN * max(abs(loss), abs(base)):
            found[name] = [rank for rank, row in enumerate(every) if name in row]
    if not found:
        return ""
    on = ranks_text(sorted(set(sum(found.values(), []))))
    return (f"{some(list(found), 4)}: frozen on {on}, where it is equal and the loss depends on it,"
            " too. If it is one parameter, name it in `copies`")


def _moved(runs, p):
    if p is None:  # This rank has none that is frozen.
        return contextlib.nullcontext()
    values = local_of(p.detach())
    return runs.moved(p, values * (1 + _MOVED * torch.randn(values.shape).to(values)))
