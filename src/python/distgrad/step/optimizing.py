"""Finds what optimizer.step() does to the copies of parameters."""

import copy
import dataclasses

import torch

from .measuring import dot, number, put_back
from .variables import digest, local_of

_DRIFT = 1e-3  # Copies differ if they are farther apart than this part of their move.


@dataclasses.dataclass
class Update:
    """Says of a piece's copies whether they stay copies, whether all of them move, and whether
    their gradients are equal bit for bit."""

    stay_copies: bool
    move: bool
    have_equal_gradients: bool


def updates(optimizer, runs, known):
    """Runs the step and optimizer.step(). Returns {key: Update} of the pieces in `known` that have
    equal copies before. Leaves optimizer and parameters as they were."""
    runs.run()
    before = {name: (x := local_of(p.detach()), x.clone()) for name, p in runs.parameters.items()}
    gradients = {name: g if g is None else digest(g) for name, g in runs.found_gradients().items()}
    put_state_back = _state_of(optimizer)
    try:
        runs.once(optimizer.step)
        runs.count -= 1  # It counts runs of the step.
        row = {name: (gradients[name], digest(x), *_move(name, x, value))
               for name, (x, value) in before.items()}
    finally:
        put_state_back()
        put_back(before)
    every, found = runs.gather(row), {}
    for piece in known:
        if piece.digest and len(piece.holders) > 1:
            rows = [every[rank][piece.name] for rank in piece.holders]
            differ = len({at for _, at, *_ in rows}) > 1 and any(
                abs(along - rows[0][2]) > _DRIFT * max(size, rows[0][3])
                for *_, along, size in rows)
            found[piece.key] = Update(not differ, all(size > 0 for *_, size in rows),
                                      len({g for g, *_ in rows}) == 1)
    return found


def _move(name, x, before):
    """Returns how far x moved along a random direction, the same on all ranks, and in all."""
    move = x.to(torch.complex128 if x.is_complex() else torch.float64) - before
    generator = torch.Generator().manual_seed(number(name, 0))
    along = torch.randn(x.shape, generator=generator, dtype=move.dtype).to(x.device)
    return dot(along, move), float(move.norm())


def _state_of(optimizer):
    """Returns a function that gives torch's optimizers, of which this is one or has some, the state
    that they have now."""
    states = [(o, [(p, copy.deepcopy(kept)) for p, kept in o.state.items()],
               [{key: kept for key, kept in group.items() if key != "params"}
                for group in o.param_groups])
              for o in (optimizer, *vars(optimizer).values())
              if isinstance(o, torch.optim.Optimizer)]

    def put_state_back():
        for o, state, groups in states:
            o.state.clear()
            o.state.update(state)
            for group, kept in zip(o.param_groups, groups):
                group.update(kept)

    return put_state_back
