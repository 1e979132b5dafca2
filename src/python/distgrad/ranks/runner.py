"""Runs one rank's part of a case: from inputs to gradients."""

import contextlib
import os
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist

from ..words import number
from . import board as places
from . import debugging
from . import adapters_loading, times, warned
from .adapters_results import private_copy
from .anchors import attached
from .call import NeedsFreshRank, NotOffered, SubjectError, call_of
from .code import Code, checked, seed
from .collectives.composed import take_composed
from .collectives.exchange import gathered, summed
from .driving import drive
from .groups import Groups
from .changed_state import ChangedState
from .told_op import check_op
from .long_text import cut
from .places import words_of
from .program import InvalidAt, InvalidExpression, Program
from .unwaited import Unwaited

_TRACEBACK_LINES = 15
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_TRANSPORT_WORDS = ("gloo/", "Connection ", "NCCL error", "CUDA error", "CUDA out of memory")

class Runner:
    """Runs cases on this rank, one after another. Keeps connections and subjects from case to
    case."""

    def __init__(self, rank, world_size, board):
        self.rank = rank
        self.board = board
        self.groups = Groups(rank, world_size, board)
        self._subjects = {}
        self._unwaited = set()  # calls of plain cases, run ahead, that nobody waited for

    def run(self, request, frame, writer):
        """Returns the keys of a result's reply. `writer` gets its tensors. Never raises."""
        result = {"loss": 0.0, "loss_shape": [], "gradients": [], "steps": [], "skipped": ""}
        self.board.enter(-1, places.FORWARD)
        threads = set(threading.enumerate())
        with warned.caught() as caught, torch.enable_grad(), Unwaited() as calls:
            try:
                is_asked_for = "drive" not in request and not request.get("observe", False)
                if not is_asked_for:  # a race says nothing about a backward
                    calls.waited_for = self._unwaited
                with contextlib.nullcontext() if is_asked_for else debugging.silent():
                    _Case(self, request, frame, writer, result).run()
            except NotOffered as reason:
                result["skipped"] = cut(str(reason)) or "the subject does not offer this"
            except BaseException as error:  # also what a user's sys.exit() raises
                result["error"] = self._error(error, request["program"])
        left = [t.name for t in threading.enumerate() if t not in threads]
        result["warnings"] = (warned.texts_of(caught) + result.pop("changed_state", []) +
                              result.pop("written", []) +
                              [f"the code left a thread running: {name}" for name in left] +
                              [f"{call} is not waited for" for call in calls.texts()])
        if is_asked_for:
            self._unwaited.update(calls.texts())
        result["composed"] = take_composed()
        return result

    def subject(self, text, groups):
        """Returns the subject, which is loaded once. Its `setup` hears of every change of the
        groups."""
        from .subjects import load_subject  # here, so whatever it raises belongs to a case

        if text not in self._subjects:
            with times.spent_in("module"):
                self._subjects[text] = load_subject(text)
        self._subjects[text].setup(groups)
        return self._subjects[text]

    def _error(self, error, program):
        steps = program["steps"]
        at = self.board.step
        name = steps[at]["name"] if 0 <= at < len(steps) else ""
        in_backward = bool(name) and self.board.phase == places.BACKWARD
        return {"kind": _kind_of(error), "rank": self.rank, "step": name,
                "message": message_of(error), "in_backward": in_backward}


