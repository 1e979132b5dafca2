"""Runs the program of a case through the library (src/rank/python_operators.cpp), which calls back
for collectives and code."""

import torch

from . import evaluating, library

_MARK = "distgrad: invalid at\n"
_LIKE = torch.empty(0)

_calls = None  # who runs the program's collectives and code


class InvalidExpression(Exception):
    """An expression has no value on this rank. The message stands alone."""


class InvalidAt(InvalidExpression):
    """Something in the program is wrong at a place of the scenario: `pointer`, a JSON pointer.
    `caret` is the text with a mark under the place, or empty."""

    def __init__(self, pointer, message, caret=""):
        super().__init__(message)
        self.pointer, self.caret = pointer, caret


# The function modes (torch.overrides) of calls into the library, innermost last. While torch runs
# an operator under such a mode, the mode is off, and would be off for the user's code in it.
_modes = []


def _pop_modes():
    return [torch._C._pop_torch_function_stack()
            for _ in range(torch._C._len_torch_function_stack())]


def _push(modes):
    for mode in reversed(modes):
        torch._C._push_on_torch_function_stack(mode)


def _told(operator, *arguments):
    _modes.append(_pop_modes())
    evaluating.is_on = True
    try:
        return operator(*arguments)
    except RuntimeError as error:
        text = str(error)
        if not text.startswith(_MARK):
            raise
    finally:
        evaluating.is_on = False
        _push(_modes.pop())
    pointer, message, caret = text[len(_MARK):].split("\n", 2)
    raise InvalidAt(pointer, message, caret)


class Program:
    """The program of the request that this process is at. `calls` has its collectives and code:
    collective(index, operand, on_gradient, is_shared), and code(index, arguments, on_gradient,
    is_shared) or, for a simulator, code_of_all(index, arguments). Raises InvalidAt."""

    def __init__(self, message, calls):
        global _calls
        library.loaded()
        self._operators, _calls = torch.ops.distgrad_rank, calls
        self.what = message.header["program"]
        self._index = {item["name"]: i for i, item in enumerate(self.what["inputs"])}
        self.loss_is_gradient_norm = _told(self._operators.load, message.text, message.data)

    def leaf(self, name, rank):
        """Returns the leaf of an input in the case's dtype: this rank's if the input is local."""
        return _told(self._operators.leaf, self._index[name], rank)

    def held(self, name, leaf, rank):
        """Returns what the rank holds of the leaf."""
        return _told(self._operators.held, self._index[name], leaf, rank)

    def value_on(self, name, rank):
        """Returns what the rank holds of the input: contiguous, in memory of its own."""
        held = self.held(name, self.leaf(name, rank), rank)
        return held.detach().clone(memory_format=torch.contiguous_format)

    def forward(self, rank, values, dtype, device):
        """Runs one rank's forward. Takes what it holds of every input. Returns the loss, the values
        of steps that are reported, and those that every rank's backward must reach."""
        try:
            return _told(self._operators.forward, rank, values, dtype, _LIKE.to(device))
        except InvalidAt as error:  # maybe on this rank alone
            raise InvalidExpression(str(error)) from None

    def end_of(self, loss, reached, weight):
        """Returns the loss. Its backward starts with the cotangent `weight`, and also reaches the
        values `reached`."""
        return self._operators.end_of(loss, reached, weight)

    def simulate(self, values):
        """Runs all ranks' forward in one graph. Takes what they hold, by input and rank. Returns
        the losses, and the values of reported steps, a list by rank for each."""
        losses, flat = _told(self._operators.simulate, values, _LIKE)
        size = self.what["world_size"]
        return losses, [flat[at : at + size] for at in range(0, len(flat), size)]

    def watch(self, index, operand):
        """Watches a call of the step that is about to be made. Returns a function that takes its
        result. The library reports what it sees."""
        call = self._operators.watch(index, operand)
        return lambda value: self._operators.made(call, value)

    def on_single_device(self):
        """Returns the loss, and the leaves of the inputs that require grad."""
        return _told(self._operators.on_single_device)

    def stated(self, index):
        """Returns the parts of the gradient that the file states."""
        return _told(self._operators.stated, index)


def delay_backward(value, seconds):
    """Makes the backward of `value` begin so much later, before hooks that it has see anything."""
    library.loaded()
    torch.ops.distgrad_rank.delay_backward(value, seconds)


def is_local(item):
    """Returns whether each rank has its own leaf of the input."""
    return all(axis["kind"] == "local" for axis in item["layout"])


def _in_user(name):
    def call(*arguments):
        evaluating.is_on = False
        _push(_modes[-1])
        try:
            return getattr(_calls, name)(*arguments)
        finally:
            _modes[-1] = _pop_modes()
            evaluating.is_on = True

    return call


_registered = torch.library.Library("distgrad_python", "DEF")
for _schema in (
        "collective(int step, Tensor operand, bool on_gradient, bool is_shared) -> Tensor",
        "code(int step, Any[] arguments, bool[] on_gradient, bool[] is_shared, Tensor like)"
        " -> Tensor",
        "code_of_all(int step, Any[] arguments, Tensor like) -> Tensor[]"):
    _registered.define(_schema)
    _name = _schema.partition("(")[0]
    _registered.impl(_name, _in_user(_name), "CompositeImplicitAutograd")
