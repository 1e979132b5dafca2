"""Turns the right and the measured map into findings: says for each pair of an input and an output
what is wrong with it."""

import math
import re
from dataclasses import replace

import torch

from ..words import capitalized, ranks_text
from .backward import Oddity
from .blocks import Pair
from .conventions import OneLoss
from .formulas import Names, bar, bases_of, formula, number
from .predicates import (ANOTHER_MAP, COPIED, NARROWER, OBJECTIVES, Mistake, exchanged_on,
                         mistake_in, objectives, roundings_of)
from .report import Dispute, Finding

_SCATTER = 4  # A gradient may be off by this many times what the worst of a few roundings moves.
_NO_SHARE, _MOST_SHARES = 1e-6, 12
_MOST_DETAILS = 3
_NOISY, _HIDES = 1e-8, 0.1  # shares of outputs, and of a gradient
_ALONE = 1e-6  # The error of one element alone leaves no larger share in other directions.
_LEAST_DIRECTIONS = 4  # Fewer random directions do not tell an element from the others.
_FACTORS = (2, 0.5, -1)  # These are tried if all elements are tied.
_MOST_BLOCK = 3  # Blocks with more rows or columns are not shown in full.
_OBJECTIVES = {
    "replicated": 'one loss that every rank computes from it (objective "replicated")',
    "mean": 'the mean of all ranks\' losses, if nothing averages afterwards (objective "mean")',
    "replicated" + COPIED: 'one loss that every rank computes from it (objective "replicated"), and'
    " {input} one tensor of which every rank holds a copy",
    "sum" + COPIED: "{input} one tensor of which every rank holds a copy: each copy has the"
    " gradient of all",
    "mean" + COPIED: "the mean of all ranks' losses, and {input} one tensor of which every rank"
    " holds a copy: DistributedDataParallel",
}


# These say something of elements, or of memory, whether or not the backward is linear.
_OF_ELEMENTS = ("tie", "zero-input", "no-gradient", "stale-or-aliased", "nondeterministic",
                "contiguity")


