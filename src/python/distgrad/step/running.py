"""Runs a step again and again from the same state, with parameters or outputs moved, and says what
the declared loss is."""

import contextlib
import random
import sys
import time
import traceback

import torch

from ..own_device import users_device
from ..ranks.long_text import cut
from ..stepping import ECHOES
from .errors import StepError
from .variables import gradient_of, local_of, named_parameters

OBJECTIVES = ("mean", "sum", "replicated")


class _Failure:
    """What Team wants to know of an exception."""

    def __init__(self, error):
        text = str(error)
        self.is_echo = any(echo in text for echo in (*ECHOES, "Timed out waiting"))


class Runs:
    """step() from the state that there is now. Every method is called on all ranks alike."""

    def __init__(self, model, step, objective, team):
        self.model, self.team, self.objective = model, team, objective
        self.parameters = named_parameters(model)
        self._step = step
        self.held = contextlib.nullcontext()  # around each run
        self._state = State(model, self.parameters)
        self.count, self.seconds = 0, 0.0
        self.loss_dtypes = set()  # texts, of tensors that step() returned here
        self.losses = []  # of the last run, by rank; None of a rank that returned none

    @property
    def rank(self):
        return self.team.rank

    def gather(self, value, failure=None, seconds=0.0):
        """By rank, what each gave."""
        team = self.team
        if team.size == 1:
            return [value]
        if team.leads():
            every = team.collect(value, failure, seconds)
            team.send_to_all(every)
            return every
        team.give(value, failure)
        return team.next_plan()

    def run(self, gradients=None):
        """The declared loss, as a float64. gradients: {name: tensor or None}, that p.grad is set to
        before; None: no parameter has one."""
        self._state.put_back()
        for name, p in self.parameters.items():
            p.grad = None if gradients is None else gradients[name]
        begin = time.monotonic()
        value, failure, text = None, None, ""
        try:
            with self.team.watch.one_call(), eager(), users_device(), self.held:
                value = self._plain_loss(self._step())
        except Exception as error:
            failure, text = _Failure(error), _described(error)
        seconds = time.monotonic() - begin
        every = self.gather((value, text, failure is not None and failure.is_echo), failure,
                            seconds)
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self._raise_of(every)
        self.losses = [loss for loss, _, _ in every]
        return self._declared()

    def _plain_loss(self, value):
        """A float, or a tuple (loss, count); None."""
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

    def restore(self):
        """Leaves everything as it was before the first run, gradients too."""
        self._state.put_back()
        self._state.put_gradients_back()

    def found_gradients(self):
        """{name: a copy of this rank's gradient, None where there is none}, of the last run."""
        return {name: gradient_of(p) for name, p in self.parameters.items()}

    def entry_gradients(self):
        return self._state.gradients

    @staticmethod
    def _raise_of(every):
        failed = [(rank, text, is_echo) for rank, (_, text, is_echo) in enumerate(every) if text]
        if failed:
            rank, text, _ = min(failed, key=lambda row: row[2])
            raise StepError(f"check_gradients: rank {rank} raised in step():\n{text}")

    def _declared(self):
        known = [loss for loss in self.losses if loss is not None]
        if not known:
            raise TypeError("step() returned None on every rank: it is to return this rank's loss")
        if callable(self.objective):
            return float(self.objective(known))
        values = [loss[0] if isinstance(loss, tuple) else loss for loss in known]
        if self.objective == "sum":
            return sum(values)
        return sum(values) / len(values)


class State:
    """What a step may change and must find again: buffers, random generators, gradients."""

    def __init__(self, model, parameters):
        self._buffers = [(b, local_of(b.detach()).clone()) for b in model.buffers()]
        self._random = _random_states()
        self.gradients = {name: None if p.grad is None else p.grad.detach().clone()
                          for name, p in parameters.items()}
        self._parameters = parameters

    def put_back(self):
        with torch.no_grad():
            for buffer, value in self._buffers:
                local_of(buffer).copy_(value)
        for put, state in self._random:
            put(state)

    def put_gradients_back(self):
        for name, p in self._parameters.items():
            p.grad = self.gradients[name]


def eager():
    """Compiled modules run uncompiled: else each move may compile again."""
    compiler = getattr(torch, "compiler", None)
    if not hasattr(compiler, "set_stance") or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return compiler.set_stance("force_eager")


def _random_states():
    found = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        found.append((numpy.set_state, numpy.get_state()))
    if torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def _described(error):
    lines = traceback.format_exception(error)
    return cut("".join(lines).rstrip())
