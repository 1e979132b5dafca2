"""Defines what check_step returns: the report of `distgrad compare`, by parameter."""

import dataclasses
import os
import textwrap

from .driver import Report
from .words import count


@dataclasses.dataclass
class ParameterReport:
    """Describes one parameter. `finding` is None if its gradient is right.

    `error` is the 2-norm of the difference over that of the truth, on the worst rank (inf if the
    truth is zero). `factor` is observed over truth if that is one number. `ranks` are the wrong
    ranks if not all are. `notes` are what else a reader should know."""

    name: str
    finding: "str | None" = None
    text: str = ""
    error: float = 0.0
    tolerance: float = 0.0
    factor: "float | None" = None
    ranks: tuple = ()
    shape: tuple = ()
    worst: str = ""  # "rank 1 [2, 0]: 0.5, truth 1"
    notes: tuple = ()


class StepReport(Report):
    """Holds check_step's report. `parameters` has all by name, `wrong` those that are wrong,
    `vacuous` why a match shows nothing, or None, `where` what a second run says of the mistake's
    place, or None (docs/python.md). As a dict it is the JSON report of `distgrad compare`
    (docs/compare.md), with "where"; str(report) is its text."""

    def __init__(self, fields, text, backend, where=None):
        self.world_size, self.vacuous = fields["world_size"], fields["vacuous"]
        self.backend, self.where = backend, where
        self.parameters = {p["name"]: _parameter(p) for p in fields["parameters"]}
        found = ["Where:\n" + "\n".join(_wrapped(line) for line in where["text"])] if where else []
        near = sum(p["verdict"] == "close" and not p["forgiven"] for p in fields["parameters"])
        head, text = self._head(near), text.strip()
        self._parts = head, text, found
        super().__init__({**fields, "where": where}, "\n\n".join([head, text, *found]))

    def page_text(self):
        """Returns the text with the place of the mistake first: a page shows the parameters below,
        too."""
        head, text, found = self._parts
        return "\n\n".join([head, *found, text])

    @property
    def wrong(self):
        return [p for p in self.parameters.values() if p.finding]

    def _head(self, near):
        wrong, total = len(self.wrong), count(len(self.parameters), "gradient")
        how = "off by a few percent at most" if near == wrong else "wrong"
        head = (f"{wrong} of {total} {'is' if wrong == 1 else 'are'} {how}" if wrong
                else f"{total}, all right")
        return f"check_step: {head}, on {count(self.world_size, 'rank')} ({self.backend})"


def _width():
    """Returns the width in columns that `distgrad compare` uses for the text above
    (src/cli/terminal.h)."""
    columns = os.environ.get("COLUMNS", "")
    asked = int(columns) if columns.isdecimal() else 0
    return min(max(asked, 60), 200) if asked else 100


def _wrapped(line):
    return textwrap.fill(line, _width(), initial_indent="- ", subsequent_indent="  ",
                         break_long_words=False, break_on_hyphens=False)


def _parameter(fields):
    good = fields["right"] or fields["forgiven"]
    notes = list(fields["notes"]) + ([fields["text"]] if good and fields["text"] != "right" else [])
    return ParameterReport(
        name=fields["name"],
        finding=None if good else fields["finding"] or fields["verdict"],
        text=fields["text"],
        error=float(fields["relative_error"]),
        tolerance=fields["rtol"],
        factor=None if fields["factor"] is None else float(fields["factor"]),
        ranks=tuple(fields["ranks"]),
        shape=tuple(fields["shape"]),
        worst=_worst(fields["worst"]),
        notes=tuple(notes),
    )


def _worst(worst):
    if worst is None:
        return ""
    place = " ".join(filter(None, [f"rank {worst['ranks'][0]}" if worst["ranks"] else "",
                                   str(worst["index"] or "")]))
    return f"{place}: {worst['observed']}, truth {worst['reference']}"
