"""Holds what check_gradients found, as data and as text. This module needs no torch."""

import math
import textwrap
from dataclasses import asdict, dataclass, field

from ..words import count, number, ranks_text, some, titled

_WIDTH = 100
_MOST_NAMES = 8
_OBJECTIVES = {"mean": "the mean of the ranks' losses", "sum": "the sum of the ranks' losses",
               "replicated": "the loss that all ranks compute"}


@dataclass
class Wrong:
    """Describes parameters whose gradients are wrong in the same way. factors is {rank: p.grad over
    the derivative}, empty if that is not one number; text has sentences on what was measured."""

    kind: str
    parameters: list
    factors: dict = field(default_factory=dict)
    text: list = field(default_factory=list)
    assumed: str = ""

    @property
    def factor(self):
        """Returns the factor if it is one number on all ranks, else None."""
        values = list(self.factors.values())
        if not values or max(values) - min(values) > 0.01 * max(map(abs, values)):
            return None
        return sum(values) / len(values)


@dataclass
class GradientsReport:
    """Holds the result, the same on every rank. verdict is "right", "wrong", "disputed" (right if
    what step() detaches is meant to be a constant, else wrong) or "undecided". losses are the
    ranks', loss is the declared one. wrong has a Wrong for each kind of mistake; undecided is
    {parameter: why}; too_small names parameters whose gradients are too small beside the loss's
    rounding; not_asked names parameters some of which are wrong, but time was too short to tell
    which; ambiguous names parameters that are right if ranks hold pieces, and wrong if copies."""

    ranks: int
    backend: str
    objective: str
    losses: list
    loss: float
    wrong: list = field(default_factory=list)
    undecided: dict = field(default_factory=dict)
    too_small: list = field(default_factory=list)
    not_asked: list = field(default_factory=list)
    ambiguous: list = field(default_factory=list)
    parameters: list = field(default_factory=list)
    # disputed names parameters that are right only with what step() detaches as constants;
    # detached has {line: what it does}.
    disputed: list = field(default_factory=list)
    detached: dict = field(default_factory=dict)
    where: list = field(default_factory=list)  # Sentences say where backward departs.
    # places has the modules' outputs in the order of backward, each with module, call, index,
    # state ("right", "wrong", "shares", "not decided" or "not asked"), departs (whether backward
    # departs there), factor (of a wrong cotangent over the right one, or None), copies and ratios.
    places: list = field(default_factory=list)
    # {parameter: part of its gradient} of right ones: an error of so much would not have been seen.
    blind: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    place: str = ""  # where step() is defined, "train.py:12"
    reason: str = ""  # If nothing was decided, this says why.
    dtype: str = ""
    runs: int = 0
    seconds: float = 0.0

    @property
    def verdict(self):
        if self.wrong or self.not_asked:
            return "wrong"
        if self.disputed:
            return "disputed"
        decided = set(self.parameters) - set(self.undecided) - set(self.too_small)
        is_most = 2 * len(decided) >= len(self.parameters) > 0
        return "right" if is_most and not self.reason and not self.ambiguous else "undecided"

    @property
    def right(self):
        return self.verdict == "right"

    def undecide(self, why):
        self.reason = why

    def to_dict(self):
        """Returns lists, dicts, texts and numbers, for json.dumps(); a number that is not finite
        becomes "nan", "inf" or "-inf"."""
        return _finite({"verdict": self.verdict, **asdict(self)})

    def write(self, html=None, junit=None, markdown=None, sarif=None):
        """Writes files in these formats, with one case per parameter (docs/reports.md). All ranks
        have the same report, so call it on one. Raises RuntimeError without a `distgrad`
        executable."""
        from ..driver import write_step

        files = {"html": html, "junit": junit, "markdown": markdown, "sarif": sarif}
        write_step(self.to_dict(), str(self), files)

    # -- text

    def __str__(self):
        lines = [self.headline()]
        if self.reason:
            lines += ["", *_wrapped(self.reason + ".", "  ")]
        for wrong in self.wrong:
            lines += ["", *_wrapped(_some(wrong.parameters), "  ", "    ")]
            lines += [line for text in wrong.text for line in _wrapped(text, "    ")]
        if self.disputed:
            lines += ["", *_wrapped(_some(self.disputed), "  ", "    ")]
            lines += _wrapped("p.grad is the derivative of the loss if what step() detaches is a"
                              " constant, and is not if it is none.", "    ")
        if self.where:
            lines += ["", *(line for text in self.where for line in _wrapped(text, "  "))]
        rows = self._rows()
        return "\n".join(lines + ([""] if rows else []) + rows)

    def headline(self):
        """Returns the verdict in one line."""
        bad = list(dict.fromkeys(name for w in self.wrong for name in w.parameters))
        total = len(self.parameters)
        open_ = {*self.undecided, *self.too_small, *self.ambiguous}
        verdict = {"right": f"{count(total, 'gradient')}, all right",
                   "undecided": "not decided" if self.reason else
                                f"{len(open_)} of {count(total, 'gradient')} not decided",
                   "wrong": f"{'at least ' if self.blind else ''}{len(bad)} of"
                            f" {count(total, 'gradient')}"
                            f" {'is' if len(bad) == 1 else 'are'} wrong",
                   "disputed": f"{len(self.disputed)} of {count(total, 'gradient')} disputed"
                  }[self.verdict]
        if self.wrong and all(wrong.kind == "copies" for wrong in self.wrong):
            verdict = (f"{count(total, 'gradient')}, all right, and {count(len(bad), 'parameter')}"
                       " with copies that differ after optimizer.step()")
        if self.verdict == "right" and open_:
            verdict = (f"{total - len(open_)} of {count(total, 'gradient')} right, {len(open_)} not"
                       " decided")
        what = _OBJECTIVES.get(self.objective, self.objective)
        return (f"check_gradients: {verdict}, on {count(self.ranks, 'rank')} ({self.backend}), for"
                f" {what}")

    def _rows(self):
        rows = []
        rows += [("detached", f"at {line}: {what}") for line, what in self.detached.items()]
        if self.detached:
            quoted = ", ".join(f'"{line}"' for line in self.detached)
            rows.append(("to say so", f"if it is meant: detached=({quoted},)"))
        if self.not_asked:
            rows.append(("not told apart", f"{_some(self.not_asked)}: some of these are wrong"))
        if self.ambiguous:
            rows.append(("not decided", f"{_some(self.ambiguous)}: equal on several ranks, all"
                         " values one number. The gradients differ: they are right if these are"
                         " pieces of a parameter, and wrong if they are copies. Name them in"
                         " `pieces` or in `copies`, or call check_gradients after a few steps of"
                         " training, when pieces have values of their own"))
        by_reason = {}
        for name, why in self.undecided.items():
            by_reason.setdefault(why, []).append(name)
        rows += [("not decided", f"{_some(names)}: {why}") for why, names in by_reason.items()]
        if self.too_small:
            rows.append(("not decided", f"{_some(self.too_small)}: too small to be measured beside"
                         f" the rounding of the loss in {self.dtype}"))
        rows += [("note", note) for note in self.notes]
        if self.runs:
            rows.append(("measured", f"{count(self.runs, 'run')} of step() in"
                         f" {self.seconds:.1f} s; the loss is {self.loss:.6g}"))
        return titled(rows, _WIDTH)


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return number(value) if isinstance(value, float) else value


