"""Writes a grid of blocks as a formula, such as `x̄_r = Σ_k ȳ_k`, `x̄_r = 4 ȳ_r`, or `x̄_0 = ȳ_0`
and `x̄_r = 1/2 ȳ_r, r = 1, 2, 3`.

Each block is looked up among known ones (the *base*): multiples of the identity, slices, places in
a joined gradient, or the right blocks whatever they are. That leaves one coefficient for each pair
of ranks. A row of coefficients has one or several texts, in terms of r if possible, and the texts
that cover most rows are taken.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Callable, Optional

from .blocks import coefficient

_MOST_LINES = 4
_MOST_TERMS = 3  # Longer sums are not written out relative to r.
_SAYS_R = re.compile(r"(?<![A-Za-z])r(?![A-Za-z])")


@dataclass(frozen=True)
class Names:
    """Says how formulas write the input's gradient, the output's cotangent and its derivative."""

    gradient: str = "x̄"
    cotangent: str = "ȳ"
    output: str = "y"
    derivative: str = "J"
    by: str = "rank r's input"  # The derivative is taken by this.


def bar(name):
    """Returns the name of a variable's adjoint: x̄, or grad(name) for a longer name."""
    letter, digits = name[:1], name[1:]
    if letter.isalpha() and (not digits or digits.isdigit()):
        return unicodedata.normalize("NFC", letter + "\u0304") + digits
    return f"grad({name})"


@dataclass(frozen=True)
class Base:
    """Holds the blocks of which others are multiples. block(a, b) returns the block of destination
    a and place b, or None if there is none."""

    block: Callable
    term: Callable  # It maps (names, destination, source, place) as text to a term.
    legend: str = ""


@dataclass(frozen=True)
class Entry:
    """Describes a block of a rank's row: a coefficient times one of the base's blocks."""

    coefficient: object
    destination: int
    place: int


def formula(grid, room, bases, names):
    """Returns (lines of text, legend) of a grid of blocks, or None if no base has them."""
    for base in bases:
        rows = _rows(grid, room, base)
        if rows is not None:
            lines = _lines(rows, base, names)
            if lines is not None:
                return lines, _legend(base, names, lines)
    return None


def number(c):
    """Returns a coefficient as text."""
    if isinstance(c, Fraction):
        return str(c)
    text = f"{c:.6g}"
    return f"{c:.10g}" if text in ("1", "-1") else text


# ---- bases


def bases_of(pair):
    """Returns the bases in which this pair's grids may be written, the plainest first."""
    found = [Base(lambda a, b: pair.identity[a][b],
                  lambda names, a, k, b: f"{names.cotangent}_{_index(k)}")]
    found += [base for base in (_slices(pair), _places(pair), _common(pair), _parts(pair)) if base]
    found.append(
        Base(lambda a, b: None if pair.right_is_zero(a, b) else pair.right[a][b], _jacobian_term,
             "{derivative}_{{k,r}}: the derivative of rank k's {output} by {by}"))
    return found


def _jacobian_term(names, a, k, b):
    return f"{names.derivative}_{{{b},{a}}}ᵀ {names.cotangent}_{_index(k)}"


def _slices(pair):
    """Returns a base if each rank's input is a slice of the outputs, as in an all_gather."""
    found = _first_by(pair, lambda r, k: r)
    if found is None or not all(_is_selection(block) for block in found.values()):
        return None
    return Base(lambda a, b: found.get(a),
                lambda names, a, k, b: f"{names.cotangent}_{_index(k)}[{a}]",
                "{cotangent}_k[r]: the part of {cotangent}_k that comes from rank r")


def _places(pair):
    """Returns a base if each rank's output is made from one place of the inputs, as in a
    reduce_scatter."""
    found = _first_by(pair, lambda r, k: k)
    if found is None or not all(_is_selection(block.T) for block in found.values()):
        return None
    return Base(lambda a, b: found.get(b),
                lambda names, a, k, b: f"[{names.cotangent}_{_index(k)}]_{_index(b)}",
                "[...]_k: in the place that rank k's {output} was made from, 0 elsewhere")


def _parts(pair):
    """Returns a base if outputs consist of parts of all ranks' inputs, as in an all_to_all."""
    for r, k in pair.pairs():
        ones = (pair.right[r][k] - 1).abs() < 1e-6
        rest = pair.right[r][k].abs().masked_fill(ones, 0)
        if pair.right_is_zero(r, k) or bool((rest > 1e-6).any() or (ones.sum(0) > 1).any()
                                            or (ones.sum(1) > 1).any()):
            return None
    return Base(lambda a, b: pair.right[a][b],
                lambda names, a, k, b: f"[{names.cotangent}_{_index(k)}[{a}]]_{_index(b)}",
                "[{cotangent}_k[r]]_k: the part of {cotangent}_k that comes from rank r, in the"
                " place that it comes from")


