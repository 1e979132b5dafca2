"""Makes the inputs of a case: the values of docs/scenarios.md, as each rank holds them by its
layout."""

import math

import torch

from .language import Expression, InvalidExpression

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_MASK = (1 << 64) - 1
_MOST_ELEMENTS = 1 << 31


def rank_names(program, rank):
    """Returns what every expression of a rank may use: {"rank": ..., "world_size": ..., "tp_rank":
    ..., "tp_size": ...}."""
    names = {"rank": rank, "world_size": program["world_size"]}
    for group in program["groups"]:
        ranks = part_of(group, rank)
        names[group["name"] + "_rank"] = ranks.index(rank)
        names[group["name"] + "_size"] = len(ranks)
    return names


def part_of(group, rank):
    """Returns the ranks of the partition's part that `rank` is in, in group order."""
    return next(ranks for ranks in group["partition"] if rank in ranks)


def size_names(program):
    """Returns what the expressions of an input that is one tensor may use: nothing that differs by
    rank."""
    names = {"world_size": program["world_size"]}
    for group in program["groups"]:
        sizes = {len(ranks) for ranks in group["partition"]}
        if len(sizes) == 1:
            names[group["name"] + "_size"] = sizes.pop()
    return names


def value_on(program, frame, item, rank):
    """Returns the input `item` as this rank holds it: a contiguous tensor of the case's dtype that
    shares no memory."""
    value = held_of(program, item, leaf_of(program, frame, item, rank), rank)
    return value.detach().clone(memory_format=torch.contiguous_format)


def is_local(item):
    """Returns whether each rank has its own leaf."""
    return all(axis["kind"] == "local" for axis in item["layout"])


def leaf_of(program, frame, item, rank):
    """Returns the leaf in the case's dtype: this rank's of a local input, else the full tensor."""
    return _value(program, frame, item,
                  rank if is_local(item) else None).to(DTYPES[program["dtype"]])


def held_of(program, item, leaf, rank):
    """Returns what this rank holds of the leaf."""
    return leaf if is_local(item) else _laid_out(program, item, leaf, rank)


def _value(program, frame, item, rank):
    """Returns the value in float64. `rank` is None if the input is one tensor for all ranks."""
    if "value" in item:
        return frame.tensor(item["value"])
    if "by_rank" in item:
        return frame.tensor(item["by_rank"][rank or 0])
    names = size_names(program) if rank is None else rank_names(program, rank)
    if "random" in item:
        return _random_value(item["random"], item["name"], names, rank)
    return _evaluated(item["expr"]["text"], names)


def _evaluated(text, names):
    return Expression(text, names).evaluate(names, torch.float64, accept_number=True).detach()


# ---- random values


def _random_value(spec, name, names, rank):
    shape = [_extent(entry, names) for entry in spec["shape"]]
    if math.prod(shape) > _MOST_ELEMENTS:
        raise InvalidExpression("the shape has more than 2^31 elements")
    start = _fnv1a(f"{spec['seed']}/{name}/{'' if rank is None else rank}")
    low, high = float(spec["low"]), float(spec["high"])
    return _elements(spec["kind"], low, high, start, math.prod(shape)).reshape(shape)


def _extent(entry, names):
    if not isinstance(entry, dict):
        return entry
    value = _evaluated(entry["text"], names)
    given = value.item() if value.numel() == 1 else -1
    if not 0 <= given <= _MOST_ELEMENTS or given != math.floor(given):
        raise InvalidExpression("a shape entry must be an integer of at least 0")
    return int(given)


def _elements(kind, low, high, start, count):
    if kind == "integers":
        return low + _modulo(_bits(start, torch.arange(count)),
                             int(high - low) + 1).to(torch.float64)
    if kind == "uniform":
        return low + (high - low) * _uniform(start, torch.arange(count))
    # Irwin-Hall: twelve uniforms have variance one. They are added from left to right.
    first = 12 * torch.arange(count)
    total = torch.zeros(count, dtype=torch.float64)
    for k in range(12):
        total += _uniform(start, first + k)
    return total - 6


def _fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & _MASK
    return h


def _signed(value):
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _bits(start, i):
    """Returns splitmix64 at the indices `i`: unsigned 64-bit numbers in int64, whose arithmetic
    wraps alike."""
    z = _signed(start) + (i + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _shifted(z, by):
    """Shifts right and fills with zeros: int64's own shift repeats the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _uniform(start, i):
    return _shifted(_bits(start, i), 11).to(torch.float64) * 2.0**-53


def _modulo(bits, divisor):
    """Returns the remainder of unsigned numbers in int64, for a divisor below 2^62."""
    half = _shifted(bits, 1) % divisor
    return (2 * half + (bits & 1)) % divisor


# ---- layouts


def _laid_out(program, item, whole, rank):
    """Applies the axes in their order. Along each, a rank holds the same or its piece."""
    mesh = {group["name"]: group for group in program["groups"] if group["is_mesh_axis"]}
    held = whole
    for layout in item["layout"]:
        axis = layout["axis"]
        ranks = part_of(mesh[axis], rank) if axis else list(range(program["world_size"]))
        if layout["kind"] == "shard":
            held = _shard(held, layout["dim"], ranks.index(rank), len(ranks))
    return held


def _shard(x, dim, index, count):
    """Returns torch.chunk's piece of ceil(n / count), the last shorter or empty. torch.chunk itself
    may give fewer pieces."""
    if not -x.dim() <= dim < x.dim():
        raise InvalidExpression(f"sharded along dim {dim}, but the value has {x.dim()} dimensions")
    length = x.size(dim)
    each = -(-length // count)
    begin = min(index * each, length)
    return x.narrow(dim, begin, min(each, length - begin))
