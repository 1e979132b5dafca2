"""Describes what a rank hands to the implementation under test: one collective call and the group
that makes it."""

from dataclasses import dataclass
from typing import Any, Optional, Tuple

from ..words import read_number
from .collectives.traits import TRAITS


@dataclass(frozen=True)
class RankGroup:
    """Describes a group as one of its ranks sees it. `process_group` numbers its ranks in the order
    of `ranks`."""

    name: str  # "" for the world
    ranks: Tuple[int, ...]  # global ranks, in group order, which need not be ascending
    rank: int  # own rank in the group: the position in `ranks`
    process_group: Any  # torch.distributed.ProcessGroup

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Call:
    """Describes one collective call of a program. `root`, `pairs` and the rows of `splits` use
    ranks within the group.

    Options that the kind does not take are None, but `op` and `root` have their defaults ("sum",
    0).
    """

    kind: str
    step: str
    op: str
    factor: Optional[float]
    root: int
    dim: Optional[int]  # may be negative; None for all_gather and gather: stacked along a new dim 0
    # One row, or one per rank for all_to_all. None means even.
    splits: Optional[Tuple[Tuple[int, ...], ...]]
    pairs: Optional[Tuple[Tuple[int, int], ...]]
    group: RankGroup
    is_async: bool = False  # to be called with async_op=True, and waited for


class NotOffered(Exception):
    """The subject does not offer the collective, op or option. The case is skipped with this
    text."""


class NeedsFreshRank(Exception):
    """What ran in this process before stands in the case's way. The driver makes new ranks, as for
    any failure of kind "backend", and runs the case first."""


class SubjectError(Exception):
    """The subject cannot be loaded or called, whatever the scenario. It is a user's error and is
    reported in this text."""


def call_of(step, groups):
    """Returns the step's Call, or None for a step that is no collective."""
    spec = step.get("collective")
    if spec is None:
        return None
    kind = spec["kind"]
    options = TRAITS[kind].options
    op = spec["op"] if "op" in options else "sum"
    without_dim = None if TRAITS[kind].shape == "joined" else 0
    dim = spec.get("dim", without_dim) if "dim" in options else None
    return Call(
        kind=kind,
        step=step["name"],
        op=op,
        factor=read_number(spec["factor"]) if op == "premul_sum" else None,
        root=spec["root"] if "root" in options else 0,
        dim=dim,
        splits=_rows(spec.get("splits")) if "splits" in options and spec.get("splits") else None,
        pairs=_rows(spec.get("pairs", ())) if "pairs" in options else None,
        group=groups[spec["group"]],
    )


def _rows(lists):
    return tuple(map(tuple, lists))
