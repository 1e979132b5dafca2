"""Runs the function on one rank as a plan says, and reports coordinates.

A plan is a list of probes that all ranks go through in the same order without talking to each
other; the results go to rank 0 afterwards. An exception ends the plan on the rank that raises it.
"""

import contextlib
import os
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import Optional

import torch

from ..ranks.long_text import cut
from ..ranks.rounding import Shaking
from ..ranks.narrowing import Narrowing
from ..ranks.unwaited import Unwaited
from .coordinates import Coordinates
from .detached import HeldConstants
from .nearby_slopes import STEPS
from .perturbation import Perturbation
from .subject import NotSupported, Subject
from .team import BROKEN_WAITS, shown_frames
from .waiting import calls_entered, met_outside

_MOST_VALUES = 4096  # Larger inputs do not send their values to rank 0.
_JUNK = 1e3  # This fills the memory between a cotangent's elements.
_LATER = 3  # The gradients of a plan's first and last probes are looked at again at its end.


@dataclass
class Failure:
    """Describes an exception on one rank. index is the probe's number. is_echo says that the
    connection reported it because another rank is gone or waits."""

    text: str
    where: str
    traceback: str
    index: int
    doing: str
    is_echo: bool
    # {rank: waiting.State} has all ranks if they wait for each other for ever.
    states: Optional[dict] = None
    is_mistake: bool = True  # It is False for a lack of memory or time.


@dataclass
class Result:
    """Holds what a plan gave on one rank: a value for each probe that was done, and why the plan
    ended early. unwaited has the texts of asynchronous calls that this rank did not wait for."""

    values: list = field(default_factory=list)
    failure: Optional[Failure] = None
    seconds: float = 0.0
    unwaited: list = field(default_factory=list)


@dataclass
class Probe:
    """Describes a backward run. coefficients are those of the output's coordinates.

    graph is "kept" (one graph for all probes), "own" (a forward for this probe alone), "used"
        (another forward and backward come between), "elsewhere" (a forward at other inputs comes
        between), "together" (one backward for two calls, the other with reversed coefficients;
        gives the sum of both gradients) or "saved" (a graph of its own, in which what autograd
        saves is copied at once).
    layout tells how cotangents lie in memory, on rank `only` or on all ranks (None). constant sets
        all elements of a cotangent to its first coefficient. output is the only one that takes
        part; absent is one that does not take part on rank `only`.
    as_given lets inputs require grad only on ranks where the caller's do.
    nudge, if not 0, moves the inputs of a forward of its own by one rounding of this relative size,
        and all that is computed from them by roundings as well."""

    coefficients: Optional[torch.Tensor]
    graph: str = "kept"
    layout: str = ""
    only: Optional[int] = None
    constant: bool = False
    output: Optional[str] = None
    absent: Optional[str] = None
    as_given: bool = False
    nudge: float = 0.0
    doing: str = "backward"


_REFUSES_HOOKS = "don't yet support saved tensor hooks"  # So torch.func says.


