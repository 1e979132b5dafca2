"""What the ranks hold of each gradient against the single run's, and which mistake explains a difference.

The findings' names are those of `distgrad list findings`.
"""

import dataclasses
import fnmatch
import math
from collections import defaultdict

from .step_pieces import Misfit, lay_out, wide

# Part of the larger of the two dtypes' eps; times the largest element of the parameter's gradient, and of all gradients.
ULPS = {8: 4096, 4: 512, 2: 8}  # by bytes an element (of its real part)
_ULPS_OF_ALL = {8: 64, 4: 8, 2: 1}
_WORST = ("no-gradient", "unknown", "shape", "unsynchronised", "missing-reduction", "own-slice", "wrong-slice", "scaled",
          "unexplained", "precision")


@dataclasses.dataclass
class ParameterReport:
    """One parameter: `finding` is None where its gradient is right.

    `error` is the largest difference over the largest element of the truth (inf where there is no gradient), `factor` observed
    over truth where that is one number, `ranks` those that are wrong, `notes` what else a reader should know."""

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


@dataclasses.dataclass
class StepReport:
    """Of check_step: `parameters` by name, and the text, str(report)."""

    parameters: "dict[str, ParameterReport]"
    world_size: int
    backend: str

    @property
    def wrong(self):
        return [p for p in self.parameters.values() if p.finding]

    def __str__(self):
        wrong, total = self.wrong, len(self.parameters)
        head = f"{len(wrong)} of {_count(total, 'gradient')} {'is' if len(wrong) == 1 else 'are'} wrong" if wrong else (
            f"{_count(total, 'gradient')}, all right")
        lines = [f"check_step: {head}, on {_count(self.world_size, 'rank')} ({self.backend})"]
        for group in _grouped(wrong):
            lines += _group_lines(group)
        noted = defaultdict(list)
        for p in self.parameters.values():
            for note in p.notes:
                noted[note].append(p.name)
        lines += [f"note: {note}: {_names(names)}" for note, names in noted.items()]
        return "\n".join(lines)


def explain(single, ranks, *, world_size, backend, reduce=None, partly_held=(), rtol=None, atol=None):
    """The StepReport of {name: piece} of the single run, and a list of those by rank (see step_pieces)."""
    truths = {name: piece.get("tensor") for name, piece in _with_plain_names(single).items()}
    by_rank = [_with_plain_names(pieces) for pieces in ranks]
    largest = max((_finite_max(wide(t)) for t in truths.values() if t is not None), default=0.0)
    names = list(truths) + sorted({name for pieces in by_rank for name in pieces} - set(truths))
    judge = _Judge(world_size, largest, dict(reduce or {}), tuple(partly_held), rtol, atol)
    parameters = {}
    for name in names:
        pieces = {rank: held[name] for rank, held in enumerate(by_rank) if name in held}
        parameters[name] = judge.parameter(name, name in truths, truths.get(name), pieces)
    return StepReport(parameters, world_size, backend)


# Wrappers put themselves into the names of parameters; DDP as `module`, which further inside may be a name like any other.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def _with_plain_names(pieces):
    plain = {_plain_name(name): piece for name, piece in pieces.items()}
    return plain if len(plain) == len(pieces) else pieces  # two of them would become one


def _plain_name(name):
    parts = name.split(".")
    kept = [p for p in parts if p not in _WRAPPERS]
    kept = kept[1:] if kept[:1] == ["module"] else kept
    return ".".join(kept) or name


