"""Defines the errors that check_gradients raises."""


class StepError(RuntimeError):
    """Says, with the same text on all ranks, that a rank raised in step() or does not answer."""


class StepGradientsError(AssertionError):
    """Says that gradients are wrong or could not be judged. The text is the report on rank 0 and
    its first line on the others; `.report` has it as data on all ranks."""

    def __init__(self, report, rank):
        super().__init__(report.headline() + ": rank 0 says which" if rank else str(report))
        self.report = report
