"""Moved runs can hold what step() takes out of autograd at its values: the target of a student, the
keys of a momentum encoder. The gradient is right for that as a constant, or wrong."""

import torch

from ..gradient_check.detached import HeldConstants
from .roots import is_in_backward


class HeldInStep(HeldConstants):
    """Around runs of step(); the first records. Backward's own work is not held, nor are single
    numbers: a step returns its loss so, and adds up those of micro-batches."""

    def constant(self, x, what):
        if is_in_backward() or not isinstance(x, torch.Tensor) or x.numel() == 1:
            return x
        return super().constant(x, what)