class _Judge:
    def __init__(self, world_size, largest, reduce, partly_held, rtol, atol):
        self._world_size = world_size
        self._largest = largest
        self._reduce = reduce
        self._partly_held = partly_held
        self._rtol = rtol
        self._atol = atol

    def parameter(self, name, known, truth, pieces):
        shape = tuple(truth.shape) if truth is not None else ()
        wrong = lambda finding, text, error=math.inf, **more: ParameterReport(  # noqa: E731
            name, finding, text, error, shape=shape, **more)
        if not known:
            return wrong("unknown", "the ranks return what the single run does not")
        if not pieces:
            return wrong("no-gradient", "no rank returns it")
        absent = self._absent(name, pieces)
        if truth is None:
            return self._without_truth(name, pieces)
        if absent and not (wide(truth) == 0).all():
            where = "every rank" if len(absent) == self._world_size else _ranks(absent)
            return wrong("no-gradient", f"no gradient (None, or not returned) on {where}, where the truth is not zero",
                         ranks=tuple(absent))
        notes = [f"no gradient on {_ranks(absent)}, where the truth is zero"] if absent else []
        if not any("tensor" in p for p in pieces.values()):
            if bool((truth != 0).any()):
                return wrong("no-gradient", "no rank has a gradient")
            return ParameterReport(name, shape=shape, notes=tuple(notes))
        try:
            held, how = lay_out(pieces, truth, self._op(name))
        except Misfit as misfit:
            return wrong("shape", str(misfit))
        report = self._compare(name, truth, held)
        if how.startswith("joined"):
            notes.append(f"plain tensors of the ranks, {how}, in the order of the ranks")
        report.notes += tuple(notes)
        return report

    def _absent(self, name, pieces):
        """The ranks whose optimizer would do nothing. A rank outside of a DTensor's mesh has no part in it."""
        may_lack = any(fnmatch.fnmatch(name, pattern) for pattern in self._partly_held)
        none = [rank for rank, p in pieces.items() if not p]
        return none + ([] if may_lack else [rank for rank in range(self._world_size) if rank not in pieces])

    def _without_truth(self, name, pieces):
        nonzero = [r for r, p in pieces.items() if "tensor" in p and bool((p["tensor"] != 0).any())]
        if not nonzero:
            return ParameterReport(name)
        return ParameterReport(name, "unknown", f"a gradient on {_ranks(nonzero)}, where the single run has none (None)",
                               math.inf, ranks=tuple(nonzero))

    def _op(self, name):
        for pattern, op in self._reduce.items():
            if fnmatch.fnmatch(name, pattern):
                return op
        return None

    def _compare(self, name, truth, held):
        report = ParameterReport(name, shape=tuple(truth.shape))
        flat = wide(truth).flatten()
        if flat.numel() == 0:
            return report
        dtypes = [truth.dtype] + [h.dtype for h in held]
        scale = _finite_max(flat)
        report.tolerance = self._tolerance(dtypes, scale)
        uncovered = _uncovered(flat, held)
        if uncovered:
            report.finding, report.error = "shape", math.inf
            report.text = f"{uncovered} of its {flat.numel()} elements are on no rank"
            return report
        sight = _Sight(flat, held, report.tolerance, self._world_size)
        report.error = max(sight.errors) / scale if scale else (math.inf if max(sight.errors) else 0.0)
        report.ranks = tuple(h.rank for h, error in zip(held, sight.errors) if not error <= report.tolerance)
        if report.ranks:
            report.worst = sight.worst(truth.shape)
            report.finding, report.text, report.factor = sight.explanation(dtypes)
        elif 0 < scale <= self._tolerance(dtypes, 0.0):
            report.notes += ("so small beside the others that rounding may be all of it: not judged",)
        if not bool(flat.isfinite().all()):
            report.notes += ("the single run's gradient is not finite",)
        return report

    def _tolerance(self, dtypes, scale):
        import torch

        coarse = max((d for d in dtypes if d.is_floating_point or d.is_complex), key=lambda d: torch.finfo(d).eps,
                     default=torch.float64)
        eps = torch.finfo(coarse).eps
        bytes_each = torch.finfo(coarse).bits // 8
        relative = ULPS.get(bytes_each, 1) * eps if self._rtol is None else self._rtol
        absolute = _ULPS_OF_ALL.get(bytes_each, 1) * eps * self._largest if self._atol is None else self._atol
        return relative * scale + absolute


