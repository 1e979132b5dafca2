"""Runs a step again and again from the same state, with parameters or outputs moved, and returns
the declared loss."""

import contextlib
import math
import random
import sys
import time
import traceback

import torch

from ..gradient_check import waiting
from ..gradient_check.subject import homes_of_buffers
from ..gradient_check.team import BROKEN_WAITS, shown_frames
from ..own_device import users_device
from ..ranks.long_text import cut
from ..ranks.unwaited import Unwaited
from ..transport import line_of
from .clipping import Uncut
from .errors import StepError
from .roots import Begun, Roots, can_end
from .variables import gradient_of, local_of, matches, named_parameters, padding_rows
from .variables import under_one_name

OBJECTIVES = ("mean", "sum", "replicated")


class _Failure:
    """Tells Team whether an exception is an echo of another rank's failure."""

    def __init__(self, error):
        text = str(error)
        self.is_echo = any(echo in text for echo in BROKEN_WAITS)


class Repeated:
    """Runs something again and again on all ranks alike. All ranks must call every method."""

    def __init__(self, team):
        self.team = team
        self.count, self.seconds = 0, 0.0
        self.losses = []  # Each rank has a loss of the last run, or None.
        self.ended = []  # These groups, which the last run made, are destroyed.

    @property
    def rank(self):
        return self.team.rank

    def gather(self, value, failure=None, seconds=0.0):
        """Returns what each rank gave, by rank."""
        team = self.team
        if team.size == 1:
            return [value]
        if team.leads():
            every = team.collect(value, failure, seconds)
            team.send_to_all(every)
            return every
        team.give(value, failure)
        return team.next_plan()

    def once(self, step):
        """Returns what step() gave, by rank. Raises StepError if it raised on one."""
        begin = time.monotonic()
        value, failure, text = None, None, ""
        watch = self.team.watch
        try:
            with watch.one_plan(), watch.one_call(), eager(), users_device():
                value = step()
        except Exception as error:
            failure, text = _Failure(error), _described(error)
        seconds = time.monotonic() - begin
        is_echo = failure is not None and failure.is_echo
        every = self.gather((value, text, is_echo, is_echo and watch.states()), failure, seconds)
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self._raise_of(every)
        return [value for value, *_ in every]

    @staticmethod
    def _raise_of(every):
        failed = [(is_echo, rank, text) for rank, (_, text, is_echo, _) in enumerate(every) if text]
        if not failed:
            return
        states = next((states for *_, states in every if states), None)
        is_echo, rank, text = min(failed)
        if states and is_echo:
            places = {s.where: None for s in states.values() if s.waits() and s.where}
            raise StepError(f"check_gradients: step() hangs: {waiting.text_of(states)}"
                            + "".join(f"\n  in {place}" for place in places))
        raise StepError(f"check_gradients: rank {rank} raised in step():\n{text}")


