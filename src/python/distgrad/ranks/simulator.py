"""Simulates a program whose calls say what they mean for all ranks at once, with all virtual ranks
in one autograd graph.

A replicated or sharded input is one leaf. It answers the protocol's `simulate` for programs with
calls. All others have the simulator in C++, which also replays rules.
"""

import contextlib

import torch

from ..words import number
from .call import SubjectError
from .code import Code, checked_for_all, seed
from .narrowing import Narrowing
from .program import InvalidAt, Program, is_local
from .rounding import RUNS, Rounding, Spread, bound_of, unmoved
from .runner import message_of


class Simulator:
    def run(self, request, frame, writer):
        """Returns the keys of a simulation's reply. Never raises."""
        try:
            return _Simulation(request, frame, writer).run()
        except InvalidAt as error:
            return {"invalid": {"pointer": error.pointer, "message": str(error),
                                "caret": error.caret}}
        except BaseException as error:  # also what the user's sys.exit() raises
            kind = "subject" if isinstance(error, SubjectError) else "exception"
            return {"error": {"kind": kind, "rank": -1, "step": "", "message": message_of(error)}}


class _Leaf:
    """Holds an input's leaves in float64: one per rank for a local input, else one."""

    def __init__(self, program, item):
        self.item = item
        self.local = is_local(item)
        self.wanted = item.get("requires_grad", True)
        ranks = range(program.what["world_size"]) if self.local else [0]
        self.values = [program.leaf(item["name"], rank).to(torch.float64).clone()
                       .requires_grad_(self.wanted) for rank in ranks]

    def by_rank(self, program):
        """Returns what each rank holds."""
        name = self.item["name"]
        return [program.held(name, self.values[rank if self.local else 0], rank)
                for rank in range(program.what["world_size"])]