class _Sight:
    """One gradient as the ranks hold it, and the truth; both flat and wide."""

    def __init__(self, truth, held, tolerance, world_size):
        self._truth = truth
        self._held = held
        self._tolerance = tolerance
        self._world_size = world_size
        self.errors = [_distance(h.value, truth[h.index]) for h in held]

    def worst(self, shape):
        h = max(zip(self.errors, range(len(self._held))), key=lambda e: (math.isnan(e[0]), e[0]))[1]
        h = self._held[h]
        apart = (h.value - self._truth[h.index]).abs().nan_to_num(nan=math.inf)
        at = int(apart.argmax())
        where, rest = [], int(h.index[at])
        for size in reversed(shape):
            where.insert(0, rest % size)
            rest //= size
        place = f" {where}" if where else ""
        return f"rank {h.rank}{place}: {_number(h.value[at])}, truth {_number(self._truth[h.index[at]])}"

    def explanation(self, dtypes):
        """(finding, text, factor)"""
        off = [h for h, error in zip(self._held, self.errors) if not error <= self._tolerance]
        if any(not bool(h.value.isfinite().all()) for h in off) and bool(self._truth.isfinite().all()):
            return "unexplained", f"not finite on {self._where(off)}, where the truth is", None
        for explain in (self._scaled, self._missing_reduction, self._wrong_slice, self._unsynchronised):
            found = explain(off)
            if found:
                return found
        return self._rest(off, dtypes)

    def _scaled(self, off):
        factors = {h.rank: self._factor(h.value, self._truth[h.index]) for h in off}
        if any(c is None for c in factors.values()):
            return None
        told = [c for c in factors.values() if not math.isnan(c)]  # of a piece that is zero in the truth nothing can be told
        if not told:
            return None
        first = told[0]
        if all(abs(c - first) <= 1e-3 * abs(first) for c in told):
            if abs(first) * _finite_max(self._truth) <= self._tolerance:
                return "no-gradient", f"zero on {self._where(off)}, where the truth is not", 0.0
            text = f"{self._factor_text(first)} on {self._where(off)}{_advice(first, self._world_size)}"
            return ("unsynchronised" if self._twins_are_right(off) else "scaled"), text, self._snapped(first)
        listed = ", ".join(f"{c:.4g} on rank {rank}" for rank, c in factors.items())
        return "unsynchronised", f"the truth times a number that differs by rank: {listed}", None

    def _twins_are_right(self, off):
        """Whether some rank has the same part of the gradient as one of these, and has it right."""
        wrong = {id(h) for h in off}
        return any(any(id(h) in wrong for h in twins) and any(id(h) not in wrong for h in twins)
                   for _, groups in self._groups()[:1] for twins in groups)

    def _factor(self, value, truth):
        """c where value = c truth within the tolerance; NaN where the truth is zero, None where there is none."""
        weight = (truth.abs() ** 2).sum()
        if float(weight) == 0 or _finite_max(truth) <= self._tolerance:
            return math.nan if _distance(value, truth * 0) <= self._tolerance else None
        c = complex((truth.conj() * value).sum() / weight) if truth.is_complex() else float((truth * value).sum() / weight)
        if isinstance(c, complex):
            c = c.real
        fits = _distance(value, c * truth) <= self._tolerance * max(1.0, abs(c))
        # Of one or two numbers any other one is a multiple, or nearly.
        telling = int((truth.abs() > self._tolerance).sum()) > 2 or self._known(c) is not None or abs(c) < 1e-12
        return c if fits and telling else None

    def _sizes(self):
        """By how much a group can be too many: number -> what has that size."""
        n = self._world_size
        sizes = {n: "the world size"}
        for h in self._held:
            for name, ranks in h.axes:
                sizes.setdefault(len(ranks), f"the size of {name}")
        sizes.setdefault(n * n, "the world size squared")
        for d in range(2, n):
            if n % d == 0:
                sizes.setdefault(d, f"the size of a group of {d} of the {n} ranks")
        sizes.pop(1, None)
        return sizes

    def _known(self, c):
        for size, what in self._sizes().items():
            for value, text in ((size, f"{size} times the truth, {size} being {what},"),
                                (1 / size, f"1/{size} of the truth, {size} being {what},")):
                if abs(c - value) <= 1e-3 * value:
                    return value, text
        return (-1.0, "the truth with the wrong sign") if abs(c + 1) <= 1e-3 else None

    def _snapped(self, c):
        known = self._known(c)
        return known[0] if known else c

    def _factor_text(self, c):
        known = self._known(c)
        return known[1] if known else f"{c:.6g} times the truth"

    def _missing_reduction(self, off):
        """Some sum over ranks that hold the same part of the gradient is the truth, or a multiple of it."""
        fitting = [(what, groups, c) for what, groups in self._groups() if (c := self._sum_over(groups)) is not None]
        if not fitting:
            return None
        # The sum itself, then the mean, then whatever else.
        what, groups, c = min(fitting, key=lambda f: (abs(f[2] - 1) > 1e-3, abs(f[2] - len(f[1][0])) > 1e-3 * f[2]))
        if abs(c - 1) <= 1e-3:
            reduced, scaled, remedy = "the sum", " is the truth", "all_reduce it (SUM)"
        elif abs(c - len(groups[0])) <= 1e-3 * c:
            reduced, scaled, remedy = "the mean", " is the truth", "all_reduce it and divide by their number,"
        else:
            reduced, remedy = "the sum", "all_reduce it, and scale it,"
            scaled = f" is {self._factor_text(c).rstrip(',')}"
        finding, each = "missing-reduction", "each rank has only its own part"
        if self._disjoint(groups):
            finding, each = "own-slice", "each rank has only its own slice, and zeros elsewhere"
        return finding, f"{each}; {reduced} over {what}{scaled}: {remedy} before the optimizer's step", None

    def _sum_over(self, groups):
        """c where the sums over the groups are c times the truth. None: they are not, or each rank's is (that is scaled)."""
        if all(self._alike(group) for group in groups):
            return None
        factors = [self._factor(sum(h.value for h in group), self._truth[group[0].index]) for group in groups]
        told = [c for c in factors if c is not None and not math.isnan(c)]
        alike = told and all(c is not None for c in factors) and all(abs(c - told[0]) <= 1e-3 * abs(told[0]) for c in told)
        return told[0] if alike and abs(told[0]) > 1e-9 else None

    def _groups(self):
        """[(words, [[Held]])]: how the ranks that hold the same elements could be meant to be summed, the world first."""
        same = defaultdict(list)
        for h in sorted(self._held, key=lambda h: h.rank):
            same[(h.index.numel(), int(h.index.sum()), int((h.index * h.index).sum()))].append(h)
        replicas = [group for group in same.values() if len(group) > 1 and group[0].index.numel()]
        if not replicas:
            return []
        size = len(replicas[0])
        whole = "the ranks" if size == self._world_size else "the ranks that hold it"
        found = [(whole, replicas)]
        by_rank = {h.rank: h for group in replicas for h in group}
        names = dict.fromkeys(name for h in self._held for name, _ in h.axes)
        for name in names:
            along = dict.fromkeys(ranks for h in self._held for n, ranks in h.axes if n == name)
            groups = [[by_rank[r] for r in ranks if r in by_rank] for ranks in along]
            if all(len(g) == len(ranks) > 1 and len({tuple(h.index.shape) for h in g}) == 1
                   and all(bool((h.index == g[0].index).all()) for h in g) for g, ranks in zip(groups, along)):
                found.append((name, groups))
        for d in range(2, size):
            if size % d == 0 and not names:
                found.append((f"blocks of {d} ranks", [g[i:i + d] for g in replicas for i in range(0, len(g), d)]))
                found.append((f"every {_ordinal(size // d)} rank", [g[i::size // d] for g in replicas for i in range(size // d)]))
        return found

    def _alike(self, group):
        return all(_distance(h.value, group[0].value) <= self._tolerance for h in group)

    def _disjoint(self, groups):
        return all(int(sum((h.value != 0).int() for h in group).max()) <= 1
                   and sum(bool((h.value != 0).any()) for h in group) > 1 for group in groups)

    def _wrong_slice(self, off):
        moves = {}
        for h in off:
            if h.index.numel() == 0:
                continue
            for other in self._held:
                fits = other.index.numel() == h.index.numel() and bool((other.index != h.index).any())
                if fits and _distance(h.value, self._truth[other.index]) <= self._tolerance:
                    moves[h.rank] = other.rank
                    break
        if len(moves) < len(off):
            return None
        listed = ", ".join(f"rank {a} has rank {b}'s" for a, b in moves.items())
        return "wrong-slice", f"the right numbers in the wrong place: {listed} slice", None

    def _unsynchronised(self, off):
        for what, groups in self._groups()[:1]:
            if all(self._alike(group) for group in groups):
                return None
            wrong = {id(h) for h in off}
            right = [h for h in self._held if id(h) not in wrong]
            if right:
                return "unsynchronised", f"right on {self._where(right)}, wrong on {self._where(off)}: they must agree", None
            return "unsynchronised", "the ranks disagree where they must agree, and no sum over them is the truth", None
        return None

    def _rest(self, off, dtypes):
        error = max(self.errors) / (_finite_max(self._truth) or 1.0)
        if error < 2 ** -6:
            return "precision", ("off by little, and no known mistake fits: if the step computes in"
                                 " another precision or order than the single run (autocast, TF32, bf16), say how much is"
                                 " allowed with rtol="), None
        return "unexplained", f"wrong on {self._where(off)}, and no known mistake fits", None

    def _where(self, held):
        ranks = [h.rank for h in held]
        return "every rank" if len(ranks) == self._world_size else _ranks(ranks)


def _advice(c, n):
    if n > 1 and abs(c - n) <= 1e-3 * n:
        return ": summed over the ranks where the mean is meant, or the loss was multiplied"
    if n > 1 and abs(c * n - 1) <= 1e-3:
        return ": divided once too often (DDP and FSDP divide by the world size themselves), or not summed"
    if n > 1 and abs(c * n * n - 1) <= 1e-3:
        return ": divided twice too often"
    return ""


def _uncovered(truth, held):
    """How many elements that are not zero no rank has."""
    import torch

    seen = torch.zeros(truth.numel(), dtype=torch.bool)
    for h in held:
        seen[h.index] = True
    return int((~seen & (truth != 0)).sum())


def _distance(value, truth):
    """The largest difference; inf where only one is finite, or they are not the same infinity. NaN equals NaN."""
    if value.numel() == 0:
        return 0.0
    same = (value == truth) | (value.isnan() & truth.isnan())
    apart = (value - truth).abs().nan_to_num(nan=math.inf)
    apart[same] = 0.0
    return float(apart.max())


def _finite_max(values):
    if values.numel() == 0:
        return 0.0
    return float(values.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).max())


def _grouped(wrong):
    groups = defaultdict(list)
    for p in wrong:
        groups[p.finding, p.text].append(p)
    for group in groups.values():
        group.sort(key=lambda p: -p.error)
    return sorted(groups.values(), key=lambda g: (-g[0].error, _WORST.index(g[0].finding)))


def _group_lines(group):
    first = group[0]
    count = "" if len(group) == 1 else f" ({_count(len(group), 'gradient')})"
    lines = ["", f"{first.finding}{count}: {first.text}"]
    rows = [[p.name, str(list(p.shape)), f"error {p.error:.2g}" if math.isfinite(p.error) else "", p.worst] for p in group]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        lines.append(("  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths) if width)).rstrip())
    return lines


def _number(value):
    value = value.item()
    return f"{value:.6g}"


def _count(n, what):
    return f"{n} {what}" + ("" if n == 1 else "s")


def _ranks(ranks):
    ranks = sorted(ranks)
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _names(names):
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _ordinal(n):
    return {2: "2nd", 3: "3rd"}.get(n, f"{n}th")
