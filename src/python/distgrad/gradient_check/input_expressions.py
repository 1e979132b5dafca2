"""Evaluates `--input` of the command line: Python expressions with torch's functions.

    randn(4, 3)    arange(6.).reshape(2, 3) + rank    [ones(2), None]    3    "sum"

Functions of torch may be named without `torch.`; `rank` and `world_size` are known, and few of
Python's own functions. Random tensors differ from rank to rank and from input to input, and are the
same in every run.
"""

import builtins
import re

import torch

_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
# torch has functions of the names of some.
_PYTHON = ("abs", "bool", "enumerate", "float", "int", "len", "max", "min", "range", "sum", "zip")


class InvalidExpression(Exception):
    """The expression has no value. The message stands alone."""


def split_name(text):
    """Returns ("mask", "ones(3)") for `mask=ones(3)`, and (None, text) if there is no name."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2].strip()) if match else (None, text.strip())


def value_of(text, number, rank, world_size, dtype):
    """Returns this rank's value of input `number`'s expression. Raises InvalidExpression."""
    if not text:
        raise InvalidExpression("an expression is empty")
    scope = {"__builtins__": {"__import__": __import__},  # which torch's C code may call
             **{name: f for name, f in vars(torch).items() if name[0] != "_"},
             **{name: getattr(builtins, name) for name in _PYTHON},
             "torch": torch, "rank": rank, "world_size": world_size}
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * number + rank)
            return eval(text, scope)
    except Exception as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error).split("\n")[0]
        raise InvalidExpression(f"{said} ({type(error).__name__} in {text})") from None
    finally:
        torch.set_default_dtype(before)
