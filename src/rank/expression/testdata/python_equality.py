"""Evaluates a table of expressions with Python's torch, for expression_python_test.cpp to compare
with.

usage: python_equality.py TABLE DTYPE,... [NAME ...]

Prints for each DTYPE a line for each expression of TABLE: the result's dtype, shape and bytes, then
the bytes of the gradients of x and y where there are any; or "error" where Python refuses it. Then,
of the NAMEs ("torch.sum"), those that this torch lacks.
"""
import operator
import sys
import warnings

import torch

warnings.simplefilter("ignore")
torch.set_num_threads(1)


def bits(tensor):
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist()).hex() if tensor.numel() else ""


def leaf(values, dtype):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def names(dtype):
    x = leaf([[0.5, -1.25, 2.0], [3.0, 0.75, -0.5]], dtype)
    y = leaf([1.5, 0.25, -2.0], dtype)
    return {
        "torch": torch,
        "x": x,
        "y": y,
        "s": torch.tensor(1.75, dtype=dtype),
        "i": torch.tensor([2, 0, 1]),
        "m": torch.tensor([[True, False, True], [False, True, False]]),
        "xs": [torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([3.0, 5.0], dtype=dtype),
               torch.tensor([-1.0, 0.5], dtype=dtype)],
        "rank": 1,
        "world_size": 3,
    }


def evaluated(text, dtype):
    scope = names(dtype)
    try:
        value = eval(text, scope)
        if not isinstance(value, torch.Tensor):
            if not isinstance(value, (bool, int, float)):
                return "error"
            value = torch.tensor(value, dtype=dtype)
        line = f"{str(value.dtype)[6:]} {list(value.shape)} {bits(value)}"
        if value.requires_grad:
            try:
                value.sum().backward()
            except RuntimeError:  # no derivative
                return line + " backward raises"
            for name in ("x", "y"):
                grad = scope[name].grad
                line += f" {name}:{bits(grad) if grad is not None else 'none'}"
        return line
    except Exception:  # whatever Python says: it refuses
        return "error"


def has(name):
    try:
        operator.attrgetter(name.removeprefix("torch."))(torch)
        return True
    except AttributeError:
        return False


def main():
    table, dtype_names, *names_to_find = sys.argv[1:]
    with open(table) as lines:
        texts = [line.rstrip("\n") for line in lines]
    for dtype_name in dtype_names.split(","):
        dtype = getattr(torch, dtype_name)
        torch.set_default_dtype(dtype)
        for text in texts:
            if text and not text.startswith("#"):
                print(evaluated(text, dtype))
    for name in names_to_find:
        if not has(name):
            print(name)


main()
