"""copy: the operand itself."""

NAMES = ("copy", "copy_to_model_parallel_region", "copy_to_tensor_model_parallel_region",
         "copy_to_parallel_region")


def simulated_copy(xs):
    """copy of the ranks' operands, in one process."""
    return list(xs)


def copy_forward(ctx, x, group=None):
    return x.clone()


def copy_adjoint(ctx, g, group=None):
    return g


def plain_copy(x, group=None):
    return x.clone()
