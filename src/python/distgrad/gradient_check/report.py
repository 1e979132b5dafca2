"""Holds what gradcheck found, as data and as text. This module needs no torch."""

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Optional

from ..words import capitalized, titled

_WIDTH = 100


@dataclass
class Finding:
    """Describes one mistake. measured and right are formulas, a line each, and may be empty.
    coefficients[to rank][from rank] is relative to the right backward, as text ("1", "1/4"); it is
    None if one number for each pair of ranks is not enough."""

    name: str
    text: str
    inputs: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    ranks: list = field(default_factory=list)
    measured: list = field(default_factory=list)
    right: list = field(default_factory=list)
    legend: str = ""
    coefficients: Optional[list] = None
    linear: bool = True
    details: list = field(default_factory=list)
    dtype: str = ""


@dataclass
class Dispute:
    """Describes a gradient that is right if what the function detaches is a constant, and is the
    mistake `name` if not. measured is the formula that is right with constants, and right that of
    the whole function. is_constant is true if the gradient of these inputs should then be 0."""

    name: str
    text: str
    inputs: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    ranks: list = field(default_factory=list)
    measured: list = field(default_factory=list)
    right: list = field(default_factory=list)
    legend: str = ""
    is_constant: bool = False


@dataclass
class GradcheckReport:
    """Holds a check's result, the same on every rank; str() is its text. verdict is "right",
    "wrong", "disputed" (right if what the function detaches is meant to be a constant, else wrong),
    "undecided" (it could be run, but not judged) or "error" (it could not be run)."""

    verdict: str
    ranks: int
    backend: str = ""
    dtypes: list = field(default_factory=list)
    findings: list = field(default_factory=list)
    # {"output, input": lines} gives the formulas of pairs whose backward is right.
    formulas: dict = field(default_factory=dict)
    legends: list = field(default_factory=list)
    right_for: list = field(default_factory=list)
    disputes: list = field(default_factory=list)
    # {line: what it does} tells where the function detaches, if there are disputes.
    detached: dict = field(default_factory=dict)
    shown: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    # With verdict "error" each has ranks, doing, text, where and traceback; the cause is first.
    errors: list = field(default_factory=list)
    global_ranks: list = field(default_factory=list)

    @property
    def right(self):
        return self.verdict == "right"

    def to_dict(self):
        """Returns lists, dicts, texts and numbers only, for json.dumps()."""
        return {**asdict(self), "right": self.right}

    def __str__(self):
        lines = [self._headline()]
        for error in self.errors:
            lines += ["", *_error_lines(error)]
        explained = set()
        for finding in self.findings:
            lines += ["", *_finding_lines(finding, finding.legend not in explained)]
            explained.add(finding.legend)
        for dispute, following in zip(self.disputes, [*self.disputes[1:], None]):
            lines += ["", *_dispute_lines(dispute)]
            if following is None or following.legend != dispute.legend:
                lines += _legend_lines(dispute.legend)
            explained.add(dispute.legend)
        if self.formulas and self.disputes:
            lines += ["", "right either way"]
        if self.formulas:
            lines += self._formula_lines()
            lines += [f"    {legend}" for legend in self.legends if legend not in explained]
        rows = [("right for", text) for text in self.right_for]
        rows += self._dispute_rows()
        rows += [("shown", text) for text in self.shown]
        rows += [("note", text) for text in self.notes]
        return "\n".join(lines + ([""] if rows else []) + titled(rows, _WIDTH))

    def _formula_lines(self):
        """Returns the formulas, with the output if that gives only a part of the gradient."""
        inputs = [pair.rpartition(", ")[2] for pair in self.formulas]
        return [f"  {line}" + (f"   from {pair.rpartition(', ')[0]}" if inputs.count(x) > 1 else "")
                for (pair, lines), x in zip(self.formulas.items(), inputs) for line in lines]

    def _dispute_rows(self):
        """Returns rows: what is detached, what follows if that is meant or not, how to say so."""
        if not self.disputes:
            return []
        places = [f"at {line}: {what}" for line, what in self.detached.items()]
        what = self._of_which()
        rows = [("detached", text) for text in places]
        rows.append(("if meant", f"{what}the backward is right, with that as a constant"))
        rows += [("if not", text) for text in dict.fromkeys(
            f"{what}{d.name}: {d.text}" for d in self.disputes)]
        if any("gather" in what for what in self.detached.values()):
            rows.append(("if not", "what is gathered has no gradient, a usual mistake of"
                         " contrastive losses"))
        return rows + [("to say so", text) for text in self._declarations()]

    def _of_which(self):
        """Returns the names of the disputed pairs if there are findings besides, else ""."""
        return ("" if not self.findings else ", ".join(
            f"{', '.join(d.outputs)} -> {', '.join(d.inputs)}" for d in self.disputes) + ": ")

    def _declarations(self):
        names = [x for d in self.disputes for x in d.inputs]
        names = list(dict.fromkeys(names))
        quoted = ", ".join(f'"{line}"' for line in self.detached)
        options = " ".join(f"--detached {line}" for line in self.detached)
        texts = [f"detached=({quoted},), on the command line {options}"]
        if names and all(d.is_constant for d in self.disputes):
            inputs = ", ".join(f'"{name}"' for name in names)
            texts.insert(0, f"constant=({inputs},), on the command line --constant instead of"
                         f" --input for {', '.join(names)}; or")
        return texts

    def _headline(self):
        where = ", ".join(part for part in (self.backend, *self.dtypes) if part)
        verdicts = {"right": "right", "wrong": "wrong", "disputed": "disputed",
                    "undecided": "not judged",
                    "error": "could not be carried through"}
        names = list(dict.fromkeys(finding.name for finding in self.findings))
        names = f": {', '.join(names)}" if names else ""
        group = "" if self.global_ranks in ([],
                                            list(range(self.ranks))) else f" {self.global_ranks}"
        count = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}{group}"
        return (f"gradcheck: {verdicts[self.verdict]} on {count}"
                + (f" ({where})" if where else "") + names
                + (": right if what it detaches is a constant, else wrong"
                   if self.verdict == "disputed" else ""))


