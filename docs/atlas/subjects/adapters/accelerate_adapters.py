from accelerate.utils import operations


def reduced(x):
    return operations.reduce(x, "sum")
