"""The single run's outputs of modules, each beside what the ranks have of it."""

import dataclasses

import torch

from .joining import JUMPS, Place, groupings, off, place_of, tolerance_of


@dataclasses.dataclass
class Piece:
    """What one rank had of it in one call of the module. `place` is None where it is nowhere in the
    truth."""

    rank: int
    record: dict
    place: "Place | None" = None
    group: tuple = ()  # of a sum: the ranks that it goes over

    @property
    def gradient(self):
        return self.record["gradient"]

    @property
    def key(self):
        return (self.rank, self.record["call"])


@dataclasses.dataclass
class Joined:
    name: str
    position: int
    truth: dict
    pieces: list
    label: str = ""  # its name, and which of the module's outputs it is where there are several

    @property
    def is_equal(self):
        return bool(self.pieces) and all(piece.place is not None for piece in self.pieces)

    @property
    def error(self):
        """Of the piece that differs most, relative; infinite where it is nowhere in the truth."""
        return max((p.place.error if p.place else float("inf") for p in self.pieces), default=0.0)

    @property
    def jump(self):
        """An error that may be no rounding."""
        return max(JUMPS.get(x.dtype, 0.03) for x in [self.truth["value"],
                                                      *(p.record["value"] for p in self.pieces)])

    @property
    def differs(self):
        return any(piece.place is None for piece in self.pieces)


def joined(single, ranks):
    """`single`: its outputs in the order of time; `ranks`: by rank, theirs."""
    by_name = {}
    for position, truth in enumerate(single):
        by_name.setdefault((truth["module"], truth["index"]),
                           []).append(Joined(truth["module"], position, truth, []))
    for rank, outputs in enumerate(ranks):
        for record in outputs:
            candidates = by_name.get((record["module"], record["index"]))
            if candidates:
                _assign(Piece(rank, record), candidates)
    for candidates in by_name.values():
        for one in candidates:
            if one.differs:
                _look_for_sums(one, len(ranks))
    several = {name for name, index in by_name if index > 0}
    for (name, index), candidates in by_name.items():
        for one in candidates:
            details = [f"output {index + 1}"] if name in several else []
            if len(candidates) > 1:
                details.append(f"call {one.truth['call'] + 1} of {len(candidates)}")
            one.label = f"{name} ({', '.join(details)})" if details else name
    return sorted((one for candidates in by_name.values() for one in candidates),
                  key=lambda one: one.position)


def _assign(piece, candidates):
    own = [c for c in candidates if c.truth["call"] == piece.record["call"]] or candidates[:1]
    for candidate in own + [c for c in candidates if c not in own]:
        # Of a DTensor that has a part of the data alone it is not known where that part lies.
        is_whole = piece.record.get("whole") in (None, tuple(candidate.truth["value"].shape))
        piece.place = place_of(piece.record["value"], piece.record["at"] if is_whole else None,
                               candidate.truth["value"])
        if piece.place is not None:
            candidate.pieces.append(piece)
            return
    for part, candidate in _parts_of_calls(piece, candidates) or [(piece, own[0])]:
        candidate.pieces.append(part)


def _parts_of_calls(piece, candidates):
    """[(part, its call)] of a piece whose rows the single run has in several calls, a run of them
    in each, as of two views in one pass; none of any other."""
    value, wholes = piece.record["value"], [c.truth["value"] for c in candidates]
    if len(wholes) < 2 or piece.record["at"] is not None or value.dim() < 1 or any(
            whole.shape[1:] != wholes[0].shape[1:] for whole in wholes):
        return []
    place = place_of(value, None, torch.cat(wholes))
    if place is None:
        return []
    ends = torch.tensor([len(whole) for whole in wholes]).cumsum(0)
    calls = torch.bucketize(place.indices[0], ends, right=True)
    calls, counts = (x.tolist() for x in calls.unique_consecutive(return_counts=True))
    if len(set(calls)) < len(calls):
        return []
    found = [(part, candidates[call]) for part, call in zip(_cut(piece, counts), calls)]
    for part, candidate in found:
        part.place = place_of(part.record["value"], None, candidate.truth["value"])
    return found if all(part.place is not None for part, _ in found) else []


