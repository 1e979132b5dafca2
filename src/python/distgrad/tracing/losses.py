"""How much each of the losses counts that the single run returned beside its gradients: by
sequence, by position, or by term."""

import torch

from .parts import Part
from .shares import meaning_of, weights_of

_MOST = 32
_SAME = 0.01  # weights


def parts_of_losses(losses, parameters, gradients):
    """[[Part]]: ways to cut the single run's gradients. `losses`: a dict of terms, or a tensor of
    unreduced losses."""
    if isinstance(losses, dict):
        ways = [{f"the term {name}": x for name, x in losses.items()}]
    elif isinstance(losses, torch.Tensor) and losses.dim():
        ways = [{f"{what} {i}": losses.select(dim, i) for i in range(losses.shape[dim])}
                for dim, what in enumerate(("loss" if losses.dim() == 1 else "sequence",
                                            "position")[:losses.dim()])
                if losses.shape[dim] <= _MOST]
    else:
        return []
    return [parts for way in ways if (parts := _parts(way, parameters, gradients))]


def _parts(losses, parameters, gradients):
    """Such that their sum is the single run's gradient; None where they are no parts of it."""
    parameters = {name: p for name, p in parameters.items() if gradients.get(name) is not None}
    parts = []
    for name, loss in losses.items():
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            continue
        try:
            found = torch.autograd.grad(loss.sum(), list(parameters.values()), retain_graph=True,
                                        allow_unused=True)
        except RuntimeError:  # a graph that can be gone through once only
            return None
        part = Part([], 0, int((loss != 0).sum()),
                    {n: None if g is None else g.detach().cpu().double()
                     for n, g in zip(parameters, found)}, name=name)
        parts += ([part] if any(g is not None and bool(g.any()) for g in part.gradients.values())
                  else [])
    truth = {name: (gradients[name].detach().cpu(), None) for name in parameters}
    counted = [None] * len(parts)
    for weights in weights_of(parts, [truth], list(parameters)) if len(parts) > 1 else []:
        counted = [x if c is None else c for c, x in zip(counted, weights.by_rank[0])]
    known = [c for c in counted if c is not None]
    if not known or not all(known) or (None in counted
                                       and max(known) - min(known) > _SAME * max(map(abs, known))):
        return None
    for part, weight in zip(parts, counted):
        part.gradients = {n: None if g is None else (weight or known[0]) * g
                          for n, g in part.gradients.items()}
    return parts


def meaning_of_losses(weights, parts):
    """Empty where the ranks' differ, or all count alike."""
    rows = list(weights.by_rank.values())
    known = [i for i, x in enumerate(rows[0]) if x is not None]
    most = max((abs(x) for row in rows for x in row if x is not None), default=0.0)
    if len(known) < 2 or any(abs(row[i] - rows[0][i]) > 2 * weights.precision * most for row in rows
                             for i in known):
        return ""
    return meaning_of([rows[0][i] for i in known], [parts[i] for i in known], weights.precision)
