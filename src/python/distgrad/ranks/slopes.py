"""Measures slopes by finite differences."""

import torch

# These step sizes are relative to the element. Each is used with a quarter of itself. If both give
# the same slope it is taken; they differ if a kink or jump lies between, and then the next, smaller
# step is tried.
STEPS = (2.0**-14, 2.0**-20, 2.0**-26)
LARGE_STEPS = (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-10)  # for noisy losses
_AGREES = 1e-4
_KINK = 1e-4  # by how much the slopes of both sides differ, relative to them
_ROUNDED = 16 * 2.0**-53  # of a value, relative to it
_NOISE = 64 * 2.0**-53  # of a loss, relative to it


class Slope:
    """Computes the slopes of all ranks' losses in one element, from the losses at +h, -h, +h/4 and
    -h/4.

    `noise` is that of the losses, by rank, if it exceeds float64's. `size` is that of the element,
    and of the values that are computed from it: what rounds them moves the slope of a curve."""

    def __init__(self, base, h, up, down, up_near, down_near, noise=None, size=0.0):
        self._h = h
        self._base = base
        self._far, self._near = (up - down) / (2 * h), (up_near - down_near) / (h / 2)
        self._gaps = (up - 2 * base + down) / h, (up_near - 2 * base + down_near) / (h / 4)
        self._sides = (base - down_near) / (h / 4), (up_near - base) / (h / 4)
        least = _NOISE * torch.stack([base, up, down]).abs().nan_to_num(posinf=0).amax(0)
        self._noise = (least if noise is None else torch.maximum(noise, least)) / (h / 4)
        self.value = (16 * self._near - self._far) / 15
        bend = self._gaps[1].abs() / (h / 4)
        self.error = 4 * (self._near - self._far).abs() + self._noise + _ROUNDED * size * bend
        self.why = ""

    def agrees(self, weights):
        apart = weighted((self._near - self._far)[None], weights).abs()
        size = weighted(self._near[None], weights).abs()
        return bool(apart <= _AGREES * size + 8 * weighted(self._noise[None], weights.abs()))

    def is_seen(self, weights):
        return bool(weighted(self.value, weights).abs() > weighted(self.error, weights.abs()))

    def look_for_kink(self, weights):
        far, near = (abs(float(weighted(g[None], weights))) for g in self._gaps)
        below, above = (float(weighted(s[None], weights)) for s in self._sides)
        noise = float(weighted(self._noise[None], weights.abs()))
        if not all(map(_is_finite, (far, near, below, above))):
            self.why = "the loss is not finite beside this value"
        elif not self.agrees(weights) and near > 2 * far:
            self.why = "the loss jumps at this value"
        elif near > 0.5 * far and near > _KINK * (abs(below) + abs(above)) + 8 * noise:
            self.why = (f"the loss has a kink at this value: its slope is {below:.4g} below and"
                        f" {above:.4g} above")
        elif not self.agrees(weights):
            self.why = ("finite differences with different steps do not agree on the slope at"
                        " this value")
        if self.why:  # no bound: no value counts as near one that is not known
            self.error = 1e-7 * self.value.abs()
        self.error = self.error.nan_to_num(nan=0, posinf=0)


def _is_finite(x):
    return x - x == 0


def weighted(by_rank, weights):
    """Sums over the ranks' losses without those of weight 0, which may be infinite."""
    return torch.where(weights != 0, by_rank * weights, torch.zeros_like(by_rank)).sum(-1)
