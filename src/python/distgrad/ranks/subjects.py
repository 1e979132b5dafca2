"""Loads the implementation under test from the text that the user typed after --subject.

    python:MODULE:NAME     python:FILE.py:NAME     a function, an autograd.Function's apply, a
                           Module; NAME may be dotted
    python:MODULE:NAME(ARGUMENTS)...               a call written out, as adapters_written.py has it
    python:MODULE          python:FILE.py          each collective looked up by name
    python:reference       python:in_place         the built-in ones, in this interpreter
    KIND=SUBJECT+KIND=SUBJECT                      each for one collective; `reference` runs the
                                                   others
    SUBJECT@MODE                                   run as modes.py says
"""

import dataclasses
import functools
import inspect
import re

from . import (adapters, adapters_loading, adapters_names, adapters_torch, adapters_written,
               built_in, modes)
from .call import NotOffered, SubjectError
from .collectives.traits import TRAITS
from .subject_text import without_calls

_ASSIGNED = re.compile(r"(?:^|\+)(" + "|".join(adapters_names.KINDS) + r")=")
BUILT_IN = {"reference": built_in.reference, "in_place": built_in.in_place}


def load_subject(text):
    """Returns the subject that `text` names. Raises SubjectError."""
    assigned = list(_ASSIGNED.finditer(without_calls(text)))
    setups = {}  # by module, so one that serves two kinds is set up once
    if not assigned or assigned[0].start() != 0:
        kind, part = _load_part(text, None, setups)
        return Subject({}, part, setups) if kind is None else Subject({kind: part},
                                                                      _BuiltIn("reference"), setups)
    by_kind = {}
    for match, following in zip(assigned, assigned[1:] + [None]):
        kind = match.group(1)
        if kind in by_kind:
            raise SubjectError(f"{text}: {kind} is named twice")
        by_kind[kind] = _load_part(text[match.end():following.start() if following else None], kind,
                                   setups)[1]
    return Subject(by_kind, _BuiltIn("reference"), setups)


class Subject:
    """Runs the collectives of one rank. Belongs to that rank's one thread."""

    def __init__(self, by_kind, others, setups):
        self._by_kind = by_kind
        self._others = others
        self._setups = setups
        self._layout = None

    def check(self, call):
        """Raises NotOffered if the subject does not offer the call, alike on every rank, and
        SubjectError if it would but the call cannot be mapped."""
        self._part(call).check(self._in_mode(call))

    def op_is_untold(self, call):
        """Returns whether only the result tells that a function computes the call's op."""
        return self._part(call).op_is_untold(call)

    def setup(self, groups):
        """Calls the user's `setup(groups)`, if the file has one, with the process groups by name.
        Call it before the first case; it may be called before each, and passes on a changed layout
        only."""
        layout = tuple(
            (name, group.ranks, id(group.process_group)) for name, group in groups.items())
        if layout == self._layout:
            return
        self._layout = layout
        for setup in self._setups.values():
            setup.run(groups)

    def __call__(self, call, x, on_value=None):
        """Returns the call's result on this rank for the operand `x`; see the contract of the kind.
        `on_value` gets the result before anything but the subject has a hook on it."""
        call = self._in_mode(call)
        modes.come_late(call)
        value = self._part(call)(call, x)
        if on_value is not None:
            on_value(value)
        modes.come_late(call, value)
        return value

    def begin(self):
        """Prepares the modes. Call it before the first forward of a case."""
        for mode in self._modes():
            modes.begin(mode)

    def forward(self, forward, leaves):
        """Runs the case's `forward(*leaves)`, to the loss, in the subject's mode."""
        for mode in self._modes():
            forward = functools.partial(_forward_in, mode, forward)
        return forward(*leaves)

    def _modes(self):
        return sorted({part.mode for part in [*self._by_kind.values(), self._others]})

    def shares_operands(self):
        """Returns whether the subject wants the program's own tensors, though it may write into
        them."""
        return any(part.mode == "shared" for part in [*self._by_kind.values(), self._others])

    def _part(self, call):
        return self._by_kind.get(call.kind, self._others)

    def _in_mode(self, call):
        return dataclasses.replace(call,
                                   is_async=True) if self._part(call).mode == "async" else call


def _forward_in(mode, forward, *leaves):
    return modes.forward_in(mode, forward, leaves)


class _Setup:
    """Holds the `setup(groups)` of a user's module, if it has one, and for which groups it
    provides."""

    def __init__(self, module, place):
        self._place = place
        self._function = _setup_of(module)
        self.groups = None  # names; None: there is no setup

    def run(self, groups):
        if self._function is None:
            return
        process_groups = {name: group.process_group for name, group in groups.items()}
        try:
            provided = self._function(process_groups)
        except Exception as error:
            raise SubjectError(
                f"setup of {self._place} raised {adapters_loading.with_frames(error)}") from None
        if provided is None:
            self.groups = set(groups)
        elif isinstance(provided, str):
            self.groups = {provided}
        else:
            try:
                self.groups = set(provided)
            except TypeError:
                raise SubjectError(
                    f"setup of {self._place} returned a {type(provided).__name__}: it is to return"
                    " nothing, or the names of the groups that its functions run in") from None


