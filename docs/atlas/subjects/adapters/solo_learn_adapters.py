"""The package's import needs a learning rate's schedule of pl_bolts, which no Lightning of today
loads: it is left out."""

import sys
from types import ModuleType

schedules = ModuleType("pl_bolts.optimizers.lr_scheduler")
schedules.LinearWarmupCosineAnnealingLR = None
for name in ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler"):
    sys.modules[name] = schedules
from solo.utils import misc  # noqa: E402


def gather_layer(x):
    return misc.GatherLayer.apply(x)


def gathered(x, dim=0):
    return misc.gather(x, dim)
