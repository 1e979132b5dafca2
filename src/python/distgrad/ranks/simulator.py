"""Simulates a program whose calls say what they mean for all ranks at once, with all virtual ranks
in one autograd graph.

The other collectives are those of built_in.joint, and a replicated or sharded input is one leaf. It
answers the protocol's `simulate` for programs with calls. All others have the simulator in C++,
which also replays rules.
"""

import contextlib

import torch

from ..words import number
from .call import RankGroup, SubjectError
from .code import Code, checked_for_all, seed
from .built_in import joint
from .language import Expression, InvalidExpression
from .narrowing import Narrowing
from .plan import InvalidAt, Plan, call_of
from .rounding import RUNS, Rounding, Spread, bound_of, unmoved
from .runner import message_of
from .values import held_of, is_local, leaf_of, rank_names, size_names


class Simulator:
    def run(self, request, frame, writer):
        """Returns the keys of a simulation's reply. Never raises."""
        empty = {"steps": [], "cotangents": [], "gradients": [], "bounds": [], "exact": False,
                 "bound_notes": [], "undecided": [], "forward_only": "", "single_loss_bound": 0.0,
                 "single_gradients": [], "single_bounds": [], "file_truth": [],
                 "losses": writer.tensor(torch.zeros(0)),
                 "loss_bounds": writer.tensor(torch.zeros(0))}
        try:
            return {**empty, **_Simulation(request, frame, writer).run()}
        except InvalidAt as error:
            return {**empty,
                    "invalid": {"pointer": error.pointer, "message": str(error), "caret": ""}}
        except BaseException as error:  # also what the user's sys.exit() raises
            kind = "subject" if isinstance(error, SubjectError) else "exception"
            return {**empty,
                    "error": {"kind": kind, "rank": -1, "step": "", "message": message_of(error)}}


class _Leaf:
    """Holds an input's leaves in float64: one per rank for a local input, else one."""

    def __init__(self, program, frame, item):
        self.item = item
        self.local = is_local(item)
        self.wanted = item.get("requires_grad", True)
        ranks = range(program["world_size"]) if self.local else [0]
        self.values = [leaf_of(program, frame, item, r).detach().to(torch.float64).clone()
                       for r in ranks]

    def attach(self):
        for x in self.values:
            x.requires_grad_(self.wanted)

    def on(self, program, rank):
        return self.values[rank] if self.local else held_of(program, self.item, self.values[0],
                                                            rank)