class _Case:
    def __init__(self, runner, request, frame, writer, result):
        self._runner = runner
        self.board = runner.board
        self.subject = None
        self._frame = frame
        self._request = request
        self.rank = runner.rank
        self.writer = writer
        self.result = result
        self.what = request["program"]
        self.dtype = getattr(torch, self.what["dtype"])
        self.reported = []  # values of the steps that are reported
        self.leaves = []  # (input, tensor), of the inputs that require grad
        self._values = []  # what this rank holds of every input
        self._is_first_pass = True  # true until forward() has run once
        self._observes = False
        self._is_repeated = True  # false in a case's first run

    def run(self):
        try:
            self._prepare()
        except InvalidAt as error:  # alike on all ranks
            if "measured" not in self._request:
                raise
            from .differences import report_invalid

            return report_invalid(self, error)
        before = ChangedState()
        try:
            self._run()
        finally:
            self.result["changed_state"] = before.put_back()

    def _run(self):
        if "drive" in self._request:
            return drive(self, self._request["drive"])
        if "measured" in self._request:
            from .differences import measure  # here, as few cases need it

            return measure(self, [self._frame.numbers(row) for row in self._request["measured"]])
        observed = self._request.get("observe", False)
        self._is_repeated = observed
        # A call has two backwards where the loss is made of gradients.
        self._observes = observed and not self.program.loss_is_gradient_norm
        self.make_leaves()
        with self._widened():
            self.run_backward(self.subject.forward(self._to_end, [leaf for _, leaf in self.leaves]))
        if observed:
            self.result["shares"] = self.written(leaf.grad for _, leaf in self.leaves)
        self.result["gradients"] = self.written(self.gradients())

    @contextlib.contextmanager
    def _widened(self):
        """Runs code in float64 if the program asks for that. Raises SubjectError if it cannot."""
        if not self.what.get("is_widened", False):
            yield
            return
        from .narrowing import Narrowing  # here, as few cases need it

        narrowing = Narrowing()
        with narrowing.widening():
            yield
        if narrowing.lost:
            raise SubjectError(f"{narrowing.lost[0]} cannot be widened")

    def written(self, tensors):
        """Writes the tensors and returns what stands for them in the reply."""
        return [None if x is None else self.writer.tensor(x) for x in tensors]

    def _to_end(self, *leaves):
        """Runs from the leaves to the tensor at which backward begins. Under a checkpoint this runs
        once more, in backward."""
        given = iter(leaves)
        values = [next(given) if x.requires_grad else x for x in self._values]
        writes = self._is_first_pass
        loss, reached = self.forward(values)
        if writes:
            self.result["steps"] = self.written(self.reported)
        self.result["loss"] = number(float(loss.item()))
        self.result["loss_shape"] = list(loss.shape)
        return self._end(loss, reached)

    def _prepare(self):
        self._runner.groups.use(self._request["backend"], self._request.get("device", "cpu"))
        self._device = self._runner.groups.transport.device
        self.groups = self._make_groups()
        if "measured" in self._request:
            _watch()
        self.program = Program(self._frame, self)
        with self._loading():
            self.subject = self._runner.subject(self._request["subject"], self.groups)
        self._calls = [call_of(step, self.groups) for step in self.what["steps"]]
        for call in self._calls:
            if call is not None:
                self.subject.check(call)
        self.subject.begin()
        with self._loading():
            code = Code()
            self._functions = [code.function(step["call"]["code"]) if "call" in step else None
                               for step in self.what["steps"]]

    @contextlib.contextmanager
    def _loading(self):
        """Stops the case's clock while the user's code is imported and set up."""
        began = time.monotonic_ns()
        self.board.enter(-1, places.LOAD)
        try:
            yield
        finally:
            self.board.enter(-1, places.FORWARD)
            self.result["loading_ns"] = self.result.get("loading_ns",
                                                        0) + time.monotonic_ns() - began

    def _make_groups(self):
        groups = {"": self._runner.groups.world()}
        for group in self.what["groups"]:
            ranks = next(ranks for ranks in group["partition"] if self.rank in ranks)
            groups[group["name"]] = self._runner.groups.of(group["name"], ranks)
        return groups

    def make_leaves(self, held=None):
        """Makes this rank's leaves. `held` has what it holds of every input; by default that is the
        input's own value."""
        if held is None:
            held = [self.held(item["name"]) for item in self.what["inputs"]]
        self.leaves, self.reported, self._is_first_pass = [], [], True
        self._values = [value.to(self._device) for value in held]
        for item, value in zip(self.what["inputs"], self._values):
            if item.get("requires_grad", True):
                self.leaves.append((item, value.requires_grad_(True)))

    def held(self, name):
        """Returns what this rank holds of the input `name`."""
        return self.program.value_on(name, self.rank).to(self._device)

    def forward(self, values=None):
        """Returns the loss, and the values that backward must reach on every rank."""
        if any(self._functions):
            seed(self.rank)
        loss, reported, reached = self.program.forward(self.rank, values or self._values,
                                                       self.dtype, self._device)
        if self._is_first_pass:
            self.reported = reported
        self._is_first_pass = False
        return loss, reached

    def exchanged_alone(self, leaf):
        """Returns what the first step, a collective, gives for this operand."""
        self.board.enter(0, places.FORWARD)
        value = self.collective(0, leaf, True, True)
        if value.requires_grad:
            value.register_hook(lambda _: self.board.enter(0, places.BACKWARD))
        return value

    # -- what the program calls

    def collective(self, index, x, on_gradient, is_shared):
        call, operand = self._calls[index], self._operand(x, on_gradient, is_shared)
        on_value = self.program.watch(index, operand) if self._observes else None
        # A repeated run asks nothing that the first has answered.
        if self._is_repeated or not self._is_first_pass or not self.subject.op_is_untold(call):
            return self.subject(call, operand, on_value)
        operands = gathered(operand, call.group.process_group)
        value = self.subject(call, operand, on_value)
        check_op(call, operands, value, self.groups[""].process_group)
        return value

    def code(self, index, arguments, on_gradient, is_shared, _):
        given = [self._operand(x, *how) if isinstance(x, torch.Tensor) else x
                 for x, *how in zip(arguments, on_gradient, is_shared)]
        code = self.what["steps"][index]["call"]["code"]
        value = checked(self._functions[index](*given), code)
        if self._is_first_pass and not self._is_repeated:
            self._note_written(code, given, arguments, is_shared)
        return value

    def _note_written(self, code, given, arguments, is_shared):
        """Adds a warning if the code wrote into its own copy of what other steps see."""
        for i, (copy, x, shared) in enumerate(zip(given, arguments, is_shared)):
            if shared and not torch.allclose(copy, x, rtol=0, atol=0, equal_nan=True):
                self.result.setdefault("written", []).append(
                    f"{code} writes into its argument {i}, a copy: other steps that use that"
                    " tensor do not see it here")

    def _operand(self, x, on_gradient, is_shared):
        """Returns the operand for the subject. It is attached to the graph on every rank or on
        none, whatever this rank's value is; else the others would wait in backward for ever. It is
        a copy if other steps see the tensor, as a subject may work in place."""
        if on_gradient and not x.requires_grad and x.is_floating_point():
            return attached(x)
        x = x if on_gradient else x.detach()
        return private_copy(x) if is_shared and not self.subject.shares_operands() else x

    # -- backward

    def backward(self, loss, reached, weight=None):
        """Runs backward from the cotangent `weight`, by default the request's."""
        self.run_backward(self._end(loss, reached, weight))

    def _end(self, loss, reached, weight=None):
        if weight is None:
            weight = self._frame.numbers(self._request["weights"])[self.rank]
        return self.program.end_of(loss, reached, weight)

    @staticmethod
    def run_backward(end):
        if not end.requires_grad:  # its gradients count as missing
            return
        try:
            end.backward()
        except RuntimeError as error:
            # All ranks raise this at the same node, before anything of it is sent.
            if "marked with @once_differentiable" not in str(error):
                raise
            raise NotOffered("its backward is marked with @once_differentiable") from error

    def gradients(self):
        """Returns the leaves' gradients after `sync`; None if one is missing."""
        self.board.enter(len(self.what["steps"]), places.SYNC)
        gradients = []
        for item, leaf in self.leaves:
            gradient = leaf.grad
            for entry in item.get("sync", ()):
                group = self.groups[entry["axis"]]
                gradient = _summed_where_present(group, gradient, leaf)
                # Goes on even if no rank of this group has a gradient: along the next axis others
                # may, and wait for this rank.
                if gradient is not None and entry["op"] == "mean":
                    gradient = gradient / group.size
            gradients.append(gradient)
        return gradients


