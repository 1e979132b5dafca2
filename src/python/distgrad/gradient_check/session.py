"""What rank 0 asks of all ranks: actions of the executor, with the results brought together."""

import time
from dataclasses import replace

import torch

from ..ranks.unwaited import told


class Broken(Exception):
    """The function could not be run. failures: {rank: Failure, None where there was none}."""

    def __init__(self, failures):
        super().__init__("could not be run")
        self.failures = failures


class Session:
    def __init__(self, team, executor):
        self._team, self._executor = team, executor
        self.size = team.size
        self.broken_by = None  # {rank: Failure} that leave the group under test unusable
        self._unwaited = [set() for _ in range(team.size)]  # by rank, texts of asynchronous calls
        self._waited_for = set()
        self._last_unwaited = []  # by rank, of the last action
        self.inputs = self.outputs = None
        self._untold = None  # coordinates that the other ranks do not know yet

    def run(self, action, *arguments, tolerate=None):
        """([Result by rank], {rank: Failure}). From probe number `tolerate` on a failure is no
        error."""
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
        """Returns sentences on the asynchronous calls that ranks do not wait for, without those
        that wait_for_calls() knows."""
        return told([sorted(texts - self._waited_for) for texts in self._unwaited])

    def last_unwaited(self):
        """Returns such sentences on the last action alone, those on calls that wait_for_calls()
        knows among them: messages are never waited for."""
        return told(self._last_unwaited)

    def wait_for_calls(self):
        """Has all ranks wait for these from now on. Returns what use() gives, by rank."""
        self._waited_for = set().union(*self._unwaited)
        results, _ = self.run("wait", sorted(self._waited_for))
        return [result.values[0] for result in results]

    def broken(self, failures):
        return Broken({rank: failures.get(rank) for rank in range(self.size)})

    def note_broken(self, failures):
        """The group cannot be used any more; what was found until now is judged all the same."""
        self.broken_by = failures

    def use_coordinates(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self._untold = (inputs, outputs)

    def move(self, moves, perturbation=None):
        """The outputs' coordinates, by row of `moves`: coefficients of the input's coordinates.
        perturbation: (share, turn) of Perturbation; None where the function does not take that."""
        results, failures = self.run("move", self._to_report(), moves, perturbation,
                                     tolerate=0 if perturbation else None)
        if not failures:
            return self.outputs.assemble([_rows(r.values) for r in results])
        if len(failures) < self.size or any(failure.is_echo for failure in failures.values()):
            self.note_broken(failures)
        return None

    def with_detached_held(self, measure, only=None):
        """(What measure() gives while what the function detaches is held, {line: what it does}).
        only: the lines that are held, None: all. The first is None where nothing is detached, or
        that cannot be held."""
        started, _ = self.run("hold", only)
        found = [result.values[0] for result in started]
        places = {where: what for on_rank in found for where, what in on_rank["places"].items()}
        good = bool(places) and all(on_rank["same"] for on_rank in found)
        measured = measure() if good else None
        ended, _ = self.run("release")
        return measured if all(r.values[0] for r in ended) else None, places

    def casts_left_out(self):
        """Has move() run as if all were float64 from now on. Returns (the dtypes that the function
        casts to, texts of the casts, whether it runs without them)."""
        results, failures = self.run("widen", tolerate=1)
        if failures and (len(failures) < self.size or any(f.is_echo for f in failures.values())):
            self.note_broken(failures)
        dtypes, casts = ([x for result in results for x in result.values[0][i]] for i in (0, 1))
        return list(dict.fromkeys(dtypes)), list(dict.fromkeys(casts)), not failures

    def those_that_matter(self, places):
        """Of these lines those by which outputs change."""
        results, _ = self.run("matter", list(places))
        kept = [where for i, where in enumerate(places) if any(r.values[i] for r in results)]
        return {where: places[where] for where in kept or places}

    def probe(self, probes, tolerate=None):
        """(values by probe and rank, failures, by how much a gradient changed after its
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
        """The gradients' coordinates, a row for each probe, of the first that probe() returned."""
        return self.inputs.assemble(
            [_rows([seen[rank]["row"] for seen in values]) for rank in range(self.size)])

    def _to_report(self):
        untold, self._untold = self._untold, None
        return untold

    def give_up(self, lost):
        """A rank does not answer: the report, which the others find in the store."""
        time.sleep(min(1.0, self._team.timeout_s / 2))  # for what it says of itself
        report = lost.report(self._team, self._team.late(lost.silent))
        self._team.publish(report)
        return report


def _rows(lists):
    return torch.tensor(lists, dtype=torch.float64).reshape(len(lists), -1)
