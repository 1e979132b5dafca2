"""Runs actions of the executor on all ranks, from rank 0, and brings the results together."""

import time
from dataclasses import replace

import torch

from ..ranks.unwaited import told


class Broken(Exception):
    """Says that the function could not be run. failures is {rank: Failure or None}."""

    def __init__(self, failures):
        super().__init__("could not be run")
        self.failures = failures


class Session:
    def __init__(self, team, executor):
        self._team, self._executor = team, executor
        self.size = team.size
        self.broken_by = None  # {rank: Failure}, after which the group under test is unusable
        self._unwaited = [set() for _ in range(team.size)]  # texts of asynchronous calls, by rank
        self._waited_for = set()
        self._last_unwaited = []  # texts of the last action's calls, by rank
        self.inputs = self.outputs = None
        self._untold = None  # The other ranks do not know these coordinates yet.

    def run(self, action, *arguments, tolerate=None):
        """Returns ([Result by rank], {rank: Failure}). Raises Broken on a failure before probe
        number `tolerate`."""
        if self.broken_by:
            raise Broken(self.broken_by)
        self._team.send_to_all((action, *arguments))
        own = self._executor.run(action, *arguments)
        results = self._team.collect(own, own.failure, own.seconds)
        for texts, result in zip(self._unwaited, results):
            texts.update(result.unwaited)
        self._last_unwaited = [result.unwaited for result in results]
        failures = {rank: r.failure for rank, r in enumerate(results) if r.failure}
        if failures and (tolerate is None or min(f.index for f in failures.values()) < tolerate):
            raise self.broken(failures)
        return results, failures

    def unwaited(self):
        """Returns sentences on the asynchronous calls that ranks do not wait for, except for those
        that wait_for_calls() waits for."""
        return told([sorted(texts - self._waited_for) for texts in self._unwaited])

    def last_unwaited(self):
        """Returns sentences on all asynchronous calls that the last action did not wait for. Calls
        that wait_for_calls() knows are among them, because messages are never waited for."""
        return told(self._last_unwaited)

    def wait_for_calls(self):
        """Makes all ranks wait for these calls from now on. Returns what use() yields, by rank."""
        self._waited_for = set().union(*self._unwaited)
        results, _ = self.run("wait", sorted(self._waited_for))
        return [result.values[0] for result in results]

    def broken(self, failures):
        return Broken({rank: failures.get(rank) for rank in range(self.size)})

    def note_broken(self, failures):
        """Notes that the group cannot be used any more. What was found until now is judged."""
        self.broken_by = failures

    def note_if_broken(self, failures):
        """Notes it if only some ranks raised by themselves, so that others wait in the group."""
        if failures and (len(failures) < self.size or any(f.is_echo for f in failures.values())):
            self.note_broken(failures)

    def use_coordinates(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self._untold = (inputs, outputs)

    def move(self, moves, perturbation=None):
        """Returns the outputs' coordinates for each row of coefficients of the input's coordinates,
        or None if the function does not run with the perturbation, Perturbation's (share, turn)."""
        results, failures = self.run("move", self._to_report(), moves, perturbation,
                                     tolerate=0 if perturbation else None)
        if not failures:
            return self.outputs.assemble([_rows(r.values) for r in results])
        self.note_if_broken(failures)
        return None

    def with_detached_held(self, measure, only=None):
        """Returns (what measure() gives while what the function detaches is held, {line: what it
        does}). `only` names the lines that are held (None: all). The first is None if nothing is
        detached, or if that cannot be held."""
        started, _ = self.run("hold", only)
        found = [result.values[0] for result in started]
        places = {where: what for on_rank in found for where, what in on_rank["places"].items()}
        good = bool(places) and all(on_rank["same"] for on_rank in found)
        measured = measure() if good else None
        ended, _ = self.run("release")
        return measured if all(r.values[0] for r in ended) else None, places

    def casts_left_out(self):
        """Makes move() leave out casts to narrower dtypes from now on. Returns (the dtypes that the
        function casts to, texts of the casts, whether it runs without them)."""
        results, failures = self.run("widen", tolerate=1)
        self.note_if_broken(failures)
        dtypes, casts = ([x for result in results for x in result.values[0][i]] for i in (0, 1))
        return list(dict.fromkeys(dtypes)), list(dict.fromkeys(casts)), not failures

    def those_that_matter(self, places):
        """Returns those of these lines whose detached values change outputs, or all if none do."""
        results, _ = self.run("matter", list(places))
        kept = [where for i, where in enumerate(places) if any(r.values[i] for r in results)]
        return {where: places[where] for where in kept or places}

    def probe(self, probes, tolerate=None):
        """Returns (values by probe and rank, failures, by how much a gradient changed after its
        backward)."""
        coefficients = torch.stack([p.coefficients for p in probes])
        plain = [replace(p, coefficients=None) for p in probes]
        results, failures = self.run("probe", self._to_report(), plain, coefficients,
                                     tolerate=tolerate)
        done = min(min(len(r.values), len(probes)) for r in results)
        values = [[r.values[i] for r in results] for i in range(done)]
        later = max((x for r in results if not r.failure for x in r.values[-1]), default=0.0)
        return values, failures, later

    def assemble_gradients(self, values):
        """Returns the gradients' coordinates, a row for each probe, from probe()'s values."""
        return self.inputs.assemble(
            [_rows([seen[rank]["row"] for seen in values]) for rank in range(self.size)])

    def _to_report(self):
        untold, self._untold = self._untold, None
        return untold

    def give_up(self, lost):
        """Returns the report on a rank that does not answer; the others find it in the store."""
        time.sleep(min(1.0, self._team.timeout_s / 2))  # The rank may still say where it is.
        report = lost.report(self._team, self._team.late(lost.silent))
        self._team.publish(report)
        return report


def _rows(lists):
    return torch.tensor(lists, dtype=torch.float64).reshape(len(lists), -1)
