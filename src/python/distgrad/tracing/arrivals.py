"""What backward gives to the parameters, before anything is reduced: whether it is wrong already
there."""

from .joining import noise_of, tolerance_of
from .joined import multiple_of
from ..step.variables import plain


def wrong_at_once(single, ranks, wrong, right):
    """Of the wrong parameters those of which the ranks' gradients do not add up to a multiple of
    the truth. `single`, `ranks`: what arrived, by name; names of right ones with which all is as it
    should be have to show how the ranks' add up here."""
    largest = max((float(g.abs().max()) for g in single.values() if g.numel()), default=0.0)
    totals = {name: total for name in [*wrong, *right]
              if (total := _total(single, ranks, name, largest)) is not None}
    multiples = {name: multiple_of(total, single[name]) for name, total in totals.items()}
    known = [multiples[name] for name in right if name in multiples and single[name].numel() > 1]
    if not known or None in known:
        return []
    return [name for name in wrong
            if name in totals and not _is_meant(multiples[name], single[name], len(ranks))]


def _total(single, ranks, name, largest):
    """None where not all ranks have all of it, or it is rounding beside the model's `largest`."""
    truth = single.get(name)
    if truth is None or float(truth.abs().max()) <= noise_of(truth.dtype) * largest or any(
            r.get(name) is None or r[name].shape != truth.shape for r in ranks):
        return None
    return sum(r[name].double() for r in ranks).to(truth.dtype)


def _is_meant(multiple, truth, world_size):
    """A single number is a multiple of any other: there the multiple has to be one that ranks
    make."""
    if multiple is None or truth.numel() > 1:
        return multiple is not None
    slack = tolerance_of(truth) + 1e-3
    sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
    return any(abs(multiple / n - 1) <= slack or abs(multiple * n - 1) <= slack for n in sizes)


def unreached(single, ranks, watched, wrong):
    """The wrong parameters that backward reaches on no rank, where it reaches most others.
    `watched`: those of which it would be known."""
    known = [name for name in single if any(name in r for r in ranks)]
    if 2 * len(known) < len(single):  # nothing is known of them, as under FSDP
        return []
    return [name for name in wrong if name in single and name not in known
            and name in watched and bool(single[name].any())]


def reached(ranks, names):
    """Of these parameters those that backward gave something on a rank."""
    arrived = {name for trace in ranks for name, backwards in trace.get("arrived_in", {}).items()
               if backwards}
    return [name for name in names if plain(name) in arrived]