class _Simulation:
    def __init__(self, request, frame, writer):
        self._request = request
        self._program = request["program"]
        self._size = self._program["world_size"]
        self._ranks = range(self._size)
        self._frame = frame
        self._writer = writer
        self._rows = [frame.numbers(row) for row in request["weights"]]
        self._narrowing = Narrowing()

    def run(self):
        if self._request["rules"] or self._request["leaves_by_rank"]:
            raise InvalidAt("", "a program that calls code is simulated as it is")
        self._plan = Plan(self._program)
        self._names = [rank_names(self._program, rank) for rank in self._ranks]
        self._leaves = [_Leaf(self._program, self._frame, item) for item in self._program["inputs"]]
        for leaf in self._leaves:
            leaf.attach()
        self._code = Code()
        with self._narrowing.watching():
            self._forward()
        with self._narrowing.widening() if self._narrowing.casts else contextlib.nullcontext():
            return self._reply()

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
        scopes = [dict(names) for names in self._names]
        for leaf in self._leaves:
            for rank in self._ranks:
                scopes[rank][leaf.item["name"]] = leaf.on(self._program, rank)
        seed(0)
        reported = []
        for index, step in enumerate(self._program["steps"]):
            values = self._step(index, step, scopes)
            for rank in self._ranks:
                scopes[rank][step["name"]] = values[rank]
            if "expr" not in step:
                reported.append((step["name"], values))
        return [self._loss(scope, rank) for rank, scope in enumerate(scopes)], reported

    def _step(self, index, step, scopes):
        expressions = self._plan.steps[index]
        if "call" in step:
            arguments = [[e.value(scope, torch.float64) for scope in scopes] for e in expressions]
            text = step["call"]["simulate"]
            return checked_for_all(self._code.function(text)(*arguments), self._size, text)
        pointer = (step["expr"] if "expr" in step else step["collective"]["operand"])["pointer"]
        operands = [self._evaluated(expressions[0], pointer, scope) for scope in scopes]
        return operands if "expr" in step else self._exchanged(step, operands)

    def _evaluated(self, expression, pointer, scope):
        try:
            return expression.evaluate(scope, torch.float64)
        except InvalidExpression as error:
            raise InvalidAt(pointer, str(error)) from None

    def _exchanged(self, step, operands):
        name = step["collective"]["group"]
        partition = [list(self._ranks)]
        if name:
            partition = next(g["partition"] for g in self._program["groups"] if g["name"] == name)
        results = [None] * self._size
        for ranks in partition:
            call = call_of(step, {name: RankGroup(name, tuple(ranks), 0, None)})
            try:
                values = joint(call, [operands[rank] for rank in ranks])
            except (ValueError, RuntimeError) as error:
                raise InvalidAt(step["pointer"], f"{call.kind}: {error}") from None
            for rank, value in zip(ranks, values):
                results[rank] = value
        return results

    def _loss(self, scope, rank):
        loss = self._evaluated(self._plan.loss, self._program["loss"]["pointer"], scope)
        if loss.numel() != 1:
            raise InvalidAt(self._program["loss"]["pointer"],
                            f"the loss has {loss.numel()} elements (shape {list(loss.shape)} on"
                            f" rank {rank}); it must have one: take .sum() or .mean()")
        return loss.reshape(()).to(torch.float64)

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
        spread, dtype = Spread(plain), self._narrowing.narrowest(self._program["dtype"])
        for run in range(RUNS):
            with Rounding(dtype, run):
                again, told_again = self._forward()
                rows = self._gradients(again, self._rows[0], self._wanted())
            spread.add([x.detach()
                        for x in [*again, *(x for _, values in told_again for x in values)]] + rows)
        roundings = unmoved(self._program)
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
        reply = {"file_truth": [self._file_truth(truth)
                                for truth in self._program.get("truth", ())]}
        single = self._program.get("single_device")
        if single:
            reply.update(self._single_device(single))
        return reply

    def _file_truth(self, truth):
        leaf = next(leaf for leaf in self._leaves if leaf.item["name"] == truth["input"])
        parts = [self._shaped(truth, self._truth_part(truth, leaf, part), x)
                 for part, x in enumerate(leaf.values)]
        return {"input": truth["input"], "parts": [self._writer.tensor(x) for x in parts]}

    def _truth_part(self, truth, leaf, part):
        if "value" in truth:
            return self._frame.tensor(truth["value"])
        if "by_rank" in truth:
            return self._frame.tensor(truth["by_rank"][part])
        names = dict(self._names[part]) if leaf.local else size_names(self._program)
        for other in self._leaves:
            if leaf.local or not other.local:
                names[other.item["name"]] = (other.values[part]
                                             if other.local else other.values[0]).detach()
        expression = truth["expr"]
        try:
            return Expression(expression["text"], names).evaluate(names, torch.float64,
                                                                  accept_number=True)
        except InvalidExpression as error:
            raise InvalidAt(expression["pointer"], str(error)) from None

    @staticmethod
    def _shaped(truth, value, leaf):
        if value.shape == leaf.shape:
            return value
        if value.numel() == 1 and "expr" in truth:
            return value.reshape(()).expand(leaf.shape)
        raise InvalidAt(truth["pointer"],
                        f"the truth has shape {list(value.shape)}, the input {list(leaf.shape)}")

    def _single_device(self, single):
        scope = size_names(self._program)
        for leaf in self._leaves:
            scope[leaf.item["name"]] = list(leaf.values) if leaf.local else leaf.values[0]
        for step in single["steps"]:
            scope[step["name"]] = self._evaluated_alone(step["expr"], scope)
        loss = self._evaluated_alone(single["loss"], scope)
        if loss.numel() != 1:
            raise InvalidAt(single["loss"]["pointer"],
                            f"the loss has {loss.numel()} elements; it must have one")
        loss = loss.reshape(()).to(torch.float64)
        gradients = self._gradients([loss], [1.0], self._wanted())
        largest = max([1.0, *(float(g.abs().max()) for g in gradients if g.numel())])
        slack = 1e-9 * largest  # between two computations; a wrong program is wrong by a factor
        return {"single_loss": number(float(loss)),
                "single_loss_bound": 1e-9 * max(1.0, abs(float(loss))),
                "single_gradients": self._by_input(gradients),
                "single_bounds": self._by_input([torch.full_like(g, slack) for g in gradients])}

    def _evaluated_alone(self, expression, scope):
        try:
            return Expression(expression["text"], scope).evaluate(scope, torch.float64)
        except InvalidExpression as error:
            raise InvalidAt(expression["pointer"], str(error)) from None

    # -- the reply

    def _numbers(self, values):
        return self._writer.tensor(torch.tensor(values, dtype=torch.float64))

    def _by_input(self, tensors):
        parts = iter(tensors)
        return [{"input": leaf.item["name"],
                 "parts": [self._writer.tensor(next(parts)) for _ in leaf.values]}
                for leaf in self._leaves if leaf.wanted]