def _watch():
    """Lets cuts.py and hooks.py put themselves into torch, before any of the user's modules binds
    what they replace to its own name. Only called if the truth is measured, so everything else
    meets torch as it is."""
    if f"{__package__}.cuts" not in sys.modules and adapters_loading.loaded:
        raise NeedsFreshRank("user modules are imported already, which cannot be watched any more")
    from . import cuts  # noqa: F401


def _summed_where_present(group, gradient, leaf):
    """Returns the sum over the group. A rank without a gradient counts as zeros, as in DDP; if no
    rank has one, returns None. It takes one exchange, so no rank need know beforehand which others
    have a gradient."""
    mine = torch.zeros_like(leaf.detach()) if gradient is None else gradient
    present = mine.new_full((1,), 0 if gradient is None else 1)
    total = summed(torch.cat([mine.reshape(-1), present]), group.process_group)
    return None if total[-1].item() == 0 else total[:-1].reshape(mine.shape)


# ---- what went wrong


def _kind_of(error):
    """Returns the error's kind in the reply. Errors of Gloo, NCCL, CUDA and c10d concern a
    connection or a device; all others are the program's."""
    if isinstance(error, SubjectError):
        return "subject"
    if isinstance(error, NeedsFreshRank):
        return "backend"
    text = _text_of(error)
    transport = isinstance(error, RuntimeError) and any(words in text for words in _TRANSPORT_WORDS)
    if not transport and not isinstance(error, dist.DistError):
        return "exception"
    return "hang" if "timed out" in text or "operation timeout" in text else "backend"


def message_of(error):
    if isinstance(error, (SubjectError, InvalidExpression)):
        return cut(str(error))
    if isinstance(error, SyntaxError):
        first = traceback.format_exception_only(type(error), error)[-1].strip()
    else:
        first = f"{type(error).__name__}: {_text_of(error)}"
    first = cut(first)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    lines = "".join(traceback.format_list(frames)).splitlines()[-_TRACEBACK_LINES:]
    return "\n".join([first, *lines])


def _text_of(error):
    try:
        return words_of(error)
    except Exception as other:
        return f"(its text cannot be made: {type(other).__name__})"


def _is_users(file):
    """Returns whether the file is neither ours nor torch's. Those frames tell the subject's author
    little."""
    return not os.path.abspath(file).startswith((_HERE, _TORCH))