def _cut(piece, counts):
    """Into runs of so many rows each."""
    record = piece.record
    gradients = ([None] * len(counts) if record["gradient"] is None
                 else record["gradient"].split(counts))
    return [Piece(piece.rank, {**record, "value": value, "gradient": gradient})
            for value, gradient in zip(record["value"].split(counts), gradients)]


def _look_for_sums(one, world_size):
    """Of what no rank has, such as the output of a layer that is cut along its input's features,
    the ranks' sum may be right."""
    calls = {}
    for piece in one.pieces:
        calls.setdefault(piece.record["call"], {})[piece.rank] = piece
    for groups in groupings(world_size):
        found = []
        for by_rank in calls.values():
            found += [_place_of_sum([by_rank.get(rank) for rank in ranks], one.truth["value"])
                      for ranks in groups]
        if found and all(place is not None for _, place in found):
            for pieces, place in found:
                for piece in pieces:
                    piece.place, piece.group = place, tuple(p.rank for p in pieces)
            return


def _place_of_sum(pieces, whole):
    if any(piece is None for piece in pieces) or len({piece.record["value"].shape
                                                      for piece in pieces}) > 1:
        return pieces, None
    first = pieces[0].record["value"]
    if all(off(piece.record["value"], first) <= tolerance_of(first) for piece in pieces):
        return pieces, None  # copies; a sum of them is a factor
    total = sum(piece.record["value"].double() for piece in pieces).to(first.dtype)
    return pieces, place_of(total, None, whole)


# --- Gradients


@dataclasses.dataclass
class Backward:
    """What the ranks' gradients of an output are beside the truth's.

    kind: "own" (each piece's is a multiple of its part of the truth's), "shares" (those of ranks
        that have the same part sum up to a multiple), "wrong", "missing", or "unknown". `factors`:
        the multiples by (rank, call), or of shares by the part."""

    kind: str
    factors: dict = dataclasses.field(default_factory=dict)
    ranks: tuple = ()  # that are wrong


def backward_of(one):
    truth = one.truth["gradient"]
    if truth is None or not bool(truth.any()) or not one.is_equal:
        return Backward("unknown")
    sure = [p for p in one.pieces if bool(p.place.sure(p.place.of(truth)).any())]
    if not sure:
        return Backward("unknown")
    without = sorted({p.rank for p in sure if p.gradient is None})
    if without:
        return Backward("missing", ranks=tuple(without))
    factors = {p.key: multiple_of(p.place.sure(p.gradient), p.place.sure(p.place.of(truth)))
               for p in sure}
    if all(f is not None for f in factors.values()):
        return Backward("own", factors)
    parts = {}
    for piece in sure:
        parts.setdefault((piece.record["call"], piece.place.key), []).append(piece)
    shared = {}
    for key, pieces in parts.items():
        place, total = pieces[0].place, sum(p.gradient.double() for p in pieces)
        shared[key] = multiple_of(place.sure(total.to(pieces[0].gradient.dtype)),
                                  place.sure(place.of(truth)))
    if all(len(pieces) > 1 for pieces in parts.values()) and all(
            f is not None for f in shared.values()):
        return Backward("shares", shared)
    return Backward("wrong",
                    ranks=tuple(sorted({key[0] for key, f in factors.items() if f is None})))


def multiple_of(gradient, truth):
    """Of which multiple of the truth it is; None: of none."""
    g, t = gradient.double(), truth.double()
    factor = float((g * t).sum() / (t * t).sum())
    if factor == 0 or not off(g / factor, t) <= tolerance_of(gradient, truth):
        return None
    return factor


def value_factor(value, truth):
    """Likewise of a copy; None where the shapes differ."""
    return multiple_of(value, truth) if value.shape == truth.shape and bool(truth.any()) else None