class Runs(Repeated):
    """Runs step() from the state that there is at construction."""

    def __init__(self, model, step, objective, team, copies=()):
        super().__init__(team)
        self.model, self.objective = model, objective
        trained = named_parameters(model)
        anywhere = union(self.gather(list(trained))) if copies else ()
        self.parameters = under_one_name(
            trained | named_parameters(model, [n for n in anywhere if matches(n, copies)]), copies)
        self._step = step
        self.place = self.gather(line_of(step))[0]
        # _begins_at is the last whole run's (loss, what backward began at, how often, whether these
        # are one tensor). _ends says whether loss() can end there, or None if not known yet.
        self._begins_at, self._ends = None, None if can_end(model.modules()) else False
        self.held = contextlib.nullcontext()  # Each run is inside this context, and this one's:
        self.widened = contextlib.nullcontext  # It may become a Narrowing's widening().
        self.padding = padding_rows(model, self.parameters)
        self.values = {}  # {name: what counts in the place of this rank's part} in widened runs.
        self.uncut = Uncut(self.parameters)
        self.waited_for = frozenset()  # Calls with these texts are waited for at once.
        self._state = State(model, self.parameters)
        self.loss_dtypes = set()  # step() returned tensors of these dtypes, as texts.

    def run_as_it_is(self, gradients=None):
        """Runs as run() does. Returns (loss, {name: copy of p.grad when step() returned}, texts by
        rank of asynchronous calls that were not waited for)."""
        found = {}
        loss = self.run(gradients, lambda: found.update(self.found_gradients()))
        self._state.note_kept_gradients()
        return loss, found, self.gather(self._unwaited)

    def run(self, gradients=None, at_return=lambda: None):
        """Returns the declared loss, a float64. First p.grad is set to gradients {name: tensor or
        None}, or to none. at_return() is called as soon as step() returns."""
        self._state.put_back()
        self._state.set_gradients(gradients)
        self.losses = self.once(lambda: self._loss_of_a_run(at_return))
        return self._declared()

    def loss(self):
        """Returns the loss as run() does, but without backward if the loss is known when it begins:
        if on every rank backward begins once, at the returned loss or at what two runs show to be
        the loss but for a factor."""
        if self._ends is None and all(self.gather(self._begins_at[-1])):
            self._ends = True
        if not self._ends:
            before, found = self._begins_at, self.run()
            if self._ends is None:
                states = self.gather(_ratio_of(before, self._begins_at))
                self._ends = (False if "no" in states else True if set(states) == {"yes"} else None)
            return found
        self._state.put_back()
        self._state.set_gradients(None)
        self.losses = self.once(self._loss_when_backward_begins)
        return self._declared()

    def _loss_of_a_run(self, at_return):
        with self.widened(), self.held, self.uncut, Roots() as roots, Unwaited(
                self.waited_for) as calls:
            found = self._step()
            at_return()
        self._unwaited = calls.texts()
        value = self._plain_loss(found)
        # The user's code may reduce the loss in place, to log it, once backward is done.
        is_the_same = (roots.count == 1 and isinstance(found, torch.Tensor)
                       and found.data_ptr() == roots.root.data_ptr() and bool(value)
                       and value == roots.total)
        self._begins_at = value, roots.total, roots.count, is_the_same
        return value

    def _loss_when_backward_begins(self):
        value, total, *_ = self._begins_at
        with contextlib.suppress(Begun), self.widened(), self.held, Roots(
                ends=True) as roots, Unwaited(self.waited_for):
            self._step()
        return value / total * roots.total

    def _plain_loss(self, value):
        """Returns step()'s value as a float, a tuple (loss, count), or None."""
        if isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise TypeError(f"step() returned {len(value)} values: it is to return this rank's"
                                " loss, or (loss, count)")
            return tuple(map(self._plain_loss, value))
        if value is None or isinstance(value, (int, float)):
            return value
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            self.loss_dtypes.add(str(value.dtype).removeprefix("torch."))
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            return float(value.detach().double().reshape(()))
        shape = f" of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        raise TypeError(f"step() returned a {type(value).__name__}{shape}: it is to return this"
                        " rank's loss, one number")

    @contextlib.contextmanager
    def moved(self, parameters, share):
        """Moves the values of parameters that are not trained at random, by this share of their
        size, for the runs inside this context."""
        before = [(local := local_of(p.detach()), local.clone()) for p in parameters]
        self._state.left_alone = set(map(id, parameters))
        try:
            for local, values in before:
                local.copy_(values * (1 + share * torch.randn(values.shape).to(values)))
            yield
        finally:
            for local, values in before:
                local.copy_(values)
            self._state.left_alone = set()

    def local(self, name):
        """Returns what this rank holds of a parameter, to be moved for the next runs."""
        value = self.values.get(name)
        return local_of(self.parameters[name]) if value is None else value

    def restore(self):
        """Leaves everything as it was before the first run, gradients too."""
        self._state.put_back()
        self._state.set_gradients(self._state.gradients)

    def begun(self):
        """Returns how often the last whole run began backward on this rank."""
        return self._begins_at[2]

    def found_gradients(self):
        """Returns {name: a copy of this rank's gradient or None} of the last run."""
        return {name: gradient_of(p) for name, p in self.parameters.items()}

    def entry_gradients(self):
        return self._state.gradients

    def _declared(self):
        known = [loss for loss in self.losses if loss is not None]
        if not known:
            raise TypeError("step() returned None on every rank: it is to return this rank's loss")
        if callable(self.objective):
            try:
                value = self.objective(known)
            except Exception as error:  # The user's code may raise anything.
                raise StepError("check_gradients: objective(losses) raised:\n"
                                + _described(error)) from None
            try:
                return float(value)
            except (TypeError, ValueError):
                raise TypeError(f"objective(losses) returned a {type(value).__name__}: it is to"
                                " return one number") from None
        if any(isinstance(loss, tuple) for loss in known):
            raise TypeError("step() returned two values, which only an objective that is a function"
                            " gets, as (loss, count): it is to return this rank's loss")
        return sum(known) / (1 if self.objective == "sum" else len(known))


