"""Tells the driver on the board which collective this rank enters, from where, and whether it waits
in it. The driver looks when a case takes long or a rank has died. Changes nothing of the call and
never raises.

It watches the methods of torch's ProcessGroup, through which every collective that Python calls
goes, dist.all_reduce as well as group.allreduce. So no function of torch.distributed is replaced.
It does not see what C++ calls by itself, as DDP's reducer and the functional collectives do.
"""

import functools
import json
import math
import os
import sys

import torch
import torch.distributed as dist

from .collectives import MODULES, kinds_with

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MOST_GROUPS = 12  # groups, and pairs that exchange messages, whose call counts are reported
_MOST_RECENT = 4
_MOST_CALLS = 100  # calls of a case
_MOST_PENDING = 256

# Maps ProcessGroup's method to the kind, the argument that holds this rank's operand, and whether
# all ranks give the same size.
METHODS = {
    **{method: (kind, operand, kind != "all_to_all")
       for kind, module in MODULES.items()
       for method, operand in getattr(module, "METHODS", {}).items()},
    "barrier": ("barrier", None, False),
    "send": ("send", 0, False),
    "recv": ("recv", 0, False),
    "recv_anysource": ("recv", 0, False),
}
_BETWEEN_TWO = ("send", "recv")
_ROOTED = kinds_with("root")
_REDUCING = kinds_with("op")


_count = 0  # of all collectives that this process has entered


def entered():
    """Returns how many collectives this process has entered."""
    return _count


class _Notes:
    def __init__(self, board):
        self._board = board
        self._entered = {}  # group's name -> number of collectives
        self._recent = {}  # group's name -> its last calls
        self._pending = {}  # id of a Work -> the text of its call
        self._current = ""
        self._calls = []  # the collectives of this case

    def enter(self, method, group, arguments, options):
        self._current = self._text(method, group, arguments, options)
        self._board.note(self._current, True)

    def leave(self, work):
        """Notes that the call has returned. With a Work it was only begun."""
        if work is not None:
            if len(self._pending) >= _MOST_PENDING:
                self._pending.clear()
            self._pending[id(work)] = self._current
        self._board.set_waits(False)

    def wait(self, work):
        text = self._pending.pop(id(work), None)
        if text is None:
            return False
        if text != self._current:
            self._board.note(text, True)
            self._current = text
        self._board.set_waits(True)
        return True

    def waited(self):
        self._board.set_waits(False)

    def take(self):
        """Returns the collectives entered since the last call."""
        calls, self._calls = self._calls, []
        return calls

    def _text(self, method, group, arguments, options):
        kind, operand, sizes_agree = METHODS[method]
        name = group.group_name
        ranks = list(dist.get_process_group_ranks(group))
        root = _root(arguments, options, ranks) if kind in _ROOTED else -1
        if kind in _BETWEEN_TWO:
            name, ranks, root = _message(method, arguments, options, name, ranks)
        if name:
            self._entered[name] = self._entered.pop(name, 0) + 1  # pop puts the last used last
        dtype, shape = _dtype_and_shape(arguments, operand)
        call = {
            "kind": kind,
            "op": _op(arguments, options) if kind in _REDUCING else "",
            "dtype": dtype,
            "shape": shape,
            "sizes_agree": sizes_agree and group.name() == "gloo",
            "root": root,
            "step": self._board.step,
            "in_backward": _is_in_backward(),
            "place": _place(),
            "group": name,
            "ranks": ranks,
            "is_between_two": not name,
            "number": self._entered.get(name, 0),
        }
        if len(self._calls) < _MOST_CALLS:
            self._calls.append(call)
        if name:
            self._recent[name] = [*self._recent.get(name, ())[1 - _MOST_RECENT :], call]
        entered = [{"group": g, "calls": n} for g, n in list(self._entered.items())[-_MOST_GROUPS:]]
        reported_all = len(self._entered) <= _MOST_GROUPS
        return json.dumps({**call, "entered": entered, "reported_all": reported_all,
                           "recent": self._recent.get(name, [])})


def install(board):
    """Installs the notes in a rank. Call it once a process, before any of the user's code. Returns
    a function that gives what was entered since its last call."""
    notes = _Notes(board)
    for method in METHODS:
        original = getattr(dist.ProcessGroup, method, None)
        if original is not None:
            setattr(dist.ProcessGroup, method, _noted(method, original, notes))
    dist.Work.wait = _waited(dist.Work.wait, notes)
    return notes.take


def _noted(method, original, notes):
    @functools.wraps(original)
    def call(group, *arguments, **options):
        global _count
        _count += 1
        try:
            notes.enter(method, group, arguments, options)
        except Exception:  # unknown groups or arguments: nothing is known of this call
            notes.waited()
        # If it raises, the note keeps saying that the rank was in it.
        work = original(group, *arguments, **options)
        notes.leave(work)
        return work

    return call


def _waited(original, notes):
    @functools.wraps(original)
    def wait(work, *arguments, **options):
        is_known = notes.wait(work)
        done = original(work, *arguments, **options)
        if is_known:
            notes.waited()
        return done

    return wait


def _dtype_and_shape(arguments, operand):
    if operand is None or operand >= len(arguments):
        return "", []
    tensors = _tensors_in(arguments[operand])
    if not tensors:
        return "", []
    shape = list(tensors[0].shape)
    if any(x.shape != tensors[0].shape for x in tensors):
        shape = [sum(math.prod(x.shape) for x in tensors)]
    elif len(tensors) > 1:
        shape = [len(tensors), *shape]
    return str(tensors[0].dtype)[len("torch."):], shape


def _tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value if isinstance(value, (list, tuple)) else []
    return [x for item in items for x in _tensors_in(item)]


def _options(arguments, options):
    return [x for x in (*arguments, *options.values()) if type(x).__name__.endswith("Options")]


def _op(arguments, options):
    for opts in _options(arguments, options):
        if hasattr(opts, "reduceOp"):
            return _op_name(opts.reduceOp)
    for x in (*arguments, *options.values()):
        if isinstance(x, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            return _op_name(x)
    return "sum"


def _op_name(op):
    return str(getattr(op, "op", op)).rpartition(".")[2].rstrip(">").split(":")[0].lower()


def _root(arguments, options, ranks):
    for opts in _options(arguments, options):
        if hasattr(opts, "rootRank"):
            return ranks[opts.rootRank]
    numbers = [x for x in (*arguments, *options.values())
               if isinstance(x, int) and not isinstance(x, bool)]
    return ranks[numbers[0]] if numbers else -1


def _message(method, arguments, options, group, ranks):
    """Describes a message as a collective of the two ranks that exchange it. Returns a name that
    both know it by, the two, and the other one. For a message from anybody these are unknown."""
    peer = arguments[1] if len(arguments) > 1 else options.get("srcRank", options.get("dstRank"))
    if method == "recv_anysource" or not isinstance(peer, int):
        return "", ranks, -1
    tag = arguments[2] if len(arguments) > 2 else options.get("tag", 0)
    other, own = ranks[peer], dist.get_rank()
    way = (own, other) if method == "send" else (other, own)
    return f"{group} {way[0]}->{way[1]} {tag}", sorted(way), other


def _is_in_backward():
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def _place():
    """Returns the innermost line of the user's code."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, _TORCH, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno}"[-200:]
        frame = frame.f_back
    return ""
