"""distgrad in Python: are the gradients of a distributed program right?

    check_gradients(model, step)     in a job that runs: is p.grad the derivative of the loss?
    check_step(parallel, single)     a training step on real ranks against the same step in one
                                     process
    check(function, "all_gather")    one's own collective against a simulation of all ranks
    audit(function, "all_gather")    the same through every shape, dim, dtype, group, ... that
                                     distgrad has
    run(paths)                       scenario files
    gradcheck(function, inputs)      torch.autograd.gradcheck for all ranks of a running process
                                     group
    save_gradients(model, folder)    for `distgrad compare`, from a training script

Each raises an AssertionError whose text is the report, or returns the report. Importing this does
not import torch. `check_gradients` and `gradcheck` communicate with the ranks that there are; the
others start their own.
"""

from .checking import audit, check, run
from .driver import Report
from .gradient_check.api import GradcheckError, gradcheck
from .gradient_check.report import GradcheckReport
from .saving import save_gradients
from .step.api import check_gradients
from .step.errors import StepError, StepGradientsError
from .step.report import GradientsReport
from .step_report import ParameterReport, StepReport
from .stepping import RankError, check_step

__all__ = ["GradcheckError", "GradcheckReport", "GradientsReport", "ParameterReport", "RankError",
           "Report", "StepError", "StepGradientsError", "StepReport", "audit", "check",
           "check_gradients", "check_step", "gradcheck", "run", "save_gradients"]