def _common(pair):
    """Returns a base if all ranks' outputs depend on an input alike."""
    found = _first_by(pair, lambda r, k: r, exact=True)
    if found is None:
        return None
    where = (" where it is not 0" if any(pair.right_is_zero(r, k) for r, k in pair.pairs()) else "")
    return Base(lambda a, b: found.get(a),
                lambda names, a, k, b:
                f"{names.derivative}_{_index(a)}ᵀ {names.cotangent}_{_index(k)}",
                "{derivative}_r: the derivative of {output} by {by}" if pair.is_local() else
                f"{{derivative}}_r: the derivative of {{output}}, the same on all ranks{where}, by"
                " {by}")


def _first_by(pair, key, exact=False):
    """Returns {rank: its first right block that is not zero}, the rank being key(r, k), if all its
    blocks are multiples of that one (equal to it if `exact`); else None."""
    found = {}
    for r, k in pair.pairs():
        if pair.right_is_zero(r, k):
            continue
        block = found.setdefault(key(r, k), pair.right[r][k])
        c = pair.right_coefficient(r, k, block)
        if c is None or (exact and c != 1):
            return None
    return {rank: block if exact else block / block[block != 0][0]
            for rank, block in found.items()} or None


def _is_selection(block):
    """Returns whether the block selects some columns: one 1 in each row, no two in one column."""
    if block.shape[0] >= block.shape[1]:
        return False
    ones = (block - 1).abs() < 1e-6
    rest = block.abs().masked_fill(ones, 0)
    return bool((ones.sum(1) == 1).all() and (ones.sum(0) <= 1).all() and (rest < 1e-6).all())


def _index(text):
    return text if text.isalnum() else f"{{{text}}}"


# ---- from blocks to entries


def _rows(grid, room, base):
    ranks = range(len(grid))
    rows = []
    for r in ranks:
        row = [_entry(grid[r][k], room[r][k], base, r, k, ranks) for k in ranks]
        if any(entry is False for entry in row):
            return None
        rows.append(row)
    return rows


def _entry(block, room, base, r, k, ranks) -> "Optional[Entry] | bool":
    """Returns the block's Entry, None for a zero block, or False if the base does not have it."""
    if block.isnan().any():
        return False
    if block.numel() == 0 or bool((block.abs() <= room).all()):
        return None
    others = [(a, k) for a in ranks if a != r] + [(r, b) for b in ranks if b != k]
    others += [(a, b) for a in ranks for b in ranks if a != r and b != k]
    for a, b in [(r, k), *others]:
        c = coefficient(block, base.block(a, b), room)
        if c is not None:
            return Entry(c, a, b)
    return False


# ---- from entries to text


def _lines(rows, base, names):
    """Returns the fewest texts that cover all rows, or None if it takes too many. Rows that differ
    only by a factor share one."""
    lines = _cover(rows, base, names)
    if lines is not None and len(lines) <= 2:
        return lines
    factors = [next((e.coefficient for e in row if e), Fraction(0)) for row in rows]
    scaled = [[e and Entry(e.coefficient / f, e.destination, e.place) for e in row]
              for row, f in zip(rows, factors)]
    if all(factors) and len(set(map(number, factors))) > 1:
        together = _cover(scaled, base, names)
        if together is not None and len(together) == 1:
            left, right = together[0].split(" = ", 1)
            inner = f"({right})" if _is_sum(right) else right
            return [f"{left} = c_r {inner}, c = ({', '.join(map(number, factors))})"]
    return lines


def _is_sum(text):
    return " + " in text or " - " in text or text.startswith("-")


def _cover(rows, base, names):
    texts = [_row_texts(row, r, len(rows), base, names) for r, row in enumerate(rows)]
    left, lines = set(range(len(rows))), []
    while left:
        if len(lines) == _MOST_LINES:
            return None
        count = {}
        for r in sorted(left):
            for place, text in enumerate(texts[r]):
                covered, first = count.get(text, ((), place))
                count[text] = (covered + (r,), max(first, place))
        # The text that covers most rows wins; among these, the one that its rows prefer.
        text = min(count, key=lambda t: (-len(count[t][0]), count[t][1]))
        lines.append((count[text][0], text))
        left -= set(count[text][0])
    if len(lines) == 1:
        return [f"{names.gradient}_r = {lines[0][1]}"]
    lines.sort(key=lambda line: line[0][0])
    return [_one_line(names, covered, text, texts) for covered, text in lines]


