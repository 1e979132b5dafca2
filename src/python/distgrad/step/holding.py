"""Holds what step() takes out of autograd, such as a student's target or a momentum encoder's keys,
while parameters move. It shows whether the gradient is right with that as a constant."""

import torch

from ..gradient_check.detached import HeldConstants
from .roots import is_in_backward


class HeldInStep(HeldConstants):
    """Wraps runs of step(), of which the first records. Backward's own work is not held, nor are
    single numbers, which a step detaches to return its loss or to add up micro-batches' losses."""

    def constant(self, x, what):
        if is_in_backward() or not isinstance(x, torch.Tensor) or x.numel() == 1:
            return x
        return super().constant(x, what)