def _finding_lines(finding, has_legend):
    about = f"{', '.join(finding.outputs)} -> {', '.join(finding.inputs)}" if finding.inputs else ""
    head = "   ".join(part for part in (finding.name, about,
                                        f"in {finding.dtype}" if finding.dtype else "") if part)
    rows = [("measured", line) for line in finding.measured
           ] + [("right", line) for line in finding.right]
    lines = [head, *(f"  {line}" for line in titled(rows, _WIDTH))]
    lines += _legend_lines(finding.legend) if has_legend else []
    lines += [f"  {line}" for line in finding.details]
    text = capitalized(finding.text) + "."
    if not finding.linear and finding.right:
        text += " It is not linear in the cotangents; the formula is that of single ones."
    return lines + textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _legend_lines(legend):
    return textwrap.wrap(legend, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _dispute_lines(dispute):
    rows = [(title, line) for title, lines in (("measured", dispute.measured),
                                               ("if meant", dispute.measured),
                                               ("if not", dispute.right)) for line in lines]
    lines = [f"{', '.join(dispute.outputs)} -> {', '.join(dispute.inputs)}"
             ] if dispute.inputs else []
    return lines + [f"  {line}" for line in titled(rows, _WIDTH)]


def _error_lines(error):
    ranks = error["ranks"]
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    lines = [f"{who}, {error['doing']}" + (f": {error['text']}" if error["text"] else "")]
    if error["where"]:
        lines.append(f"  at {error['where']}")
    if error["traceback"]:
        lines += textwrap.indent(error["traceback"].rstrip(), "    ").split("\n")
    return lines