class Executor:
    def __init__(self, subject, team):
        """Takes a function `subject` that makes the Subject; it may raise."""
        self._team, self._make_subject = team, subject
        self.subject: Optional[Subject] = None
        self._inputs: Optional[Coordinates] = None
        self._outputs: Optional[Coordinates] = None
        self._kept = None  # Probes with graph "kept" share this run's graph.
        self._doing = ""
        self._waited_for = ()  # Asynchronous calls with these texts are waited for.
        self._around_moves = contextlib.nullcontext  # widen() puts Narrowing.widening here.

    def restore(self):
        if self.subject is not None:
            self.subject.restore()

    def run(self, action, *arguments):
        """Runs one of the actions below and returns its Result."""
        result, start = Result(), time.monotonic()
        self._doing = "forward"
        self._works = Unwaited(self._waited_for)
        try:
            with self._team.watch.one_plan(), self._works:
                for value in getattr(self, action)(*arguments):
                    result.values.append(value)
        except Exception as error:
            self._kept = None
            result.failure = self._failure(error, len(result.values))
        result.seconds, result.unwaited = time.monotonic() - start, self._works.texts()
        return result

    def _failure(self, error, index):
        failure = replace(_failure(error, index, self._doing), states=self._team.watch.states(),
                          is_mistake=not isinstance(error, (MemoryError, TimeoutError,
                                                            torch.OutOfMemoryError)))
        hung_at = self._team.watch.hung_at
        if not (failure.is_echo and hung_at):
            return failure
        text = f"not done after {self._team.timeout_s:g} s, but at"
        return replace(failure, text=text, where="", traceback=hung_at, is_echo=False,
                       is_mistake=False)

    # -- actions: each yields values

    def start(self):
        """Yields the inputs, what use() yields for their dtypes, the names of constants that no
        input has, and the names of inputs that do not require grad."""
        self.subject = self._make_subject()
        yield [_described_input(leaf) for leaf in self.subject.leaves]
        yield from self.use(None)
        yield self.subject.unknown_constants()
        yield self.subject.frozen()

    def thaw(self, names):
        """Makes these inputs require grad from now on even if the caller's do not. Yields what
        use() yields."""
        self.subject.thaw(names)
        yield from self.use(None)

    def use(self, dtype):
        """Runs in this dtype from now on (None: the given ones). Yields its first forward."""
        self._kept = None
        self.subject.use(dtype)
        since = calls_entered()
        run = self._forward()
        start = time.monotonic()
        self._forward()  # This is timed, as the first may have connected or compiled something.
        yield {"seconds": time.monotonic() - start,
               "outputs": [_described_output(o, run.outputs) for o in run.outputs],
               "outside": met_outside(self._team.global_ranks, since),
               "written": self.subject.written(run), "closed_over": self.subject.closed_over()}

    def wait(self, texts):
        """Waits for these calls at once from now on. Yields what use() yields."""
        self._waited_for = self._works.waited_for = tuple(texts)
        yield from self.use(self.subject.dtype)

    def move(self, coordinates, moves, perturbation):
        """Yields the outputs' coordinates at each row of `moves`, which has coefficients of the
        input's coordinates. `coordinates` sets new Coordinates of inputs and outputs, if given.
        perturbation is None or Perturbation's (share, turn)."""
        self._inputs, self._outputs = coordinates or (self._inputs, self._outputs)
        before = self.subject.held
        if perturbation:
            self.subject.held = Perturbation(*perturbation, self._team.rank, self._team.size)
        try:
            if perturbation:
                self._look_inside(moves)
            for row in moves:
                with self._around_moves():
                    run = self._forward(self._inputs.expand(self._team.rank, row),
                                        has_backward=False)
                yield self._outputs.project(self._team.rank, self._judged(run)).tolist()
        finally:
            self.subject.held = before

    def widen(self):
        """Finds the function's casts to narrower dtypes, which move() leaves out from now on.
        Yields (dtypes that are cast to, texts of the casts), and None if the function runs without
        them."""
        narrowing = Narrowing(may_send_narrow=False)
        with narrowing.watching():
            self._forward(has_backward=False)
        yield narrowing.dtypes, narrowing.casts
        with narrowing.widening():
            self._forward(has_backward=False)
        self._around_moves = narrowing.widening
        yield None

    def _look_inside(self, moves):
        """Lets the Perturbation measure values inside the function at the inputs and nearby."""
        furthest = max(moves, key=lambda row: float(row.abs().sum()))
        for row in (None, furthest, -furthest):
            self._forward(None if row is None else self._inputs.expand(self._team.rank, row),
                          has_backward=False)
        self.subject.held.settle(STEPS)

    def hold(self, only=None):
        """Keeps what the function detaches (at the lines `only`, None: anywhere) from now on as it
        is at the inputs. Yields where it detaches, and whether outputs stay the same with that."""
        before = self._forward(has_backward=False)
        self.subject.held = held = HeldConstants(only)
        self._forward(has_backward=False)
        after = self._forward(has_backward=False)
        yield {"places": held.places, "same": _alike(before, after) and not held.is_lost}

    def matter(self, places):
        """Yields for each line whether outputs at other inputs change if it alone is not held."""
        all_held = self._at_other_inputs(HeldConstants())
        for place in places:
            yield not _alike(all_held, self._at_other_inputs(HeldConstants(but=(place,))))

    def _at_other_inputs(self, held):
        moves = [1 / 64 * leaf.base.detach().to("cpu", torch.float64).abs().clamp_min(1 / 64)
                 for leaf in self.subject.leaves]
        self.subject.held = held
        try:
            self._forward(has_backward=False)
            return self._forward(moves, has_backward=False)
        finally:
            self.subject.held = contextlib.nullcontext()

    def release(self):
        """Ends hold(). Yields whether all calls since then detached what the first did."""
        held, self.subject.held = self.subject.held, contextlib.nullcontext()
        yield not held.is_lost

    def probe(self, coordinates, probes, coefficients):
        """Yields for each Probe, with its row of coefficients, the gradients' coordinates and what
        else was seen; at the end, by how much gradients changed after their backward."""
        self._inputs, self._outputs = coordinates or (self._inputs, self._outputs)
        watched = []
        for i, probe in enumerate(
                replace(p, coefficients=row) for p, row in zip(probes, coefficients)):
            self._doing = probe.doing
            with self._shaking(probe), self.subject.as_given(probe.as_given):
                seen = self._backward(self._runs_for(probe), probe)
            if len(watched) < _LATER or i >= len(probes) - _LATER:
                watched.append((seen["gradients"], seen["row"]))
            # Rows are sent as numbers, because tensors are slow to pickle one by one.
            yield {**{key: value for key, value in seen.items() if key != "gradients"},
                   "row": seen["row"].tolist()}
        self._doing = "backward"
        yield [float((sum(self._project(g) for g in gradients) - row).nan_to_num().abs().max())
               if len(row) else 0.0 for gradients, row in watched]

    # -- runs

    def _forward(self, moves=None, has_backward=True):
        return self._call(self.subject.prepared(moves), has_backward)

    def _call(self, prepared, has_backward=True):
        self._doing, doing = "forward", self._doing
        with self._team.watch.one_call():
            run = self.subject.call(prepared, has_backward)
        self._check_not_late()
        self._doing = doing
        return run

    def _runs_for(self, probe):
        """Returns the runs whose backward the probe asks for."""
        if probe.graph == "kept":
            self._kept = self._kept or self._forward()
            return [self._kept]
        self._kept = None  # The next forward writes the parameters that the kept graph uses.
        if probe.graph == "together":
            # Both operands are made before both calls, so that in backward the second call's
            # gradient waits while the first's is made.
            return [self._call(prepared) for prepared in [self.subject.prepared(),
                                                          self.subject.prepared()]]
        saving = (torch.autograd.graph.saved_tensors_hooks(_copied, lambda x: x)
                  if probe.graph == "saved" else contextlib.nullcontext())
        moves = self._nudges(probe.nudge) if probe.nudge else None
        try:
            with saving:
                run = self._forward(moves)
        except RuntimeError as error:
            if _REFUSES_HOOKS not in str(error):
                raise
            run = self._forward(moves)  # torch.func inside keeps its own tensors.
        if probe.graph == "used":
            other = self._forward(self._elsewhere())
            self._backward([other], Probe(probe.coefficients.flip(0)))
        if probe.graph == "elsewhere":
            self._forward(self._mirrored())
        return [run]

    def _shaking(self, probe):
        return (Shaking(2 * self._team.rank + (probe.nudge > 0)) if probe.nudge
                else contextlib.nullcontext())

    def _nudges(self, share):
        return [torch.where(torch.arange(leaf.base.numel()).reshape(leaf.base.shape) % 3 == 0,
                            -share, share)
                * leaf.base.detach().to("cpu", torch.float64) for leaf in self.subject.leaves]

    def _elsewhere(self):
        """Returns moves of the tensor inputs, as small as the forward's, which the function took.
        Parameters are not moved, because the first run's graph uses their memory."""
        moves = []
        for leaf in self.subject.leaves:
            size = leaf.base.detach().to("cpu", torch.float64).abs()
            least = float(size.square().mean().sqrt()) if size.numel() else 0.0
            moves.append(None if leaf.is_parameter else size.clamp_min(least or 1.0) / 64)
        return moves

    def _mirrored(self):
        """Returns moves to the inputs with their elements in reverse order. These keep what a
        function may need of them: their range, a sum of 1, that a matrix is symmetric and positive.
        Inputs that are the same reversed are moved as _elsewhere() moves them."""
        moves = self._elsewhere()
        for i, leaf in enumerate(self.subject.leaves):
            base = leaf.base.detach().to("cpu", torch.float64)
            mirrored = base.flatten().flip(0).reshape(base.shape) - base
            if moves[i] is not None and bool(mirrored.any()):
                moves[i] = mirrored
        return moves

    def _backward(self, runs, probe):
        probes = [probe, replace(probe, coefficients=probe.coefficients.flip(0))]
        given = [(o, self._cotangent(o, t, p)) for run, p in zip(runs, probes)
                 for o, t in self._with_cotangents(run, p)]
        given = [(output, c, c.clone()) for output, c in given if c is not None]
        since = calls_entered()
        with self._team.watch.one_call():
            gradients = self.subject.backward(runs, [(o.tensor, c) for o, c, _ in given],
                                              probe.graph == "kept")
        self._check_not_late()
        leaves = self.subject.leaves
        return {"row": sum(self._project(g) for g in gradients), "gradients": gradients,
                "rank": self._team.rank, "entered": calls_entered(since),
                "written": [o.name for o, c, before in given if not torch.equal(c, before)],
                "missing": [leaf.name for leaf, g in zip(leaves, gradients[0]) if g is None],
                "inputs": self.subject.written(runs[0])}

    def _with_cotangents(self, run, probe):
        known = {t.name: x
                 for t, x in zip(self._outputs.tensors[self._team.rank],
                                 self._outputs.expand(self._team.rank, probe.coefficients))}
        return [(output, known.get(output.name)) for output in run.differentiable()]

    def _cotangent(self, output, value, probe):
        is_absent = output.name == probe.absent and probe.only == self._team.rank
        if is_absent or probe.output not in (None, output.name):
            return None
        y = output.tensor
        if probe.constant and y.numel():
            value = torch.full(y.shape, 0.0 if value is None else float(value.reshape(-1)[0]),
                               dtype=torch.float64)
        if value is None:
            value = torch.zeros(y.shape, dtype=torch.float64)
        layout = probe.layout if probe.only in (None, self._team.rank) else ""
        return laid_out(value.to(y.device, y.dtype), layout)

    def _judged(self, run):
        by_name = {output.name: output.tensor for output in run.outputs}
        for t in self._outputs.tensors[self._team.rank]:
            if t.name not in by_name or tuple(by_name[t.name].shape) != t.shape:
                now = ("is absent" if t.name not in by_name else
                       f"has the shape {list(by_name[t.name].shape)}")
                raise TypeError(f"the function does not return the same each time: {t.name},"
                                f" {list(t.shape)} at first, {now}")
        return [by_name[t.name] for t in self._outputs.tensors[self._team.rank]]

    def _project(self, gradients):
        return self._inputs.project(self._team.rank, [_dense(g) for g in gradients])

    def _check_not_late(self):
        if self._team.watch.is_late and not self._team.gives_up_by_itself():
            raise TimeoutError(
                f"not done after {self._team.timeout_s:g} s; its process group was aborted")


