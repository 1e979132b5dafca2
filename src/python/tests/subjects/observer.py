"""Notes the strides of what it gets."""

seen = []


def all_reduce(x):
    seen.append(x.stride())
    return x
