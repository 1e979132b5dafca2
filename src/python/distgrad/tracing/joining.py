"""Where in the single run's tensor a rank's lies: a piece, rows in another order, or a share of a
sum."""

import itertools

import torch

_MOST_PLACES = 256
_MOST_WORK = 1 << 26  # multiplications
# Of what is beyond these, and far beyond what it is computed from, rounding is not the cause.
JUMPS = {torch.float64: 1e-10, torch.float32: 3e-5, torch.float16: 0.004, torch.bfloat16: 0.03}
TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


def tolerance_of_dtype(dtype):
    """Of the 2-norm, of what rounding leaves of a difference."""
    return TOLERANCES.get(dtype, 0.1)


def tolerance_of(*tensors):
    """Likewise, by the coarsest of their dtypes."""
    return max(tolerance_of_dtype(x.dtype) for x in tensors)


def noise_of(dtype):
    """How much of the model's largest gradient may be rounding in one that is zero on paper."""
    return (64 if dtype in (torch.float64, torch.float32) else 4) * torch.finfo(dtype).eps


def off(x, truth):
    """The 2-norm of the difference over that of the truth."""
    x, truth = x.double(), truth.double()
    size = float(truth.norm())
    return float((x - truth).norm()) / size if size else (float("inf") if bool(x.any()) else 0.0)


class Place:
    """Of every dim the indices in the whole; `error`: by how much of its norm what lies there
    differs; `unsure`: (dim, which of its indices in the piece may as well lie elsewhere), as rows
    that are equal to others."""

    def __init__(self, indices, error=0.0, unsure=None):
        self.indices, self.error, self.unsure = indices, error, unsure

    def of(self, whole):
        return whole[torch.meshgrid(*self.indices, indexing="ij")] if self.indices else whole

    def sure(self, piece):
        """What of a piece of this shape is known to lie here and nowhere else."""
        if self.unsure is None:
            return piece
        dim, which = self.unsure
        return piece.movedim(dim, 0)[~which]

    def mask(self, whole):
        mask = torch.zeros_like(whole)
        if self.indices:
            mask[torch.meshgrid(*self.indices, indexing="ij")] = 1
        else:
            mask.fill_(1)
        return mask

    @property
    def key(self):
        return tuple(tuple(i.tolist()) for i in self.indices)


def place_of(value, at, whole):
    """None where it is nowhere in it. `at`: where it begins, where that is known."""
    if value.dim() != whole.dim() or any(a > b for a, b in zip(value.shape,
                                                               whole.shape)) or value.numel() == 0:
        return None
    limit = tolerance_of(value, whole)
    begins = [tuple(at)] if isinstance(at, tuple) else _begins(value.shape, whole.shape)
    best, least, others = None, limit, []
    for begin in begins:
        if any(b + n > most for b, n, most in zip(begin, value.shape, whole.shape)):
            continue
        place = Place([torch.arange(b, b + n) for b, n in zip(begin, value.shape)])
        error = off(value, place.of(whole))
        if error <= limit:
            others.append(error)
        if error <= least:
            best, least, place.error = place, error, error
    if best is not None:
        if value.dim() and sum(error <= _alike(least, limit) for error in others) > 1:
            best.unsure = 0, torch.ones(value.shape[0], dtype=torch.bool)
        return best
    return None if isinstance(at, tuple) else _reordered(value, whole, limit)


def _alike(error, limit):
    """How far off what fits as well as the best may be."""
    return max(4 * error, limit * 1e-4)


def _begins(shape, whole):
    choices = []
    for n, most in zip(shape, whole):
        steps = {most - n} | {k * n for k in range(most // n)}
        choices.append(sorted(steps))
    return list(itertools.islice(itertools.product(*choices), _MOST_PLACES))


def _reordered(value, whole, limit):
    """Rows of one dim in another order or with a stride, each another one; a piece of the other
    dims."""
    differing = [d for d in range(value.dim()) if value.shape[d] != whole.shape[d]]
    work = 0
    for dim in dict.fromkeys([*differing, *range(min(value.dim(), 2))]):
        shape = [n if d != dim else whole.shape[d] for d, n in enumerate(value.shape)]
        for begin in _begins(shape, whole.shape):
            at = [torch.arange(b, b + n) for b, n in zip(begin, shape)]
            rows, all_rows = (x.movedim(dim, 0).reshape(x.shape[dim], -1).double()
                              for x in (value, Place(at).of(whole)))
            work += len(rows) * all_rows.numel()
            if len(rows) < 2 or work > _MOST_WORK:
                break
            found = _matched(rows, all_rows, limit)
            if found is not None:
                at[dim], unsure = found
                return Place(at, unsure=(dim, unsure) if bool(unsure.any()) else None)
    return None


def _matched(rows, all_rows, limit):
    """(of each row, which it is; whether it may as well be another one)"""
    distances = torch.cdist(rows, all_rows, compute_mode="donot_use_mm_for_euclid_dist")
    sizes, taken, found = rows.norm(dim=1), set(), []
    unsure = torch.zeros(len(rows), dtype=torch.bool)
    for i in range(len(rows)):
        nearest, size = float(distances[i].min()), float(sizes[i])
        # A zero, too, may be any other
        unsure[i] = int((distances[i] <= _alike(nearest / size, limit) * size).sum()
                        ) > 1 if size else True
        for j in distances[i].argsort().tolist():
            if float(distances[i][j]) > limit * size:
                return None
            if j not in taken:
                taken.add(j)
                found.append(j)
                break
        else:
            return None
    return torch.tensor(found), unsure


def groupings(world_size):
    """Of the ranks: neighbours, then those a stride apart, of every size that divides."""
    for size in range(2, world_size + 1):
        if world_size % size == 0:
            yield [list(range(a, a + size)) for a in range(0, world_size, size)]
            stride = world_size // size
            if 1 < stride:
                yield [list(range(a, world_size, stride)) for a in range(stride)]