def laid_out(x, layout):
    """Copies x with this memory layout; "" is contiguous, and so is an x that does not allow the
    layout."""
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)
    if layout == "sliced" and x.dim() >= 1 and x.numel():
        room = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 3), _JUNK, dtype=x.dtype,
                          device=x.device)
        place = room[..., 1:1 + 2 * x.shape[-1]:2]
        return place.copy_(x)
    if layout == "expanded" and x.numel():
        # The storage is as large as the tensor, so that code that wrongly takes it for contiguous
        # reads other numbers and destroys nothing.
        room = torch.full((x.numel(),), _JUNK, dtype=x.dtype, device=x.device)
        room[0] = x.reshape(-1)[0]
        return room.as_strided(x.shape, [0] * x.dim())
    return x.clone(memory_format=torch.contiguous_format)


def _copied(x):
    return x.detach().clone()


def _alike(a, b):
    return all(torch.equal(x.tensor, y.tensor) for x, y in zip(a.outputs, b.outputs))


def _dense(gradient):
    if gradient is None or gradient.layout == torch.strided:
        return gradient
    return gradient.to_dense()


def _described_input(leaf):
    values = leaf.base.detach().to("cpu", torch.float64).reshape(-1)
    size = float(values.square().mean().sqrt()) if len(values) else 0.0
    return {"name": leaf.name, "shape": tuple(leaf.base.shape), "dtype": leaf.base.dtype,
            "size": size, "device": leaf.base.device.type,
            "values": values if len(values) <= _MOST_VALUES else None,
            "digest": _digest(leaf.base)}


