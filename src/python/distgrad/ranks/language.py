"""Evaluates the scenario language (docs/expressions.md), through the library that distgrad-rank is
made of."""

import functools

import torch

from . import library

_MARK = "distgrad: invalid expression: "  # of src/rank/python_operators.cpp
_TENSOR, _INTEGER, _TENSORS = range(3)  # NameType of src/rank/expression/expression.h
_TENSOR_ALONE, _OR_NUMBER, _ANYTHING = range(3)  # NumberResult

is_evaluating = False  # whether this rank's one thread runs an expression


class InvalidExpression(Exception):
    """The expression is not part of the language, or has no value. The message stands alone."""


class Expression:
    """Holds one expression. `known` maps the names that it may use to values like those that they
    will have. `names` are those that it uses. Raises InvalidExpression."""

    def __init__(self, text, known):
        types = list(map(_type_of, known.values()))
        self.names = frozenset(_told(_operators().compile, text, list(known), types))
        self.text = text

    def evaluate(self, values, dtype, accept_number=False, device=None):
        """Returns a tensor. `dtype` is the default dtype of constructors and that of a number's
        tensor; constructors make tensors on `device`. Raises InvalidExpression."""
        return self._run(values, dtype, device, _OR_NUMBER if accept_number else _TENSOR_ALONE)

    def value(self, values, dtype, device=None):
        """Returns the value, whatever it is: a tensor, a number, a list. Raises
        InvalidExpression."""
        return self._run(values, dtype, device, _ANYTHING)

    def _run(self, values, dtype, device, numbers):
        global is_evaluating
        names = list(self.names)
        is_evaluating = True
        try:
            return _told(_operators().evaluate, self.text, names, [values[n] for n in names], dtype,
                         numbers, _empty_on(device))
        finally:
            is_evaluating = False


def inner_of_gradient_norm(loss):
    """Returns what a loss squared_gradient_norm(...) has in its parentheses; None for another loss.
    The driver's front end has checked that the parentheses are the whole loss."""
    text = loss.strip(" \t")
    return (text[len("squared_gradient_norm("):-1]
            if text.startswith("squared_gradient_norm(") else None)


def _type_of(value):
    if isinstance(value, int):
        return _INTEGER
    return _TENSORS if isinstance(value, list) else _TENSOR


@functools.cache
def _empty_on(device):
    return torch.empty(0, device=device)


def _told(operator, *arguments):
    try:
        return operator(*arguments)
    except RuntimeError as error:
        text = str(error)
        if not text.startswith(_MARK):
            raise
    raise InvalidExpression(text[len(_MARK):].partition("\n")[0])


def _operators():
    library.loaded()
    return torch.ops.distgrad_rank
