"""A printed formula, "x̄_r[a] = 2 Σ_{k≠r} ȳ_k[r+1]; ...", read back: which numbers of which pieces
(or elements) of the ranks' cotangents each piece of each rank's operand gets. Knows what
docs/diagnosis.md says of formulas, and nothing of the code that prints them.
"""

import collections
import fractions
import re

_NAMED = re.compile(r", ([ws]) = \[([^\]]*)\]")
_OTHERS = re.compile(r", 0 (on ranks? [0-9, and]+|on the other ranks|elsewhere)$")
_LEFT = re.compile(r"x̄_(\{[^}]*\}|[r0-9])(?:\[([^\]]*)\])?")
_TERM = re.compile(r"""\s* (?P<sign>[+−])? \s* (?P<number>[0-9][0-9.e/-]*)? \s*
    (?P<scale>s_r)? \s* (?P<sum>Σ_(?:\{k[^}]*\}|k))? \s* (?P<weight>w_k)? \s* (?P<all>Σ_b)? \s*
    ȳ_(?P<rank>\{[^}]*\}|[rak0-9]) (?:\[(?P<piece>[^\]]*)\])?""", re.VERBOSE)
_HOLDS = {"≠": lambda k, r: k != r, "≤": lambda k, r: k <= r, "<": lambda k, r: k < r,
          "≥": lambda k, r: k >= r, ">": lambda k, r: k > r}


def numbers_of(formula, ranks, pieces_in, pieces_out):
    """{(rank, piece of its operand): {(rank, piece of its cotangent): number}}. Of a formula by
    element pieces are elements."""
    named = {}
    for match in _NAMED.finditer(formula):
        named[match[1]] = [_number(text) for text in match[2].split(",")]
    formula = _NAMED.sub("", formula)
    others = _OTHERS.search(formula)
    zero = [int(r) for r in re.findall(r"\d+", others[1])] if others else []
    if others:
        formula = formula[:others.start()]
    result = collections.defaultdict(lambda: collections.defaultdict(float))
    for equation in formula.split("; "):
        left, right = equation.split(" = ", 1)
        rank, piece = _LEFT.fullmatch(left).groups()
        for r in range(ranks):
            for a in range(pieces_in):
                place = {"r": r, "a": a}
                if (_index(rank, place, ranks) == r and r not in zero and right != "0" and
                        (piece is None or _index(piece, place, ranks) == a)):
                    _add(result[r, a], right, place, ranks, pieces_out, named)
    return result


def _add(row, right, place, ranks, pieces_out, named):
    at = 0
    while at < len(right):
        term = _TERM.match(right, at)
        if not term:
            raise ValueError(f"cannot read {right[at:]!r} of {right!r}")
        at = term.end()
        number = (-1 if term["sign"] == "−" else 1) * (_number(term["number"])
                                                       if term["number"] else 1)
        if term["scale"]:
            number *= named["s"][place["r"]]
        for k in range(ranks) if term["sum"] else [_index(term["rank"], place, ranks)]:
            condition = re.search(r"([≠≤<≥>])([r0-9]+)", term["sum"] or "")
            if condition and not _HOLDS[condition[1]](k, _index(condition[2], place, ranks)):
                continue
            weight = named["w"][k] if term["weight"] else 1
            piece = 0 if term["piece"] is None else _index(term["piece"], {**place, "k": k}, ranks)
            for b in range(pieces_out) if term["all"] else [piece]:
                row[k, b] += number * weight


def _number(text):
    return float(fractions.Fraction(text.strip().replace("−", "-")))


def _index(text, place, ranks):
    """"r", "a+1", "N−1−k", "{r−1}", "2"; of an element "2,0" its first index, as these have columns
    of one."""
    text = text.strip("{}").removesuffix(",0")
    moved = re.fullmatch(r"([rak])([+−])(\d+)", text)
    if moved:
        return (place[moved[1]] + (1 if moved[2] == "+" else -1) * int(moved[3])) % ranks
    mirrored = re.fullmatch(r"N−1−([rak])", text)
    if mirrored:
        return ranks - 1 - place[mirrored[1]]
    return place[text] if text in place else int(text)