def factor_text(factor, counts):
    """Returns text such as "0.25 times the derivative of the loss: 1 over the number of ranks".
    counts is {what is counted: number}."""
    texts = [f"the number of {name}" for name, n in counts.items() if n > 1 and _same(factor, n)]
    texts += [f"1 over the number of {name}" for name, n in counts.items()
              if n > 1 and _same(factor, 1 / n)]
    texts = [text for text in texts if not text.endswith("in a group")] or texts
    power = math.log2(factor) if factor > 0 else 0.0
    if not texts and power >= 8 and abs(power - round(power)) < 1e-4:
        texts = [f"2^{round(power)}"]
    text = f"{factor:.4g}"
    if text == "1":
        text = f"{factor:.8g}"
    return f"{text} times the derivative of the loss" + (f": {' or '.join(texts)}" if texts
                                                         else "")


def by_ranks(factors):
    """Returns text such as "1 on rank 0, 0 on ranks 1, 2, 3" for factors {rank: number}."""
    groups = []
    for rank, factor in sorted(factors.items()):
        for value, ranks in groups:
            if _same(value, factor):
                ranks.append(rank)
                break
        else:
            groups.append((factor, [rank]))
    return ", ".join(f"{value:.4g} on {ranks_text(ranks)}" for value, ranks in groups)


def _same(a, b):
    return abs(a - b) <= 0.005 * max(abs(a), abs(b)) + 1e-9


def _wrapped(text, first, following=None):
    return textwrap.wrap(text, _WIDTH, initial_indent=first,
                         subsequent_indent=first if following is None else following,
                         break_long_words=False, break_on_hyphens=False)


def _some(names):
    return some(names, _MOST_NAMES)
