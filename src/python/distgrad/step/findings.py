"""Holds what a Judge found, and joins what is wrong in the same way."""

import dataclasses

ROUGHLY = 0.05  # A factor that is known so well, relatively, may be that of other parameters.


@dataclasses.dataclass
class Finding:
    """Describes parameters that are wrong in the same way; kind is "factor", "zero" or "other".
    factors is {rank: p.grad over the derivative} of ranks where that is one number; right says in
    words what is the derivative instead, or is "" if that is not known."""

    kind: str
    names: list
    factors: dict = dataclasses.field(default_factory=dict)
    right: str = ""
    instead: str = ""  # It says in words what p.grad is, if that is known.
    assumed: str = ""  # It says what is taken for granted.
    said: dict = dataclasses.field(default_factory=dict)  # {rank: what its p.grad says}
    between: tuple = ()  # If there is a factor, it lies between these two numbers.
    is_no_multiple: bool = False  # Directions show that there is no factor.
    are_unlike: bool = False  # Copies have different gradients, and nothing else is known.
    held: str = ""  # It names lines; what they detach is a constant in the derivative.
    keys: list = dataclasses.field(default_factory=list)

    @property
    def factor(self):
        """Returns the factor if it is one number on all ranks that hold the piece, else None."""
        values = list(self.factors.values())
        close = values and self.factors.keys() >= self.said.keys() and all(
            same_number(v, values[0]) for v in values)
        return sum(values) / len(values) if close else None

    def told_right(self):
        """Returns `right`, but for a sum over ranks that have the same gradient: a factor tells
        that already, even if it is known roughly."""
        has_factor = self.factor is not None or self.between and are_same(self.said.values())
        return "" if has_factor and "of p.grad" in self.right else self.right

    def part(self, keep):
        """Returns this Finding of the pieces with keep(key) alone."""
        keys = list(filter(keep, self.keys))
        return dataclasses.replace(self, keys=keys,
                                   names=list(dict.fromkeys(map(name_in, keys))))


@dataclasses.dataclass
class Judgement:
    findings: list = dataclasses.field(default_factory=list)
    undecided: dict = dataclasses.field(default_factory=dict)  # {name: why}
    too_small: list = dataclasses.field(default_factory=list)  # names
    is_suspicious: bool = False  # The gradients of some of these differ from what the loss does.
    not_asked: list = dataclasses.field(default_factory=list)  # names
    ambiguous: list = dataclasses.field(default_factory=list)  # names that are right as pieces only
    # {name: the relative size of an error that would not have been seen} is for right ones.
    blind: dict = dataclasses.field(default_factory=dict)

    def undecide(self, names, why):
        """Takes back what was found of these parameters."""
        self.undecided |= dict.fromkeys(names, why)
        kept = [f.part(lambda key: name_in(key) not in names) for f in self.findings]
        self.findings = [f for f in kept if f.keys]

    def join(self, sizes):
        """Joins findings of pieces or parameters that are wrong alike. Those whose factor is known
        only roughly come last, to join others. sizes is {piece's key: its number of elements}."""
        joined = []
        for finding in sorted(self.findings, key=lambda f: bool(f.between)):
            for other in joined:
                if _alike(finding, other):
                    other.names += [n for n in finding.names if n not in other.names]
                    other.keys += finding.keys
                    other.factors = {**other.factors, **finding.factors}
                    if other.instead != finding.instead:
                        other.instead = ""
                    if other.between:
                        other.between = overlap(finding.between, other.between)
                    break
            else:
                joined.append(finding)
        self.findings = joined
        for finding in joined[:]:
            self._leave_to_others(finding, sizes)

    def _leave_to_others(self, finding, sizes):
        """Gives a piece of one element, which is a multiple whatever it is, to the finding that
        other pieces of its parameter are no multiple, if there is one."""
        if len(finding.keys) > 1 or sizes[finding.keys[0]] > 1:
            return
        for other in self.findings:
            if other is not finding and other.is_no_multiple and finding.names[0] in other.names:
                other.keys += finding.keys
                self.findings.remove(finding)
                return


def with_constants(judgement, again, lines):
    """Returns (findings, keys of pieces that are right) of pieces that the Judgement finds wrong
    and that are judged `again` with what `lines` detach as constants. What rests on an assumption,
    a factor that is the same in both, and what is known to be right instead, is told as before."""
    open_ = {*again.undecided, *again.too_small, *again.not_asked, *again.ambiguous}
    factors = {key: f.factor for f in again.findings for key in f.keys}

    def is_the_same(finding):
        return finding.assumed or finding.factor is not None and all(
            factors.get(key) is not None and same_number(finding.factor, factors[key])
            for key in finding.keys)

    def is_right(key):
        return key not in factors and name_in(key) not in open_

    kept = [f for f in judgement.findings if is_the_same(f)]
    changed = [f for f in judgement.findings if f not in kept]
    asked = {key for f in changed if not f.right for key in f.keys}
    kept += [f.part(lambda key, f=f: not is_right(key) and (f.right or key not in factors))
             for f in changed]
    kept += [dataclasses.replace(f.part(asked.__contains__), held=lines) for f in again.findings]
    return ([f for f in kept if f.keys],
            [key for f in changed for key in f.keys if is_right(key)])


def name_in(key):
    return key.rpartition("/")[0]


def kind_of(factors):
    return "zero" if all(abs(factor) < 1e-6 for factor in factors) else "factor"


def same_number(a, b):
    return abs(a - b) <= 0.01 * max(abs(a), abs(b)) + 1e-9


def are_same(values):
    return all(same_number(value, other) for value in values for other in values)


def _alike(a, b):
    if a.between and b.between:
        return overlap(a.between, b.between) is not None and a.assumed == b.assumed
    if a.between and b.factor is not None:
        low, high = a.between
        return low <= b.factor <= high and high - low <= ROUGHLY * abs(b.factor)
    if (a.kind, a.told_right(), a.assumed) != (b.kind, b.told_right(), b.assumed):
        return False
    if a.instead != b.instead and (a.factor is None or b.factor is None):
        return False
    if a.is_no_multiple != b.is_no_multiple and not a.factors and not b.factors:
        return False
    shared = a.factors.keys() & b.factors.keys()
    if a.factor is not None and b.factor is not None:
        return same_number(a.factor, b.factor)
    return (bool(a.factors) == bool(b.factors) and a.factors.keys() == b.factors.keys()
            and all(same_number(a.factors[r], b.factors[r]) for r in shared))


def overlap(a, b):
    """Returns the interval that two intervals share, or None."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else None
