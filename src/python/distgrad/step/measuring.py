"""Measures the declared loss's derivative along a move of parameters, beside what p.grad says.

All pieces of a group are moved at once, in proportion to their own values, along a random direction
and along their gradients. The loss's change is one number; what the gradients say is a sum over the
pieces. Both are of the real move, after rounding to the parameter's dtype.
"""

import copy
import dataclasses
import hashlib
import math

import torch

from .running import without_count

# The size of a move relative to the values, the relative error that the loss's curvature may add
# (far less in practice), and rounding depend on the coarsest dtype that the step computes in.
_SIZES = {torch.float64: (1e-5, 1e-6, 2.0**-52), torch.float32: (2e-3, 4e-3, 2.0**-23),
          torch.float16: (2e-2, 2e-2, 2.0**-10), torch.bfloat16: (6e-2, 4e-2, 2.0**-7)}
# Values that were once in a shorter dtype may be off by this, relatively.
_ROUNDED = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
# Gradients that a step in float64 keeps in these dtypes may be off by this, relatively.
_STORED = {torch.float32: 2.0**-16, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
_ZEROS_MOVE = 0.1  # Parameters that are all zero move as if they had this size.
_TINY = 2.0**-12  # A move of this size is of a few roundings of float32 values.
_KINKS = 2  # Kinks may move what is measured by so many times what is seen of them.
_SEEN = 4  # An error of this many resolutions is found.


@dataclasses.dataclass
class Said:
    """Holds what p.grad on one rank says of a piece's move; size is the product of their norms."""

    value: float
    size: float


@dataclasses.dataclass
class Measurement:
    """Holds measured, the change of the loss per unit of the move, and said, {piece's key: {rank:
    Said}}. resolution is how far measured and the sum of said may be apart; rounding is the part of
    it that comes from gradients in a shorter dtype."""

    measured: float
    said: dict
    resolution: float
    rounding: float = 0.0
    move: tuple = ()  # These are (seed, size, alike) of measure().
    kinks: float = 0.0  # So much of the resolution is for kinks that the move crosses.

    def total(self):
        return sum(self.of(key) for key in self.said)

    def of(self, key):
        """Returns what copies say on average."""
        values = self.values(key).values()
        return sum(values) / len(values)

    def values(self, key):
        """Returns {rank: what its p.grad says}."""
        return {rank: said.value for rank, said in self.said[key].items()}

    def weight(self):
        return sum(abs(self.of(key)) for key in self.said)

    def agrees(self):
        return abs(self.measured - self.total()) <= self.resolution

    def unseen(self, resolutions=_SEEN):
        """Returns pieces whose share of the sum is too small for an error in them to be seen."""
        return [key for key in self.said if abs(self.of(key)) < resolutions * self.resolution]

    def ratio(self):
        """Returns what gradients say over what is measured, or None if not resolved to 1 %."""
        if abs(self.measured) < 100 * self.resolution:
            return None
        return self.total() / self.measured


class Measuring:
    """Measures moves of the pieces. gradients is {name: tensor or None} as the step left them."""

    def __init__(self, runs, pieces, gradients, base, dtypes, again=None):
        """Takes dtypes, texts of those in which step() computes on this rank, and again(), which
        runs the step and returns the gradients that it leaves now."""
        self.runs, self.pieces = runs, {piece.key: piece for piece in pieces}
        self.gradients, self.base = gradients, base
        self.is_wide = any(runs.gather(bool(runs.values)))
        self.dtype = torch.float64 if self.is_wide else self._coarsest(dtypes)
        self.step, self._curvature, self._eps = _SIZES[self.dtype]
        self.noise = 64 * _SIZES[torch.float64][2] * self._loss_size()
        self.was_moved = False  # Whether a move of parameters has changed the loss.
        self.shared = frozenset()  # The holders of these pieces all have the same gradient.
        self._weights, self._sizes, self._again = {}, {}, again
        self.rounded = self._rounded_gradients()  # {key: (dtype's name, relative error)}
        self._stored = {}  # {key: the relative error of a gradient that is kept in its dtype}
        if self.is_wide:
            self._stored = {key: error for row in runs.gather(
                {key: _STORED.get(runs.parameters[self.pieces[key].name].dtype, 0.0)
                 for key in self._own(self.pieces)}) for key, error in row.items()}

    def with_gradients(self, gradients):
        """Returns a Measuring as if p.grad were these, which all holders of a piece have alike."""
        other = copy.copy(self)
        other.gradients = {name: gradients.get(name) for name in self.gradients}
        other.shared, other._weights, other._again = frozenset(self.pieces), {}, None
        return other

    # -- the precision

    def _rounded_gradients(self):
        """Returns {key: (dtype's name, relative error)} of pieces whose gradients on some rank hold
        values of a shorter dtype in a wider one, perhaps because they were reduced in it."""
        own = {}
        largest = max((float(g.abs().max()) for g in self.gradients.values()
                       if g is not None and g.numel()), default=0.0)
        for key in self._own(self.pieces):
            gradient = self.gradients[self.pieces[key].name]
            for dtype, error in _ROUNDED.items():
                # A gradient that is only rounding error has few digits by nature.
                if gradient is not None and torch.finfo(gradient.dtype).eps < 2 * error and bool(
                        (gradient.abs() > 64 * torch.finfo(gradient.dtype).eps * largest).any()
                ) and holds(gradient, dtype):
                    own[key] = (str(dtype).removeprefix("torch."), 8 * error)
                    break
        found = {}
        for row in self.runs.gather(own):
            for key, said in row.items():
                found[key] = max(said, found.get(key, said), key=lambda pair: pair[1])
        return found

    def error_of(self, key):
        """Returns the relative error that a gradient has by being rounded to a shorter dtype."""
        return max(self.rounded.get(key, ("", 0.0))[1], self._stored.get(key, 0.0))

    def is_short(self):
        return self.dtype in (torch.bfloat16, torch.float16)

    def room(self):
        """Returns how far a right gradient may be from the known one, relatively, at the least."""
        return 1e-4 if self.is_wide else 1e-6 if self.dtype == torch.float64 else 1e-2

    def errors_beside_known(self, key):
        """Returns how far a right gradient may be from a known one, relative to what that says of a
        move, and relative to both norms: values that are small beside these are rounding."""
        if self.is_short():
            error = max(self.error_of(key), _ROUNDED[self.dtype])
            return error, 3 * error
        error = self.error_of(key)
        return error, max(1e-12 if self.dtype == torch.float64 else 1e-4, error / 4)

    def _coarsest(self, dtypes):
        known = {str(d): d for d in _SIZES}
        own = {str(p.dtype).replace("complex128", "float64").replace("complex64", "float32")
               for p in self.runs.parameters.values()}
        every = {d for row in self.runs.gather([*own, *dtypes]) for d in row}
        found = [known[d] for d in sorted(every) if d in known] or [torch.float64]
        return max(found, key=lambda d: _SIZES[d][2])

    def most_together(self):
        """Returns how many pieces may be moved at once so that an error in each is seen."""
        error = max(map(self.error_of, self.pieces), default=0.0)
        most = max(1, int(1 / (1.5 * _SEEN * self._curvature)))
        while most > 1 and 1.5 * _SEEN * (
                self._curvature + 2 * error / math.sqrt(most)) > 1 / most:
            most -= 1
        return most

    def _loss_size(self):
        sizes = [abs(without_count(x)) for x in self.runs.losses if x is not None]
        return max([abs(self.base), *sizes])

    def find_noise(self, keys, first):
        """Finds how far the loss is off a smooth function of the parameters, from moves of a few
        roundings. What gradients say is subtracted, times the factor by which it was off in the
        Measurement `first`. If that is far from 1, moves to both sides tell more."""
        if self.dtype == torch.float64:
            return
        few = 8 if self.dtype == torch.float32 else 1
        factor = first.measured / first.total() if first.total() else 0.0
        is_near = 0.7 < factor < 1.4  # Twice or half as much is what many mistakes make.
        factor = 1.0 if is_near else max(-1.0, min(1.0, factor))
        seeds, size = (101, 102, 103), few * self._eps
        found = [self._one_sided(keys, seed, size) for seed in seeds]
        typical = _typical([rise - factor * said for rise, said in found])
        if not is_near:
            back = [self._one_sided(keys, seed, -size)[0] for seed in seeds]
            typical = min(typical, _typical([(rise + other) / 2
                                             for (rise, _), other in zip(found, back)]))
        self.noise = max(self.noise, 2 * _SIZES[torch.float32][2] * self._loss_size(), 2 * typical)

    def is_rough(self, found):
        """Returns whether the loss of a step in float64 changes by steps, as something inside has
        fewer digits: then a far smaller move than that of the Measurement shows another
        derivative."""
        if not self.is_wide:
            return False
        seed, size, alike = found.move
        near = self.measure(found.said, seed, size=size * _TINY, alike=alike)
        noise = self.noise / (self.step * size * _TINY)
        return abs(near.measured - found.measured) > 0.1 * abs(found.measured) + 10 * noise

    def _one_sided(self, keys, seed, size):
        """Returns by how much the loss rises in a move, and what gradients say of that."""
        before = self._moved(keys, seed, size)
        loss = self.runs.loss()
        said = self._dots(before)
        put_back(before)
        return loss - self.base, self._total({key: value for key, (value, _) in said.items()})

    # -- measurements

    def measure(self, keys, seed, *, size=1.0, alike=True):
        """Returns the Measurement of these pieces moved together. size is relative to the usual
        move. With alike=True all pieces move along their gradients by a full share, with False by
        a random part of it, and with None not along them."""
        keys = list(keys)
        self._weigh(keys)
        step = self.step * size
        losses, sums = [], []
        for sign in (1, -1):
            before = self._moved(keys, seed, sign * step, alike)
            losses.append(self.runs.loss())
            sums.append(self._dots(before))
            put_back(before)
        self.was_moved = self.was_moved or losses[0] != losses[1]
        plus, minus = sums
        mine = {key: ((plus[key][0] - minus[key][0]) / (2 * step),
                      max(plus[key][1], minus[key][1]) / step) for key in plus}
        said = {key: {} for key in keys}
        for rank, row in enumerate(self.runs.gather(mine)):
            for key, (value, norms) in row.items():
                said[key][rank] = Said(value, norms)
        found = Measurement((losses[0] - losses[1]) / (2 * step), said, 0.0)
        found.move = seed, size, alike
        weight, total = found.weight(), abs(found.total())
        if total > 0.5 * weight and abs(found.measured) < total:
            weight *= abs(found.measured) / total  # Curvature depends on the loss, not on p.grad.
        weight = max(weight, abs(found.measured))
        rounding = [self.error_of(key) * max((s.size for s in said[key].values()), default=0.0)
                    for key in keys]
        rounding = min(sum(rounding), 2 * math.hypot(*rounding))  # Most have signs of their own.
        found.rounding = rounding
        found.resolution = self.noise / step + self._curvature * size**2 * weight + rounding
        return found

    def with_kinks(self, found):
        """Returns the Measurement with room for kinks of the loss that its move crosses, as of
        ReLUs near 0: what p.grad says in the middle differs from the mean of both ends then, and
        not by curvature. Runs whole steps at the ends of the move, and of its half."""
        if found.kinks or self._again is None:
            return found
        seed, size, alike = found.move

        def said(gradients):
            return self._total(self.dots(found.said, seed, gradients, alike=alike))

        def said_at(part):
            moved = self._moved(found.said, seed, part * size * self.step, alike)
            gradients = self._again()
            put_back(moved)
            return said(gradients)

        middle = said(self.gradients)
        kinks = _KINKS * max(abs((said_at(part) + said_at(-part)) / 2 - middle)
                             for part in (1, 0.5))
        return dataclasses.replace(found, resolution=found.resolution + kinks, kinks=kinks)

    def _total(self, mine):
        """Returns the sum over pieces of what their copies say on average; mine is {piece's key:
        what this rank says}."""
        found = {}
        for row in self.runs.gather(mine):
            for key, value in row.items():
                found.setdefault(key, []).append(value)
        return sum(sum(values) / len(values) for values in found.values())

    def dots(self, keys, seed, tensors, *, alike=True):
        """Returns {key: what this rank's {name: tensor or None} say of the move}, per unit of the
        move, for moves that measure() made."""
        self._weigh(list(keys))
        found = {}
        for key in self._own(keys):
            name = self.pieces[key].name
            move = self._direction(key, seed, alike)
            value = tensors.get(name)
            found[key] = 0.0 if value is None else dot(value, move)
        return found

    # -- moves

    def _own(self, keys):
        return [key for key in keys if self.runs.rank in self.pieces[key].holders]

    def _moved(self, keys, seed, step, alike=True):
        """Moves this rank's pieces; returns {key: (parameter's local tensor, a copy of before)}."""
        before = {}
        with torch.no_grad():
            for key in self._own(keys):
                local = self.runs.local(self.pieces[key].name)
                before[key] = (local, local.clone())
                move = self._direction(key, seed, alike)
                local.copy_((local.to(move.dtype) + step * move).to(local.dtype))
        return before

    def _dots(self, before):
        """Returns {key: (what this rank's gradient says of the real move, product of norms)}."""
        found = {}
        for key, (local, value) in before.items():
            gradient = self.gradients[self.pieces[key].name]
            wide = torch.complex128 if local.is_complex() else torch.float64
            move = local.detach().to(wide) - value.to(wide)
            if gradient is None:
                found[key] = (0.0, 0.0)
            else:
                norms = float(move.norm()) * float(gradient.to(wide).norm())
                found[key] = (dot(gradient, move), norms)
        return found

    def _weigh(self, keys):
        """Weighs pieces: those with large gradients move less, so that small ones count as well."""
        unknown = [key for key in keys if key not in self._weights]
        if not self.runs.gather(bool(unknown))[0]:
            return
        sizes = self._most(unknown, lambda key, norm, n: norm * self._size(key) * math.sqrt(n))
        positive = sorted(size for size in sizes.values() if size > 0)
        median = positive[len(positive) // 2] if positive else 0.0
        for key, size in sizes.items():
            self._weights[key] = min(1.0, median / size) if size > 0 else 1.0

    def weight(self, key):
        """Returns what the piece's usual move is multiplied by, on all ranks alike."""
        return min(row.get(key, 1.0) for row in self.runs.gather(self._weights))

    def gradient_sizes(self):
        """Returns {key: the root mean square of the gradient's elements, of the largest copy}."""
        return self._most(self.pieces, lambda _, norm, n: norm / math.sqrt(n or 1))

    def _most(self, keys, of):
        """Returns {key: the most of all ranks' of(key, the gradient's norm, its elements)}."""
        own = {}
        for key in self._own(keys):
            gradient = self.gradients[self.pieces[key].name]
            norm = 0.0 if gradient is None else float(real(gradient).double().norm())
            own[key] = of(key, norm, math.prod(self.pieces[key].shape))
        every = self.runs.gather(own)
        return {key: max(row[key] for row in every if key in row) for key in keys}

    def _size(self, key):
        """Returns the root mean square of a piece's values, which are unmoved between runs."""
        if key not in self._sizes:
            local = real(self.runs.local(self.pieces[key].name).detach())
            self._sizes[key] = float(local.double().square().mean().sqrt()) or _ZEROS_MOVE
        return self._sizes[key]

    def _direction(self, key, seed, alike):
        """Returns the piece's move, the same on all ranks that hold it."""
        piece = self.pieces[key]
        local = self.runs.local(piece.name).detach()
        generator = torch.Generator().manual_seed(number(piece.key, seed))
        wide = torch.complex128 if local.is_complex() else torch.float64
        weight, size = self._weights.get(key, 1.0), self._size(key)
        move = torch.randn(local.shape, generator=generator, dtype=wide).to(local.device)
        share = 1.0 if alike else float(torch.rand((), generator=generator)) * 0.95 + 0.05
        gradient = self.gradients[piece.name]
        if alike is not None and gradient is not None and (
                len(piece.holders) == 1 or key in self.shared):
            scale = float(real(gradient).double().square().mean().sqrt())
            if scale > 0 and math.isfinite(scale):
                move += gradient.to(wide) * (share / scale)
        if piece.name in self.runs.padding:
            move[self.runs.padding[piece.name]] = 0
        return move * (size * weight)


def put_back(before):
    """Gives tensors their values of {key: (tensor, a copy of before)}."""
    with torch.no_grad():
        for local, value in before.values():
            local.copy_(value)


def holds(x, dtype):
    """Returns whether all elements are values of a shorter dtype."""
    parts = real(x)
    return bool((parts == parts.to(dtype).to(parts.dtype)).all())


def _typical(values):
    return math.sqrt(sum(x * x for x in values) / len(values))


def real(x):
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def dot(gradient, move):
    """Returns a loss's change along a move; complex values count as in PyTorch, by real parts."""
    wide = torch.complex128 if move.is_complex() or gradient.is_complex() else torch.float64
    a, b = gradient.detach().to(wide), move.to(wide)
    return float((real(a) * real(b)).sum())


def number(text, seed):
    return int.from_bytes(hashlib.blake2b(f"{text} {seed}".encode(), digest_size=7).digest(),
                          "little")