def _digest(x):
    """Returns (shape, [norm and two randomly weighted sums]), which ranks compare to see whether
    they have the same tensor."""
    flat = x.detach().to("cpu", torch.float64).reshape(-1)
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(2, len(flat), generator=generator, dtype=torch.float64)
    return tuple(x.shape), [float(flat.norm()), *(weights @ flat).tolist()]


def _described_output(output, outputs):
    y = output.tensor
    beside = y.requires_grad and sum(o.tensor.grad_fn is y.grad_fn for o in outputs) > 1
    return {"name": output.name, "shape": tuple(y.shape), "dtype": y.dtype, "digest": _digest(y),
            "requires_grad": y.requires_grad, "has_beside": beside}


def _failure(error, index, doing):
    frames = shown_frames(traceback.extract_tb(error.__traceback__))
    inside = os.path.dirname(torch.__file__)
    frames = [f for f in frames if not f.filename.startswith(inside)] or frames[-1:]
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    said = [cut(line) for line in traceback.format_exception_only(type(error), error)]
    text = str(error) if isinstance(error, NotSupported) else said[-1].strip()
    lines = [*traceback.format_list(frames), *said] if frames else []
    is_echo = any(part in text for part in BROKEN_WAITS)
    return Failure(text, where, "".join(lines), index, doing, is_echo)
