"""What data the ranks compute with: passes over other data, rows of no rank, rows computed more
often than others."""

import torch

from ..words import ranks_text
from .joining import tolerance_of

_MOST_ROWS = 2048


def leave_out_other_passes(known, outputs, world_size):
    """(what is left of `known`, texts). Passes over data that the single run does not have, beside
    others that it has, say nothing of where forward departs. `outputs`: all of the single run's."""
    if not known:
        return known, []
    calls = {}
    passes = _calls(known, known[0].name)
    of_passes = {name for name in {one.name for one in known} if _calls(known, name) == passes}
    for piece in [p for one in known if one.name in of_passes for p in one.pieces]:
        calls.setdefault(piece.rank, {}).setdefault(piece.record["call"],
                                                    []).append(piece.place is not None)
    other = {(rank, call) for rank, found in calls.items() for call, right in found.items()
             if not all(right) and any(map(all, found.values()))}
    if not other or not _is_covered(
            {one.position: [p for p in one.pieces if p.key not in other] for one in known
             if one.name in of_passes}, outputs):
        return known, []
    for one in known:
        if one.name in of_passes:
            one.pieces = [p for p in one.pieces if p.key not in other]
    passes = ", ".join(
        sorted({f"pass {call + 1} of {len(calls[rank])}" for rank, call in other}))
    return [one for one in known if one.pieces], [
        f"{passes}{_on(sorted({rank for rank, _ in other}), world_size)} is over data that the"
        " single run does not have"]


def _calls(known, name):
    return {piece.key for one in known if one.name == name for piece in one.pieces}


def _on(ranks, world_size):
    return " on every rank" if len(ranks) == world_size else f" on {ranks_text(ranks)}"


def _is_covered(pieces, outputs):
    """Whether all of the outputs, by position, are in the pieces."""
    return all(found and all(p.place is not None for p in found)
               and covers(found, outputs[position].truth["value"])
               for position, found in pieces.items())


def covers(pieces, whole):
    """Whether each of the whole's elements is known to be in one of the pieces."""
    return bool((_counts(pieces, whole) >= 1).all())


def looked_at(known, world_size):
    """(texts, among how many the ranks share the data, 0 where they do not or not evenly), of the
    first module that they have."""
    first = next((one for one in known
                  if one.is_equal and not any(p.group for p in one.pieces)), None)
    if first is None or first.truth["value"].dim() < 1:
        return [], 0
    calls = [o for o in known
             if o.name == first.name and o.truth["index"] == first.truth["index"]]
    if len(calls) > 1:
        parts = {_parts(one.pieces, one.truth["value"]) if one.is_equal else 0 for one in calls}
        return [], parts.pop() if len(parts) == 1 else 0
    return texts_on(first, world_size), _parts(first.pieces, first.truth["value"])


def texts_on(one, world_size):
    """What is odd about the rows that the ranks have of an output."""
    whole, texts = one.truth["value"], []
    counts = _counts(one.pieces, whole)
    rows = counts.flatten(1) if whole.dim() > 1 else counts[:, None]
    if bool((none := (rows == 0).all(1)).any()):
        texts.append(f"{one.name}: rows {_runs(none.nonzero().flatten().tolist())} of {len(whole)}"
                     " are computed by no rank")
    for rank in range(world_size):
        own = [p for p in one.pieces if p.rank == rank]
        if len(own) > 1 and bool((_counts(own, whole) > 1).any()):
            texts.append(f"{one.name}: rank {rank} computes the same rows in several passes")
            break
    least = float(counts.min())
    if least >= 1 and float(counts.max()) > least:
        many = _runs((rows > least).any(1).nonzero().flatten().tolist())
        texts.append(f"{one.name}: rows {many} of {len(whole)} are computed more often than"
                     " the others")
    return texts


def _parts(pieces, whole):
    """Among how many ranks it is shared evenly; 0: it is not."""
    counts, ranks = _counts(pieces, whole), {p.rank for p in pieces}
    most = int(counts.max())
    shares = all(float(_counts([p for p in pieces if p.rank == rank], whole).sum()) < whole.numel()
                 for rank in ranks)
    return len(ranks) // most if most == float(counts.min()) > 0 and (shares or most == 1) else 0


def _counts(pieces, whole):
    """Of each element of the whole, how many of the pieces it is in; of rows that are alike, the
    mean, as nobody knows which is which."""
    counts = sum(piece.place.mask(whole).double() for piece in pieces)
    for dim, size in enumerate(whole.shape):
        if any(p.place.indices and len(p.place.indices[dim]) < size for p in pieces):
            alike = _alike(whole.movedim(dim, 0).reshape(size, -1))
            by_row = counts.movedim(dim, 0)
            sums = torch.zeros_like(by_row).index_add(0, alike, by_row)
            members = torch.bincount(alike, minlength=size).clamp(min=1)
            means = sums / members.reshape(-1, *[1] * (whole.dim() - 1))
            counts = means[alike].movedim(0, dim)
    return counts


def _alike(rows):
    """Of each row the first of those that are like it: rounding would not tell them apart. Of too
    many rows all are taken to be alike."""
    if len(rows) > _MOST_ROWS:
        return torch.zeros(len(rows), dtype=torch.long)
    x = rows.double()
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    first = (distances <= 2 * tolerance_of(rows) * x.norm(dim=1)).to(torch.uint8).argmax(1)
    for _ in range(2):
        first = first[first]
    return first


def _runs(numbers):
    """ "0-3, 8" """
    texts, i = [], 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        texts.append(str(numbers[i]) if i == j else f"{numbers[i]}-{numbers[j]}")
        i = j + 1
    return ", ".join(texts[:6]) + (", ..." if len(texts) > 6 else "")