class _Simulation:
    def __init__(self, request, message, writer):
        self._request = request
        self._message = message
        self._writer = writer
        self._rows = [message.numbers(row) for row in request["weights"]]
        self._narrowing = Narrowing()

    def run(self):
        if self._request["rules"] or self._request["leaves_by_rank"]:
            raise InvalidAt("", "a program that calls code is simulated as it is")
        self._program = Program(self._message, self)
        self._what = self._program.what
        self._size = self._what["world_size"]
        self._leaves = [_Leaf(self._program, item) for item in self._what["inputs"]]
        self._code = Code()
        with self._narrowing.watching():
            self._forward()
        with self._narrowing.widening() if self._narrowing.casts else contextlib.nullcontext():
            reply = self._reply()
        if self._narrowing.casts:
            reply["casts"] = self._narrowing.casts
        if self._narrowing.lost and self._what.get("is_widened", False):
            raise InvalidAt("", f"{self._narrowing.lost[0]} cannot be widened")
        return reply

    def _reply(self):
        losses, reported = self._forward()
        reply = {"losses": self._numbers([float(x) for x in losses])}
        gradients = [self._gradients(losses, row, self._wanted()) for row in self._rows]
        reply["gradients"] = [self._by_input(row) for row in gradients]
        if self._request["with_cotangents"]:
            reply["cotangents"] = self._cotangents(losses, reported)
        reply.update(self._bounds(losses, reported, gradients[0]))
        if self._request["with_guards"]:
            reply.update(self._guards())
        return reply

    # -- forward

    def _forward(self):
        """Returns the losses by rank, and for each reported step (name, values by rank)."""
        values = [x for leaf in self._leaves for x in leaf.by_rank(self._program)]
        seed(0)
        losses, by_step = self._program.simulate(values)
        names = [step["name"] for step in self._what["steps"] if "expr" not in step]
        return losses, list(zip(names, by_step))

    def code_of_all(self, index, arguments, _):
        text = self._what["steps"][index]["call"]["simulate"]
        results = self._code.function(text)(*arguments)
        return checked_for_all(results, arguments, self._size, text)

    # -- backward

    def _wanted(self):
        return [x for leaf in self._leaves if leaf.wanted for x in leaf.values]

    @staticmethod
    def _gradients(losses, weights, wanted):
        """Returns the gradients, zeros where there is no path. Leaves out losses of weight 0, since
        their derivative may be infinite."""
        counted = [(x, w) for x, w in zip(losses, weights) if w != 0 and x.requires_grad]
        if not counted or not wanted:
            return [torch.zeros_like(x) for x in wanted]
        weights = torch.tensor([w for _, w in counted], dtype=torch.float64)
        # (Given a cotangent, autograd.grad imports torch.compile's modules for some seconds.)
        total = torch.dot(torch.stack([x for x, _ in counted]), weights)
        found = torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found)]

    def _cotangents(self, losses, reported):
        values = []
        for name, by_rank in reported:
            attached = [x for x in by_rank if x.requires_grad]
            found = iter(self._gradients(losses, self._rows[0], attached))
            parts = [next(found) if x.requires_grad else torch.zeros_like(x) for x in by_rank]
            values.append({"step": name, "by_rank": [self._writer.tensor(x) for x in parts],
                           "bound": []})
        return values

    # -- bounds

    def _bounds(self, losses, reported, gradient):
        flat = [*losses, *(x for _, values in reported for x in values)]
        plain = [x.detach() for x in flat] + gradient
        spread, dtype = Spread(plain), self._what["dtype"]
        if not self._what.get("is_widened", False):
            dtype = self._narrowing.narrowest(dtype)
        for run in range(RUNS):
            with Rounding(dtype, run):
                again, told_again = self._forward()
                rows = self._gradients(again, self._rows[0], self._wanted())
            spread.add([x.detach()
                        for x in [*again, *(x for _, values in told_again for x in values)]] + rows)
        roundings = unmoved(self._what)
        bounds, decided = zip(
            *(bound_of(s, x, dtype, roundings) for s, x in zip(spread.raw(), plain)))
        forward, at = iter(bounds), len(flat)
        reply = {"loss_bounds": self._numbers([float(next(forward)) for _ in losses]),
                 "steps": [{"step": name, "by_rank": [self._writer.tensor(x) for x in values],
                            "bound": [self._writer.tensor(next(forward)) for _ in values]}
                           for name, values in reported],
                 "bounds": self._by_input(bounds[at:]),
                 "undecided_elements": self._undecided(decided[at:])}
        return reply

    def _undecided(self, decided):
        why = "a rounding before it decides its gradient: a branch, a tie or a cancellation"
        found, parts = [], iter(decided)
        for leaf in self._leaves:
            for part in range(len(leaf.values) if leaf.wanted else 0):
                for element in next(parts).reshape(-1).nonzero().flatten().tolist():
                    found.append({"input": leaf.item["name"], "part": part, "element": element,
                                  "why": why})
        return found

    # -- what the file says besides

    def _guards(self):
        stated = [{"input": truth["input"], "parts": self._written(self._program.stated(i))}
                  for i, truth in enumerate(self._what.get("truth", ()))]
        return {"file_truth": stated,
                **(self._single_device() if self._what.get("single_device") else {})}

    def _single_device(self):
        loss, leaves = self._program.on_single_device()
        gradients = self._gradients([loss], [1.0], leaves)
        largest = max([1.0, *(float(g.abs().max()) for g in gradients if g.numel())])
        slack = 1e-9 * largest  # between two computations; a wrong program is wrong by a factor
        return {"single_loss": number(float(loss)),
                "single_loss_bound": 1e-9 * max(1.0, abs(float(loss))),
                "single_gradients": self._by_input(gradients),
                "single_bounds": self._by_input([torch.full_like(g, slack) for g in gradients])}

    # -- the reply

    def _written(self, tensors):
        return [self._writer.tensor(x) for x in tensors]

    def _numbers(self, values):
        return self._writer.tensor(torch.tensor(values, dtype=torch.float64))

    def _by_input(self, tensors):
        parts = iter(tensors)
        return [{"input": leaf.item["name"],
                 "parts": [self._writer.tensor(next(parts)) for _ in leaf.values]}
                for leaf in self._leaves if leaf.wanted]
