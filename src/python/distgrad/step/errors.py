"""check_gradients raises these."""


class StepError(RuntimeError):
    """A rank raised in step(), or does not answer. The same text on all ranks."""


class StepGradientsError(AssertionError):
    """The gradients are wrong, or could not be judged. The text is the report on rank 0, and its
    first line on the others; `.report` has it as data on all."""

    def __init__(self, report, rank):
        super().__init__(report.headline() + ": rank 0 says which" if rank else str(report))
        self.report = report
