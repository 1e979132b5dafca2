"""Estimates how far rounding may move a result of code of which nothing is known.

The computation runs in float64 a few more times while everything that an operator takes and gives
is moved at random by up to one rounding of the narrower dtype: Monte Carlo arithmetic (D. S.
Parker, 1997). The bound is the largest change times a margin. Unlike the simulator's it is no
proof; docs/tolerance.md says what that means.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

RUNS = 4
_MARGIN = 16
_MOST = 0.25  # A floor above this part of the largest element would hide another sum.
_ROUNDOFFS = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11,
              "float8_e4m3fn": 2.0**-4, "float8_e4m3fnuz": 2.0**-4, "float8_e5m2": 2.0**-3,
              "float8_e5m2fnuz": 2.0**-3, "float8_e8m0fnu": 2.0**-1}
# Scales a mantissa so that it is an integer if 3/4 of the significand's bits hold it.
_FEW_BITS = dict.fromkeys(_ROUNDOFFS, 2.0**2) | {"float64": 2.0**40, "float32": 2.0**18,
                                                 "bfloat16": 2.0**6, "float16": 2.0**8}
# A rounding that changes an element by more than this, relative to the tensor's largest value, does
# not blur it but decides it: a branch.
_DECIDES = dict.fromkeys(_ROUNDOFFS, 2.0**-2) | {"float64": 2.0**-20, "float32": 2.0**-12,
                                                 "bfloat16": 2.0**-4, "float16": 2.0**-5}

EXACT = frozenset(
    """
    _to_copy _unsafe_view abs alias amax amin as_strided bernoulli_ cat clamp clamp_max clamp_min
    clone constant_pad_nd copy copy_ detach diagonal embedding empty empty_like empty_strided expand
    eye fill fill_ flip full full_like gather index index_put index_select lift_fresh masked_fill
    masked_select max maximum min minimum neg new_empty new_empty_strided new_full new_ones
    new_zeros normal_ ones ones_like permute random_ relu repeat reshape resize_ roll scatter select
    select_backward select_scatter sign slice slice_backward slice_scatter sort split
    split_with_sizes squeeze stack t take threshold_backward topk transpose unbind unfold uniform_
    unsqueeze view where zero_ zeros zeros_like
    """.split()
)


def roundoff(dtype):
    return _ROUNDOFFS[dtype]


def without_dynamo(dispatch):
    """Makes torch.compile leave `dispatch` and what it calls alone. torch's own decorator would
    import the compiler at a mode's first operator, which takes seconds."""
    setattr(dispatch, "__dynamo_disable", dispatch)
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(dispatch.__code__, frames._FrameExecStrategy(skip, skip))


def _is_exact(func, names):
    return func.namespace != "aten" or func._schema.name.partition("::")[2] in names


def has_values(x):
    """Returns whether `x` is a plain tensor of numbers that can be moved a little."""
    return type(x) is torch.Tensor and x.is_floating_point() and x.numel() > 0


class Rounding(TorchDispatchMode):
    """Moves what is computed while it is on by up to one rounding of `dtype`."""

    def __init__(self, dtype, seed):
        super().__init__()
        self._unit = _ROUNDOFFS[dtype]
        self._few_bits = _FEW_BITS[dtype]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_exact(func, EXACT):
            return func(*args, **kwargs)
        mutable = func._schema.is_mutable
        result = func(*args, **kwargs) if mutable else func(*tree_map(self._moved, args), **kwargs)
        if mutable:
            tree_map(self._move_in_place, result)
            return result
        return tree_map(self._moved, result)

    without_dynamo(__torch_dispatch__)

    def _moved(self, x):
        if type(x) is not torch.Tensor or x.dtype != torch.float64:
            return x
        return x * (1 + self._noise(x))

    def _move_in_place(self, x):
        if type(x) is torch.Tensor and x.dtype == torch.float64 and not x.is_inference():
            x.mul_(1 + self._noise(x))

    def _noise(self, x):
        """Returns noise for each element, 0 if the value has so few bits that no rounding is behind
        it."""
        noise = ((2 * torch.rand(x.shape, dtype=torch.float64, generator=self._generator) - 1)
                 * self._unit)
        mantissa, _ = torch.frexp(x)
        scaled = mantissa * self._few_bits
        return torch.where((scaled == scaled.round()) | ~torch.isfinite(x),
                           torch.zeros_like(noise), noise)


class Shaking(TorchDispatchMode):
    """Moves what operators give by up to one rounding, in its own dtype, of the tensor's largest
    element. The sums inside an operator are as large as that even if its result is nearly 0."""

    _still = EXACT

    def __init__(self, seed):
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not self._is_still(func):
            tree_map(self._shake, result)
        return result

    without_dynamo(__torch_dispatch__)

    def _is_still(self, func):
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        return _is_exact(func, self._still) or is_view

    def _shake(self, x):
        if not has_values(x):
            return
        noise = 2 * torch.rand(x.shape, dtype=torch.float64, generator=self._generator) - 1
        size = torch.finfo(x.dtype).eps * x.abs().nan_to_num(posinf=0).max()
        x.add_((size * noise.to(x.device)).to(x.dtype))


class Spread:
    """Gathers how far the same tensors differ from run to run."""

    def __init__(self, values):
        self._values = values
        self._spread = [torch.zeros_like(x) for x in values]

    def add(self, values):
        for i, (spread, x, y) in enumerate(zip(self._spread, self._values, values)):
            if x.shape == y.shape:
                self._spread[i] = torch.fmax(spread, (y - x).abs())

    def raw(self):
        return self._spread


def unmoved(program):
    """Returns how many roundings a value of the program may get that the runs do not move: those of
    sums over the ranks, in steps that communicate, and one more."""
    return program["world_size"] + sum("expr" not in step for step in program["steps"]) + 1


def bound_of(spread, value, dtype, roundings):
    """Returns the bound of each element, and a mask of elements that have none because rounding
    decides them.

    `roundings` is unmoved() of the program.
    """
    unit = _ROUNDOFFS[dtype]
    largest = float(value.abs().nan_to_num(posinf=0).max()) if value.numel() else 0.0
    floor = min(_MARGIN * roundings * unit, _MOST) * largest
    decided = spread > _DECIDES[dtype] * largest
    bound = torch.where(decided, torch.zeros_like(spread), _MARGIN * spread) + floor
    return bound.nan_to_num(nan=floor, posinf=floor), decided