def union(by_rank):
    """Returns what is in any rank's list, each once."""
    return list(dict.fromkeys(x for row in by_rank for x in row))


def without_count(loss):
    """Returns the loss of what step() returned, as a float, (loss, count) or None."""
    return loss[0] if isinstance(loss, tuple) else loss


def _ratio_of(before, now):
    """Returns whether two runs show the loss to be a constant times what backward begins at: "yes",
    "no", or "" if the runs have the same loss."""
    if any(isinstance(value, tuple) or not value or not total or count != 1
           or not math.isfinite(value) for value, total, count, _ in (before, now)):
        return "no"
    (a, at_a, *_), (b, at_b, *_) = before, now
    if abs(a - b) < 1e-7 * abs(a):
        return ""
    return "yes" if abs(a / at_a - b / at_b) * abs(at_a) < 1e-7 * abs(a - b) else "no"


class State:
    """Keeps what a step may change and must find again: buffers, random state, gradients."""

    def __init__(self, model, parameters):
        self._buffers = [(*home, b, local_of(b.detach()).clone())
                         for *home, b in homes_of_buffers(model) if b is not None]
        judged = set(map(id, parameters.values()))  # Of copies, some may not be trained.
        self._untrained = _in_main_memory(p for p in model.parameters()
                                          if not p.requires_grad and id(p) not in judged)
        self.left_alone = set()  # Those with these ids are not put back.
        self._random = random_states()
        self.gradients = {name: None if p.grad is None else p.grad.detach().clone()
                          for name, p in parameters.items()}
        self._parameters = parameters
        # Gradients may be views of one buffer, which a step reduces.
        self._kept = {name: p.grad for name, p in parameters.items()
                      if p.grad is not None and not p.grad.is_sparse}

    def note_kept_gradients(self):
        """Forgets the tensors that a run replaced by others: a step gets the others again."""
        self._kept = {name: kept for name, kept in self._kept.items()
                      if self._parameters[name].grad is kept}

    def set_gradients(self, gradients):
        """Sets p.grad to copies of these, or to none, which is 0 in a tensor that a step keeps."""
        for name, p in self._parameters.items():
            value = None if gradients is None else gradients[name]
            kept = self._kept.get(name)
            if kept is None:
                p.grad = None if value is None else value.clone()
                continue
            local = local_of(kept.detach())
            if value is None:
                local.zero_()
            else:
                local.copy_(local_of(value))
            p.grad = kept

    def put_back(self):
        with torch.no_grad():
            for names, name, tensor, value in self._buffers:
                names[name] = tensor
                local_of(tensor).copy_(value)
            for tensor, value, sums in self._untrained:
                if id(tensor) not in self.left_alone and _is_changed(tensor, value, sums):
                    local_of(tensor).copy_(value)
        for put, state in self._random:
            put(state)


def _in_main_memory(untrained):
    """Returns [(parameter, a copy, its sums)]: step() may change a teacher's, perhaps only once
    what it follows has moved. Leaves out subclasses of Tensor, such as quantised weights, which may
    have no such copy."""
    locals_ = [(p, local_of(p.detach())) for p in untrained if not p.is_meta]
    return [(p, x.to("cpu", copy=True), None if x.is_cpu else _sums(x)) for p, x in locals_
            if type(x) is torch.Tensor]


def _is_changed(parameter, value, sums):
    """Returns whether a parameter has other values. Of FSDP's it may have another shape now."""
    now = local_of(parameter.detach())
    if now.shape != value.shape:
        return False
    if sums is None:
        return now.dtype != value.dtype or not torch.equal(now, value)
    return _sums(now) != sums


def _sums(x):
    """Returns sums of the bits of a tensor on a device, from which a copy would take long."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    parts = torch.view_as_real(x) if x.is_complex() else x
    bits = parts.contiguous().view(kinds[parts.element_size()]).to(torch.int64)
    return int(bits.sum()), int((bits * bits).sum())


def eager():
    """Makes compiled modules run uncompiled, as each move could compile them again."""
    compiler = getattr(torch, "compiler", None)
    if not hasattr(compiler, "set_stance") or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return compiler.set_stance("force_eager")


def random_states():
    found = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        found.append((numpy.set_state, numpy.get_state()))
    if torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def _described(error):
    """Returns the traceback from step() on, as its user knows it."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(shown_frames(told.stack, __file__))
    return cut("".join(told.format()).rstrip())