def _setup_of(module):
    """Returns the module's `setup(groups)`, or None. Other setups do not count: many scripts have a
    setup(rank, world_size) that starts torch.distributed."""
    function = getattr(module, "setup", None)
    if not inspect.isfunction(function):
        return None
    parameters = list(inspect.signature(function).parameters.values())
    others = [p for p in parameters[1:]
              if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return function if parameters and parameters[0].name == "groups" and not others else None


class _BuiltIn:
    """Runs `reference` or `in_place`."""

    def __init__(self, name, mode=""):
        self._name = name
        self.mode = mode

    def check(self, call):
        if call.is_async and self._name != "in_place":
            raise NotOffered(f"{self._name} has no parameter async_op")

    def op_is_untold(self, call):
        return False

    def __call__(self, call, x):
        return modes.function_in(self.mode, BUILT_IN[self._name])(call, x)


class _Function:
    """Runs one function of the user's, for one kind."""

    def __init__(self, binding, setup, mode):
        self._binding = dataclasses.replace(binding, mode=mode)
        self.mode = mode
        self._setup = setup

    def check(self, call):
        self._binding.check(call, self._setup.groups)

    def op_is_untold(self, call):
        return self._binding.op_is_untold(call)

    def __call__(self, call, x):
        return self._binding(call, x)


class _Module:
    """Runs a module's collectives, found by name when they are first asked for."""

    def __init__(self, module, place, setup, mode):
        self._module = module
        self.mode = mode
        self._place = place
        self._setup = setup
        self._parts = {}

    def check(self, call):
        self._part(call.kind).check(call)

    def op_is_untold(self, call):
        return self._part(call.kind).op_is_untold(call)

    def __call__(self, call, x):
        return self._part(call.kind)(call, x)

    def _part(self, kind):
        if kind not in self._parts:
            self._parts[kind] = self._find(kind)
        return self._parts[kind]

    def _find(self, kind):
        if adapters_torch.is_torch_module(self._module):
            binding = adapters_torch.torch_module_binding(self._module, kind)
        else:
            found = adapters_loading.find_kind(self._module, kind)
            binding = found and bind(found[1], kind, self._place, found[0])
        if binding is not None:
            return _Function(binding, self._setup, self.mode)
        # Such a kind is local in forward. A module without a function for it leaves it to autograd.
        if not TRAITS[kind].communicates:
            return _BuiltIn("reference")
        raise NotOffered(f"{self._place} has no {kind} (looked for"
                         f" {', '.join(adapters_names.KIND_NAMES[kind][:4])})")


def _load_part(text, kind, setups):
    """Returns (kind, part). The kind is the given one, or what a single function's name says, or
    None for a part that runs every kind. Raises SubjectError."""
    text, mode = modes.split_mode(text)
    name = text[len("python:"):] if text.startswith("python:") else text
    if name in BUILT_IN:
        return kind, _BuiltIn(name, mode)
    if not text.startswith("python:"):
        raise SubjectError(
            f"{text!r} is not python:MODULE:NAME, python:FILE.py:NAME, reference or in_place")
    place, name = place_and_name(text)
    module = adapters_loading.load_module(place)
    if name is None and module.__name__ in adapters_torch.PLAIN:
        return kind, _BuiltIn("in_place", mode)
    setup = setups.setdefault(module.__name__, _Setup(module, place))
    if name is None:
        return kind, _Module(module, place, setup, mode)
    target = adapters_loading.find_name(module, adapters_written.called(name), place)
    kind = kind or kind_of(place, name)
    if adapters_written.is_written_out(name):
        return kind, _Function(bind_written(name, kind, module, place), setup, mode)
    if (adapters_torch.is_plain_function(target)
            and adapters_names.kind_called(target.__name__) == kind):
        return kind, _BuiltIn("in_place", mode)
    return kind, _Function(bind(target, kind, place, name), setup, mode)


def place_and_name(text):
    """Returns ("FILE.py" or "MODULE", NAME, a call written out or None) of "python:PLACE:NAME".
    Raises SubjectError."""
    rest = text[len("python:"):]
    plain = without_calls(text)[len("python:"):]
    file, ending, _ = plain.partition(".py:")
    if ending:
        end = len(file) + len(".py")
    elif plain.endswith(".py"):
        return rest, None
    else:
        end = plain.find(":")
        if end < 0:
            return rest, None
    place, name = rest[:end], rest[end + 1 :]
    named = adapters_written.called(name)
    if not place or not all(part.isidentifier() for part in named.split(".")):
        raise SubjectError(f"{text!r} is not of the form python:MODULE:NAME or python:FILE.py:NAME")
    return place, name


def kind_of(place, name):
    """Returns the kind that the function's name says. Raises SubjectError if it says none."""
    kind = adapters_names.kind_called(adapters_written.called(name).rpartition(".")[2])
    if kind is None:
        raise SubjectError(_unknown_kind(place, name))
    return kind


def bind(target, kind, place, name):
    """Returns the binding of a user's or torch's function as `kind`. Raises SubjectError."""
    label = f"{place}:{name}"
    return (adapters_torch.torch_binding(target, kind, label)
            or adapters.bind(target, kind, label, place))


def bind_written(text, kind, module, place):
    """Returns the binding of a call written out as `kind`. Raises SubjectError."""
    function = adapters_written.function_of(text, kind, module, place)
    return adapters.bind(function, kind, f"{place}:{text}", place)


def _unknown_kind(place, name):
    """Returns the message for a single function whose name is no kind's: the user has to name its
    kind."""
    words = [adapters_names.plain_name(part)
             for part in adapters_written.called(name).split(".")]
    kinds = [k for k, known in adapters_names.KIND_NAMES.items()
             if any(w == k or w in known for w in words)]
    return (f"which collective {place}:{name} is has to be said: write"
            f" {kinds[0] if kinds else 'KIND'}=python:{place}:{name}"
            + ("" if kinds else f", where KIND is one of {', '.join(adapters_names.KINDS)}"))