class Judgement:
    """Judges one dtype's pass. inputs and outputs are Coordinates, derivative and backward what was
    measured. rtol bounds rounding, relative to the largest element; values maps (rank, input's
    name) to elements, where known; scatter, if measured, is how far roundings move the measured
    map. is_known says that the derivative is a wider dtype's. accused limits findings to these
    pairs (input, output), if not None. derivative_name is used in formulas. convention says which
    gradients are right (None: those of the sum of all ranks' own losses). unlike names outputs that
    differ between ranks. With is_narrow, roundings are measured before anything is called wrong."""

    def __init__(self, inputs, outputs, derivative, backward, rtol, values, dtype, scatter=None,
                 is_known=False, accused=None, derivative_name="J", convention=None,
                 unlike=(), is_narrow=False):
        self._inputs, self._outputs = inputs, outputs
        self._backward = backward
        self._rtol, self._values, self._scatter, self._is_known = rtol, values, scatter, is_known
        self.dtype, self.derivative, self.kind = dtype, derivative, inputs.kind
        self.gradient = backward.matrix.nan_to_num(posinf=0, neginf=0)
        self.paired = 0  # This many findings are about pairs of an input and an output.
        self.is_of_maps = False  # It is true if a finding says that the measured map is wrong.
        self._ranks = len(inputs.tensors)
        self._accused, self._letter = accused, derivative_name
        self._convention, self._unlike, self._is_narrow = convention, unlike, is_narrow
        self.wrong = {}  # (input, output) -> Finding, of pairs that are wrong
        self.zero = set()  # (input, output) whose right gradient is 0
        self.excused = []  # Texts name the pairs that are wrong but not accused.
        self.doubted = set()  # Inputs that are right only if they are no copies, and may be either.
        self.disputes = []
        self.findings = []
        self.formulas, self.legends = {}, []
        self.right_for = []  # Each text names an objective.
        self.roundings = set()  # Findings name the roundings of these dtypes.
        self.notes = [f"{capitalized(o.text)}." for o in backward.oddities if not o.is_wrong]
        self._room_of_all = self._rooms()
        self.is_linear = backward.is_linear or self._is_linear_but_for_roundings()

    def run(self):
        odd = [*self._of_the_first(), *(o for o in self._backward.oddities if o.is_wrong)]
        unsteady = any(o.name in ("nondeterministic", "stale-or-aliased") and o.rows is not None
                       for o in odd)
        for oddity in odd:
            rows = range(len(self._backward.matrix)
                        ) if oddity.rows is None else oddity.rows.nonzero().flatten().tolist()
            ranks = self._ranks_of(rows) if oddity.ranks is None else oddity.ranks
            self.findings.append(Finding(oddity.name, oddity.text, ranks=ranks, dtype=self.dtype,
                                         details=oddity.details))
        if not self._backward.is_map:
            return self
        if self.is_linear:
            self._judge_pairs()
        elif not unsteady:
            self._judge_nonlinear()
        return self

    def is_coarse(self):
        """Returns whether noise of the forward hides the derivative of some output by some input,
        beside which even a zero gradient would seem right."""
        if self.derivative.noise < _NOISY:
            return False
        error, size = self.derivative.error.T.nan_to_num(posinf=0), self.gradient.abs()
        return bool((self._largest_in_pairs(error) > _HIDES * self._largest_in_pairs(size)).any())

    # -- pairs

    def _judge_pairs(self):
        right_for, within, wrong, of_one_loss = {}, [], [], []
        if self._inputs.kind == "whole":
            self.findings += self._of_the_whole()
            self.is_of_maps = bool(self.findings)
            return
        for x, inputs in _variables(self._inputs).items():
            for y, outputs in _variables(self._outputs).items():
                names = Names(bar(x), bar(y), y, self._letter,
                              self._convention.by(x, self._ranks) if self._convention else Names.by)
                if self._is_doubted(inputs, outputs, x, names):
                    self.doubted.add(x)
                    continue
                one_loss = self._of_one_loss(inputs, outputs, x, names)
                if one_loss:
                    of_one_loss += self._judge_one_loss(one_loss, x, y)
                    continue
                pair = self._pair(inputs, outputs, x)
                right_for.setdefault(x, []).append(objectives(pair, y not in self._unlike))
                if pair.wrong() and self._accused and (x, y) not in self._accused:
                    self.excused.append(f"{y} -> {x}")
                    continue
                if not pair.wrong():
                    self._add_right(pair, x, names)
                    within.append((pair, x, names))
                    continue
                wrong.append((pair, x, names))
        exchanged = self._exchanged(wrong)
        found = [self._finding(*each, exchanged.get(i)) for i, each in enumerate(wrong)]
        found += of_one_loss
        self.wrong = {(f.inputs[0], f.outputs[0]): replace(f, inputs=f.inputs[:],
                                                           outputs=f.outputs[:]) for f in found}
        if found and self._ranks > 1 and not self._convention:
            self.right_for = _right_for({x: set.intersection(*of_outputs)
                                         for x, of_outputs in right_for.items() if of_outputs})
        merged = _merged(found)
        # How elements hang together is known only for the sum of all losses.
        ties = [] if found or self._convention else self._ties(self._backward.matrix)
        if ties or wrong and all(self._is_only_at_kinks(pair) for pair, *_ in wrong):
            merged = self._scaled_ties(wrong + within) or merged
        if ties and not merged:
            merged = _merged(self._named_ties(within))
        self.paired, self.is_of_maps = len(merged), bool(merged or ties)
        self.findings += merged or ties

    def _of_the_first(self):
        """Returns [Oddity] if the first backward gave another gradient than later ones, else []."""
        first, d = self._backward.first, self.derivative
        if first is None:
            return []
        right, room = d.matrix.T @ first.cotangent, self._room_of_all @ first.cotangent.abs()
        is_right = not self._convention and not bool(d.open.any()) and bool(
            ((first.gradient - right).abs() <= room).all())
        how = ("the first backward is right, and later ones give another gradient" if is_right
               else "the first backward gives another gradient than later ones")
        return [Oddity("nondeterministic", f"{how}: something is kept from call to call")]

    def _of_the_whole(self):
        d = self.derivative
        pair = Pair([[d.matrix.T]], [[self._backward.matrix]], [[self._room_of_all]], [[None]],
                    by_element=False)
        wrong = pair.excess(0, 0)[~d.open.T & (d.low == d.high).T] > 0
        return [Finding("other-backward", ANOTHER_MAP)] if bool(wrong.any()) else []

    def _of_one_loss(self, inputs, outputs, x, names):
        """Returns the OneLoss of this pair, or None if it is judged rank by rank."""
        if not self._convention or not self._convention.is_one_loss(names.output):
            return None
        pair, is_copy = self._pair(inputs, outputs), x in self._convention.copies
        if not OneLoss.is_one_function(pair, is_copy):
            return None
        return OneLoss(pair, x, names, is_copy)

    def _is_doubted(self, inputs, outputs, x, names):
        """Returns whether this pair is wrong for copies of one tensor, right for tensors of the
        ranks' own, and nobody can tell which they are."""
        if not self._convention or x not in self._convention.doubtful:
            return False
        convention = self._convention
        is_wrong = self._is_wrong(inputs, outputs, x, names)
        self._convention = convention.apart(x)
        try:
            return is_wrong and not self._is_wrong(inputs, outputs, x, names)
        finally:
            self._convention = convention

    def _is_wrong(self, inputs, outputs, x, names):
        return bool((self._of_one_loss(inputs, outputs, x, names)
                     or self._pair(inputs, outputs, x)).wrong())

    def _judge_one_loss(self, one_loss, x, y):
        """Returns [Finding] if the pair is wrong and accused, else []."""
        if one_loss.wrong():
            if not self._accused or (x, y) in self._accused:
                return [one_loss.finding(self.dtype)]
            self.excused.append(f"{y} -> {x}")
        elif one_loss.right_is_zero():
            self.zero.add((x, y))
        else:
            self.formulas[f"{y}, {x}"] = [one_loss.formula()]
            if one_loss.legend() not in self.legends:
                self.legends.append(one_loss.legend())
        return []

    def outputs(self):
        return _variables(self._outputs)

    def disputed_by(self, held):
        """Returns a Dispute for each pair that is wrong here and right by the Judgement `held`, and
        removes these pairs' formulas from `held`."""
        found = []
        for (x, y), finding in self.wrong.items():
            if (x, y) in held.wrong or held.is_of_maps and not held.wrong:
                continue
            measured = held.formulas.pop(f"{y}, {x}", [])
            if (x, y) in held.zero:
                measured = [f"{bar(x)}_r = 0"]
            found.append(Dispute(finding.name, finding.text, [x], [y], finding.ranks, measured,
                                 finding.right, finding.legend, is_constant=all(
                                     (x, other) in held.zero for other in held.outputs())))
        if not self.wrong and self.findings and not held.findings:
            found = [Dispute(f.name, f.text, ranks=f.ranks) for f in self.findings]
        return found

    def _add_right(self, pair, x, names):
        if all(pair.right_is_zero(r, k) for r, k in pair.pairs()):
            self.zero.add((x, names.output))
            return
        right = formula(pair.right, pair.room, bases_of(pair), names)
        if right:
            self.formulas[f"{names.output}, {x}"] = right[0]
            self.legends += [right[1]] if right[1] and right[1] not in self.legends else []

    @staticmethod
    def _exchanged(wrong):
        """Returns {index in `wrong`: Mistake} for pairs of one input with two outputs whose
        cotangents are exchanged."""
        mistakes = {}
        for i, (pair, x, names) in enumerate(wrong):
            for j, (other, z, others) in enumerate(wrong):
                ranks = exchanged_on(pair, other) if i != j and x == z else None
                if ranks:
                    both = sorted([names.output, others.output])
                    text = (f"on {ranks_text(ranks)} the cotangents of {both[0]} and {both[1]} are"
                            " exchanged, as where the backward enters the collectives in another"
                            " order there than on the other ranks")
                    mistakes[i] = mistakes[j] = Mistake("other-backward", text, tuple(ranks))
        return mistakes

    def _finding(self, pair, x, names, known=None):
        first = known or mistake_in(pair)
        if self._is_only_at_kinks(pair):
            first = Mistake("tie",
                            "where the function has a kink (equal values, a zero) the gradient is"
                            " none of those that lie between the slopes of both sides", first.ranks)
        elif pair.low is not None and first.name == "other-backward":
            first = self._but_for_a_factor(pair) or first
        self.roundings |= {first.dtype} - {None}
        bases = bases_of(pair)
        measured = formula(pair.measured, pair.room, bases, names)
        right = formula(pair.right, pair.room, bases, names)
        grid = pair.coefficients()
        where = self._where(pair, x)
        details = where or ([] if measured and measured[0] != (right and right[0])
                            else self._details(pair, names, grid))
        legends = dict.fromkeys(line for f in (measured, right) if f and f[1]
                                for line in f[1].split("; "))
        if self._backward.explanation:
            first = replace(first, name="stale-or-aliased", text=self._backward.explanation)
        return Finding(first.name, first.text + self._why_missing(first, x), [x], [names.output],
                       list(first.ranks),
                       measured[0] if measured and not (right and measured[0] == right[0]) else [],
                       right[0] if right else [], "; ".join(legends),
                       grid and [[number(c) for c in row] for row in grid],
                       self.is_linear, details, self.dtype)

    def _where(self, pair, x):
        """Returns [a line with the elements that are wrong], or [] if these are many."""
        if not pair.by_element:
            return self._only_elements(pair, x)
        rows = [(r, i) for r in range(pair.ranks) for i in torch.stack(
            [(pair.excess(r, k) > 0).any(1) for k in range(pair.ranks)]).any(0).nonzero().flatten(
            ).tolist()]
        if not 0 < len(rows) <= min(_MOST_DETAILS, sum(len(row[0]) for row in pair.right) // 8):
            return []
        told = []
        for r, i in rows:
            shape = pair.row_shapes[r] if r < len(pair.row_shapes) else ()
            told.append(f"{_element(x, shape, i)} on rank {r}")
        return [f"wrong in {', '.join(told)} alone"]

    def _only_elements(self, pair, x):
        """Does this for random directions: if only one element of a rank's gradient is wrong, the
        errors of all cotangents are multiples of that element's column of coordinates."""
        ranks_of = {}
        for r, tensors in enumerate(self._inputs.tensors):
            tensor = next((t for t in tensors if t.name == x), None)
            if tensor is None or all(pair.is_right(r, k) for k in range(pair.ranks)):
                continue
            apart = torch.cat([m - right for m, right in zip(pair.measured[r], pair.right[r])], 1)
            left, sizes, _ = torch.linalg.svd(apart)
            columns = self._inputs.columns(r, tensor)
            along = (left[:, 0] @ columns).abs() / columns.norm(dim=0)
            alone = (along > 1 - _ALONE).nonzero().flatten().tolist()
            if (len(columns) < _LEAST_DIRECTIONS or len(alone) != 1
                    or bool((sizes[1:] > _ALONE * sizes[0]).any())):
                return []
            ranks_of.setdefault(_element(x, tensor.shape, alone[0]), []).append(r)
        told = [f"{element} on {ranks_text(ranks)}" for element, ranks in ranks_of.items()]
        return [f"wrong in {', '.join(told)} alone"] if told else []

    def _but_for_a_factor(self, pair):
        """Returns the Mistake if dividing the gradient by a likely factor makes it right, at kinks
        as well; else None."""
        for c in (self._ranks, 1 / self._ranks, 2, 0.5, -1):
            over = [[block / c for block in row] for row in pair.measured]
            if not replace(pair, measured=over).wrong():
                return mistake_in(replace(pair, right=over, low=None, high=None))
        return None

    def _why_missing(self, mistake, x):
        if mistake.name != "no-gradient":
            return ""
        none = [rank for rank in mistake.ranks if any(
            (rank, name) in self._backward.missing for name in _variables(self._inputs)[x])]
        ranks = f"rank{'s' if len(none) > 1 else ''} {', '.join(map(str, none))}"
        return f" (None on {ranks})" if none else ""

    def _details(self, pair, names, grid):
        if grid is not None:
            rows = ["[" + ", ".join(number(c) for c in row) + "]" for row in grid]
            return ["coefficients relative to the right backward, [to rank][from rank]:",
                    *(f"  {row}" for row in rows)]
        lines = []
        worst = sorted(pair.wrong(), key=lambda rk: -float(pair.excess(*rk).max()))[:_MOST_DETAILS]
        for r, k in worst:
            measured, right = pair.measured[r][k], pair.right[r][k]
            if max(measured.shape) <= _MOST_BLOCK:
                lines.append(f"to rank {r}, from rank {k}: measured {_matrix(measured)}, right"
                             f" {_matrix(right)}")
                continue
            i, j = divmod(int(pair.excess(r, k).reshape(-1).argmax()), measured.shape[1])
            what = "element" if pair.by_element else "direction"
            one, other = _told_apart(float(measured[i, j]), float(right[i, j]))
            lines.append(f"to rank {r} {what} {i}, from rank {k} {what} {j}: measured {one}, right"
                         f" {other}")
        return lines

    def _pair(self, inputs, outputs, x=None):
        """Returns the Pair of an input and an output. With the input's name x, its right blocks are
        the convention's."""
        ranks = range(self._ranks)
        rows = [_span(self._inputs, r, inputs) for r in ranks]
        columns = [_span(self._outputs, k, outputs) for k in ranks]

        def grid(matrix):
            return [[matrix[rows[r], columns[k]] for k in ranks] for r in ranks]

        d = self.derivative
        # Elements that are not judged must not decide what the mistake is called.
        right, measured = grid(d.matrix.T.masked_fill(d.open.T, 0)), grid(
            self._backward.matrix.masked_fill(d.open.T, 0))
        low, high = grid(d.low.T.masked_fill(d.open.T, 0)), grid(d.high.T.masked_fill(d.open.T, 0))
        room = grid(self._room_of_all)
        if x is not None and self._convention:
            right, low, high, room = (self._convention.grid(g, x) for g in (right, low, high, room))
        has_kinks = any(bool((h > l).any()) for r in ranks for h, l in zip(high[r], low[r]))
        if has_kinks:
            right = [_likely(right[r], measured[r], low[r], high[r]) for r in ranks]
        return Pair(right, measured, room,
                    self._identities(inputs, outputs, right), low if has_kinks else None,
                    high if has_kinks else None, self._zero_rows(inputs, rows),
                    self._inputs.kind == "elements", [self._shape(r, inputs) for r in ranks],
                    x is not None and self._convention is not None
                    and self._convention.objective == "mean")

    def _identities(self, inputs, outputs, right):
        if self._inputs.kind == "elements":
            return None
        tensors = [{t.name: t for t in tensors} for tensors in self._inputs.tensors]
        others = [{t.name: t for t in tensors} for tensors in self._outputs.tensors]
        only = len(inputs) == 1 and len(outputs) == 1
        return [[self._inputs.identity((r, tensors[r][inputs[0]]), (k, others[k][outputs[0]]),
                                       self._outputs) if only and inputs[0] in tensors[r]
                 and outputs[0] in others[k] else None for k in range(self._ranks)]
                for r in range(self._ranks)]

    def _rooms(self):
        """Returns by how much each element of the two maps may differ: the sum of the differences'
        error and what rounding may do."""
        right = self._right_sizes()
        room = self._rounding() + self.derivative.error.T.nan_to_num(nan=math.inf)
        if self._scatter is not None:
            # At a kink roundings may decide a tie, but the gradient must lie between the slopes.
            scatter = self._scatter if self._is_known else self._scatter.masked_fill(
                (self.derivative.high > self.derivative.low).T, 0)
            apart, largest = self._largest_in_pairs(scatter), self._largest_in_pairs(right)
            # If the derivative is no wider dtype's, at most half of the largest element may be off.
            most = apart if self._is_known else torch.minimum(apart, largest / 8)
            room = torch.maximum(room, self._rtol * largest) + _SCATTER * most
        return room

    def _right_sizes(self):
        right = self.derivative.matrix.T.abs().nan_to_num(posinf=0)
        return right + 0 * self._backward.matrix.nan_to_num(posinf=0, neginf=0)

    def _rounding(self):
        """Returns what rounding may do to elements, relative to the largest of row and column. In a
        narrow dtype the large gradient of another input, or from another output, would hide all of
        a small one. So the same input's from the same output count alone there, and roundings are
        measured if that is not enough."""
        right = self._right_sizes()
        if self._is_narrow:
            return self._rtol * _largest_in_columns(right, self._inputs)
        rows, columns = _largest(right, self._inputs, 0), _largest(right, self._outputs, 1)
        size = torch.maximum(rows, columns) + right.max() / 256 if right.numel() else right
        return self._rtol * size

    def _largest_in_pairs(self, matrix):
        """Sets each element to the largest of its input and output on all ranks, because a
        derivative near 0 has the error of the terms that it is made from."""
        result = matrix.clone()
        for rows in _by_name(self._inputs):
            for columns in _by_name(self._outputs):
                if rows and columns:
                    result[torch.tensor(rows)[:, None], columns] = matrix[rows][:, columns].max()
        return result

    def _is_linear_but_for_roundings(self):
        """Returns whether the backward is linear but for roundings, those of saturated outputs
        (derivative.least) among them. The error of differences says nothing about the backward."""
        room = (self._rounding() + self.derivative.least.T if self._scatter is None
                else self._room_of_all)
        return all(bool(((s.gradient - self._backward.matrix @ s.cotangent).abs() <= room
                         @ s.cotangent.abs()).all()) for s in self._backward.random)

    def _zero_rows(self, inputs, rows):
        """Returns, for each rank, a mask of the elements at which any rank's input is 0."""
        if self._inputs.kind != "elements" or len(inputs) != 1:
            return None
        values = [self._values.get((r, inputs[0])) for r in range(self._ranks)]
        if any(v is None for v in values) or len({len(v) for v in values}) != 1:
            return None
        zero = torch.stack([v == 0 for v in values]).any(0)
        return [zero for _ in values]

    def _shape(self, rank, names):
        return next((t.shape for t in self._inputs.tensors[rank] if [t.name] == names), ())

    # -- kinks

    def _is_only_at_kinks(self, pair):
        if pair.low is None:
            return False
        return all(bool((pair.excess(r, k) <= 0)[pair.high[r][k] <= pair.low[r][k]].all())
                   for r, k in pair.pairs())

    def _ties(self, matrix):
        """Returns [Finding] if the gradients of elements at a kink do not add up to the slope along
        which these move together."""
        off_hulls = self._off_hulls(matrix)
        for columns, shares, slopes, errors in [*self.derivative.together, *off_hulls]:
            gradient = shares @ matrix[columns]
            room = (errors + shares.abs() @ self._room_of_all[columns]
                    + self._rtol * gradient.abs())
            off = ((gradient - slopes).abs() > room) & slopes.isfinite()
            if not bool(off.any()):
                continue
            b = int(off.nonzero()[0])
            ranks = self._ranks_of(columns)
            weights = f"({', '.join(number(round(x, 6)) for x in shares.tolist()[:_MOST_SHARES])})"
            weights = "" if bool((shares.abs() == 1).all()) else f", weighted with {weights},"
            text = ("where values are equal or the function has another kink, the shares of"
                    f" {len(columns)} elements{weights} add up to {float(gradient[b]):.6g}; moved"
                    f" together they change the output by {float(slopes[b]):.6g}")
            most = room[off] / len(columns)
            missing = bool((matrix[columns][:, off].abs() <= most).all())
            return [Finding("no-gradient" if missing else "tie", text, ranks=ranks,
                            dtype=self.dtype)]
        return self._unlike_sums(matrix)

    def _unlike_sums(self, matrix):
        """Returns [Finding] if the gradients of some outputs do not add up to the derivative of
        their sum or difference: the sum of sorted values, for example, is smooth at ties."""
        for outputs, signs, slopes, errors in self.derivative.sums:
            gradient = matrix[:, outputs] @ signs
            room = errors + self._room_of_all[:, outputs].sum(1) + self._rtol * gradient.abs()
            off = ((gradient - slopes).abs() > room) & slopes.isfinite()
            if bool(off.any()):
                c = int(off.nonzero()[0])
                what = ("two ranks' outputs differ by" if bool((signs < 0).any()) else
                        "all outputs of one tensor add up to")
                of = "difference" if bool((signs < 0).any()) else "sum"
                text = ("where values are equal or the function has another kink, the gradients of"
                        f" {what} {float(gradient[c]):.6g} in an element; the derivative of their"
                        f" {of} is {float(slopes[c]):.6g}")
                return [Finding("tie", text, ranks=self._ranks_of([c]), dtype=self.dtype)]
        return []

    def _off_hulls(self, matrix):
        """Yields combinations as in derivative.together along which the gradient is outside of what
        the slopes near the inputs span."""
        for hull in self.derivative.hulls:
            shares = hull.off(matrix[hull.columns, hull.output])
            if not float(shares.abs().max()) > hull.floor:
                continue
            shares = shares / shares.abs().max()
            slopes = torch.full((matrix.shape[1],), math.nan, dtype=torch.float64)
            slopes[hull.output] = shares @ hull.point
            kept = shares.abs() > _NO_SHARE
            yield (hull.columns[kept].tolist(), shares[kept], slopes,
                   float(shares.abs().sum()) * hull.floor)

    def _scaled_ties(self, pairs):
        """Returns findings if dividing all gradients by one factor makes all right, even ties."""
        for c in _FACTORS if pairs else ():
            matrix = self._backward.matrix / c
            over = [(replace(pair, measured=[[block / c for block in row]
                                             for row in pair.measured]), pair, x, names)
                    for pair, x, names in pairs]
            if (self._tells_factors(matrix, c) and not any(part.wrong() for part, *_ in over)
                    and not self._ties(matrix)):
                likely = [(replace(pair, right=part.measured, low=None, high=None), x, names)
                          for part, pair, x, names in over]
                return _merged([self._finding(*each) for each in likely if each[0].wrong()])
        return []

    def _tells_factors(self, matrix, c):
        """Returns whether a tie proves the factor c: the divided shares add up to a slope that is
        not 0, and undivided ones are not all 0 or that whole slope, as a mask of the largest is."""
        for columns, shares, slopes, errors in self.derivative.together:
            parts = shares[:, None] * matrix[columns]
            known = (slopes.abs() > 4 * errors) & ((parts.sum(0) - slopes).abs() <= 4 * errors)
            all_of_it = ((c * parts - slopes).abs() <= 4 * errors) | (parts.abs() <= errors)
            if bool((known & ~all_of_it.all(0)).any()):
                return True
        return False

    def _named_ties(self, pairs):
        """Returns findings of pairs whose shares do not add up because of a mistake with a name,
        such as other ranks' dropped cotangents."""
        likely = [(replace(pair, low=None, high=None), x, names) for pair, x, names in pairs]
        return [self._finding(pair, x, names) for pair, x, names in likely
                if pair.wrong() and mistake_in(pair).name != "other-backward"]

    def _ranks_of(self, coordinates):
        return sorted({rank for (rank, _), span in self._inputs.ranges.items()
                       if any(span.start <= c < span.stop for c in coordinates)})

    # -- not linear

    def _judge_nonlinear(self):
        """Judges by the random samples if they show the mistake, else by what the cotangents of
        single elements give."""
        everyone = {"ranks": list(range(self._ranks)), "dtype": self.dtype}
        finding = self._op_or_rounding(everyone)
        if finding:
            self.findings.append(finding)
            return
        if self._inputs.kind == "elements":
            self._judge_pairs()
            self.right_for = []  # These would hold for cotangents of single elements alone.
            self.findings = [f if f.name in _OF_ELEMENTS else replace(
                f, name="other-backward", text="the backward gives another gradient than the right"
                " one") for f in self.findings]
        if not self.paired:
            self.findings.append(
                Finding("other-backward", "the backward is not linear in the cotangents",
                        linear=False, **everyone))

    def _op_or_rounding(self, everyone):
        # Products of large or small numbers leave a narrow dtype's range.
        samples = [s for s in self._backward.random if 0.1 < float(s.cotangent.abs().max()) < 10]
        for op in ("product", "max", "min"):
            if self._inputs.kind == "elements" and all(self._is_op(op, s) for s in samples):
                text = ("the backward applied the collective's own reduction to the cotangents: "
                        f"their {op} over the ranks")
                return Finding("same-op-backward", text, linear=False,
                               measured=[f"x̄_r = {op}_k ȳ_k"], **everyone)
        for dtype, share in NARROWER.items():
            if all(self._is_rounded(s, share) for s in self._backward.random):
                self.roundings.add(dtype)
                return Finding("precision", roundings_of(dtype), **everyone)
        return None

    def _is_op(self, op, sample):
        """Returns whether each rank's gradient is this op over all ranks' cotangents, element by
        element."""
        if len(set(map(len, self._inputs.tensors + self._outputs.tensors))) != 1 or len(
                self._inputs.tensors[0]) != 1:
            return False
        gradients, cotangents = self._by_rank(self._inputs, sample.gradient), self._by_rank(
            self._outputs, sample.cotangent)
        if len({len(v) for v in gradients + cotangents}) != 1:
            return False
        g = torch.stack(cotangents)
        right = {"product": g.prod(0), "max": g.amax(0), "min": g.amin(0)}[op]
        return all(bool(((x - right).abs() <= 16 * self._rtol * right.abs().max()).all())
                   for x in gradients)

    def _by_rank(self, coordinates, vector):
        return [vector[coordinates.ranges[r, coordinates.tensors[r][0].name]]
                for r in range(self._ranks)]

    def _is_rounded(self, sample, share):
        size = self._backward.matrix.abs() @ sample.cotangent.abs()
        return bool(((sample.gradient - self._backward.matrix @ sample.cotangent).abs()
                     <= share * size).all())


def _likely(right, measured, low, high):
    """Returns the right blocks of a rank's gradient. At a kink, where all of [low, high] is right,
    it takes the largest measured value, cut to that, of all outputs with the same slopes there, so
    that equal outputs have equal right blocks."""
    found = []
    for block, least, most in zip(right, low, high):
        best = torch.zeros_like(block)
        for other, l, h in zip(measured, low, high):
            if other.shape == block.shape:
                alike = torch.isclose(least, l, 1e-6) & torch.isclose(most, h, 1e-6)
                other = torch.minimum(torch.maximum(other.nan_to_num(), least), most)
                best = torch.where(alike & (other.abs() > best.abs()), other, best)
        best = torch.minimum(torch.maximum(best, least), most)
        found.append(torch.where(most > least, best, block))
    return found


def _right_for(by_input):
    """Returns texts of the objectives for which all inputs are right, each input being a tensor of
    its own on each rank or a copy of one tensor."""
    texts = []
    for loss in OBJECTIVES:
        copied = [x for x, names in by_input.items() if loss not in names]
        if any(loss + COPIED not in by_input[x] for x in copied):
            continue
        own = [x for x, names in by_input.items() if loss + COPIED not in names]
        if not copied and loss not in _OBJECTIVES:  # the default, by which something is wrong
            continue
        which = (f"the inputs {', '.join(copied)} that are each" if len(copied) > 1 else
                 f"the input {', '.join(copied)} that is")
        texts.append(_OBJECTIVES[loss + COPIED if copied else loss].format(
            input=which if own else "an input that is"))
    return texts


def list_of(names, count):
    """Returns {name: members} for lists of `count` tensors, one for each rank: each list is one
    variable."""
    found = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(?:\[(\d+)\]|(\d+))", name)
        if match and match[1] and match[1] not in names:
            found.setdefault(match[1], []).append(name)
    return {root: members for root, members in found.items() if len(members) == count > 1}


def _variables(coordinates):
    """Returns {variable: names of tensors}, in order."""
    names = list(dict.fromkeys(t.name for tensors in coordinates.tensors for t in tensors))
    lists = list_of(names, len(coordinates.tensors))
    of_list = {member: root for root, members in lists.items() for member in members}
    return {of_list.get(name, name): lists.get(of_list.get(name), [name]) for name in names}


def _span(coordinates, rank, names):
    spans = [coordinates.ranges[rank, name] for name in names if (rank, name) in coordinates.ranges]
    return slice(spans[0].start, spans[-1].stop) if spans else slice(0, 0)


def _largest(matrix, coordinates, dim):
    """Returns for each element the largest of its row (dim 0) or column (1), and of the same row or
    column of that tensor on other ranks."""
    size = matrix.amax(1 - dim) if matrix.numel() else matrix.new_zeros(matrix.shape[dim])
    result = size.clone()
    by_name = {}
    for (_, name), span in coordinates.ranges.items():
        by_name.setdefault((name, span.stop - span.start), []).append(span)
    for spans in by_name.values():
        most = torch.stack([size[span] for span in spans]).amax(0)
        for span in spans:
            result[span] = most
    return result.unsqueeze(1 - dim).expand_as(matrix)


def _largest_in_columns(matrix, inputs):
    """Returns for each element the largest of its column that is of the same input, on any rank."""
    result = matrix.clone()
    for rows in _by_name(inputs):
        if rows:
            result[rows] = matrix[rows].amax(0)
    return result


def _merged(findings):
    """Merges findings that say the same of several inputs or outputs."""
    kept = {}
    for f in findings:
        plain = [_anonymous(line, f) for line in f.measured + ["|"] + f.right]
        key = (f.name, f.text, tuple(f.ranks), tuple(plain), tuple(f.details))
        if key not in kept:
            kept[key] = f
            continue
        kept[key].inputs += [x for x in f.inputs if x not in kept[key].inputs]
        kept[key].outputs += [y for y in f.outputs if y not in kept[key].outputs]
    return list(kept.values())


def _anonymous(line, finding):
    return line.replace(bar(finding.inputs[0]), "X").replace(bar(finding.outputs[0]), "Y")


def _by_name(coordinates):
    """Returns for each tensor its coordinates on all ranks."""
    found = {}
    for (_, name), span in coordinates.ranges.items():
        found.setdefault(name, []).extend(range(span.start, span.stop))
    return found.values()


def _told_apart(*numbers):
    """Returns texts with as many digits as it takes for them to differ."""
    texts = [[f"{x:.{digits}g}" for x in numbers] for digits in range(6, 18)]
    return next((pair for pair in texts if len(set(pair)) > 1), texts[-1])


def _matrix(block):
    if block.shape == (1, 1):
        return f"{float(block):.6g}"
    return "[" + ", ".join("[" + ", ".join(f"{x:.6g}" for x in row) + "]"
                           for row in block.tolist()) + "]"


def _element(name, shape, number):
    """Returns text such as "x[2, 0]", with the number as index if the shape is unknown."""
    index = torch.unravel_index(torch.tensor(number), shape) if shape else [number]
    return f"{name}{[int(i) for i in index]}"