def _one_line(names, covered, text, texts):
    """Returns the line of these rows; one rank's line does without r if possible."""
    plain = [t for t in texts[covered[0]] if not _SAYS_R.search(t)]
    if "r+" not in text and "r-" not in text:
        plain.append(_SAYS_R.sub(str(covered[0]), text))
    if len(covered) == 1 and plain:
        return f"{names.gradient}_{covered[0]} = {plain[0]}"
    return f"{names.gradient}_r = {text}, r = {', '.join(map(str, covered))}"


def _row_texts(row, r, n, base, names):
    """Returns texts that say this row, the best first."""
    present = [k for k in range(n) if row[k]]
    if not present:
        return ["0"]
    values = {k: row[k].coefficient for k in present}
    destinations = _ways([row[k].destination for k in present], [r] * len(present), n, "r")
    destinations += ["k"
                    ] if len(present) > 1 and all(row[k].destination == k for k in present) else []
    places = _ways([row[k].place for k in present], present, n, "k")
    found = []
    for a in destinations:
        for b in places:
            term = _term(base, names, a, b)
            found += _sums(values, r, n, term) + _offsets(values, r, n, term)

    def own_term(k):
        return _term(base, names, str(row[k].destination), str(row[k].place))(str(k))

    found.append(_written_out([(values[k], _term(base, names, a, b)(str(k))) for k in present
                               for a in destinations[:1] for b in places[:1]] or
                              [(values[k], own_term(k)) for k in present]))
    return list(dict.fromkeys(found))


def _term(base, names, destination, place):
    """Returns a function from a source to the text of its term."""
    return lambda source: base.term(names, destination.replace("k", source), source,
                                    place.replace("k", source))


def _ways(found, to, n, letter):
    """Returns texts such as "r", "r+1" or "2" that tell how the ranks `found` follow from `to`."""
    steps = {(a - b) % n for a, b in zip(found, to)}
    ways = [_shifted(letter, steps.pop(), n)] if len(steps) == 1 else []
    return ways + ([str(found[0])] if len(set(found)) == 1 else [])


def _shifted(letter, step, n):
    if step == 0:
        return letter
    return f"{letter}-1" if step == n - 1 and n > 2 else f"{letter}+{step}"


def _sums(values, r, n, term):
    """Returns texts with a Σ or of one term, the plainest first."""
    everywhere = [values.get(k, Fraction(0)) for k in range(n)]
    found = []
    if len(set(everywhere)) == 1 and n > 1:
        found.append(_times(everywhere[0], f"Σ_k {term('k')}"))
    if set(values) == {r}:
        found.append(_times(values[r], term("r")))
    return found + _all_but(everywhere, r, term) + _up_to(values, r, n, term)


def _all_but(everywhere, r, term):
    """Returns texts of one coefficient for all ranks but one, which is r or a fixed rank."""
    n, found = len(everywhere), []
    for odd in range(n) if n > 2 else ():
        rest = [c for k, c in enumerate(everywhere) if k != odd]
        c, there = rest[0], everywhere[odd]
        if len(set(rest)) != 1 or not c or c == there:
            continue
        for name in (("r",) if odd == r else ()) + (str(odd),):
            first = _times(c, f"Σ_{{k≠{name}}} {term('k')}")
            if c == 1 and there > 1:
                found.append(f"Σ_k {term('k')} + {_times(there - 1, term(name))}")
            else:
                found.append(first if not there else f"{first} {_signed(there, term(name))}")
    return found


def _up_to(values, r, n, term):
    if len(set(values.values())) != 1:
        return []
    c = next(iter(values.values()))
    ranges = {"k≤r": range(r + 1), "k≥r": range(r, n), "k<r": range(r), "k>r": range(r + 1, n)}
    return [_times(c, f"Σ_{{{text}}} {term('k')}") for text, ranks in ranges.items()
            if set(values) == set(ranks)]


def _offsets(values, r, n, term):
    """Returns a text with each term written out relative to r, if they are few."""
    if len(values) > _MOST_TERMS or n < 2:
        return []
    steps = sorted((k - r) % n for k in values)
    return [_written_out([(values[(r + s) % n], term(_shifted("r", s, n))) for s in steps])]


def _written_out(terms):
    (c, first), *others = terms
    return " ".join([_times(c, first), *(_signed(c, text) for c, text in others)])


def _times(c, text):
    if c == 1:
        return text
    return f"-{text}" if c == -1 else f"{number(c)} {text}"


def _signed(c, text):
    return f"- {_times(-c, text)}" if c < 0 else f"+ {_times(c, text)}"


def _legend(base, names, lines):
    text = base.legend.format(output=names.output, cotangent=names.cotangent,
                              derivative=names.derivative, by=names.by)
    if any("r+" in line or "r-" in line for line in lines):
        text = "; ".join(part for part in (text, "ranks counted modulo N") if part)
    return text
