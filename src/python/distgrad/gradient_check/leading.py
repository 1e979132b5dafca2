"""Leads the check on rank 0, and follows it on the others."""

import re

from ..words import capitalized
from .executor import Executor
from .passes import CannotCheck, Check
from .report import GradcheckReport
from .session import Broken, Session
from .subject import Subject
from .team import Lost


def check(function, inputs, kwargs, team, options, constant=()):
    """Returns the GradcheckReport, the same on every rank. constant names inputs that are not
    moved. Raises Lost if rank 0 does not answer any more."""
    executor = Executor(lambda: Subject(function, inputs, kwargs, constant), team)
    try:
        return _lead(team, executor, options) if team.leads() else _follow(team, executor)
    finally:
        executor.restore()


def _follow(team, executor):
    try:
        while True:
            plan = team.next_plan()
            if plan[0] == "done":
                return plan[1]
            result = executor.run(*plan)
            team.give(result, result.failure)
    except Lost:
        report = team.published()
        if report is None:
            raise
        return report


def _lead(team, executor, options):
    session = Session(team, executor)
    wanted = Check(session, options)
    try:
        report = wanted.run()
    except Broken as broken:
        # The cause may be a message that a rank began and forgot, for which another one waits.
        calls = [f"{capitalized(text)}." for text in session.last_unwaited()]
        report = GradcheckReport("error", team.size, errors=_errors(broken.failures),
                                 notes=list(dict.fromkeys([*wanted.notes, *calls])))
    except CannotCheck as error:
        report = GradcheckReport("error", team.size, notes=wanted.notes,
                                 errors=[_error_on(range(team.size), "arguments", error)])
    except Lost as lost:
        return session.give_up(lost)
    except Exception as error:
        team.send_to_all(("done", GradcheckReport("error", team.size, errors=[_error_on(
            [0], "in gradcheck itself", repr(error))])))
        raise
    report.ranks, report.backend, report.global_ranks = team.size, team.backend, list(
        team.global_ranks)
    try:
        team.send_to_all(("done", report))
    except Lost:
        team.publish(report)
    return report


def _error_on(ranks, doing, text):
    return {"ranks": list(ranks), "doing": doing, "text": str(text), "where": "", "traceback": ""}


def _errors(failures):
    """Returns what each rank was doing, the causes first, and ranks that say the same together."""
    ranks_of = {}
    for rank, failure in sorted(failures.items(),
                                key=lambda item: (item[1] is None,
                                                  item[1] is not None and item[1].is_echo)):
        if failure is None:
            ranks_of.setdefault(("was done", "", "", ""), []).append(rank)
            continue
        text = failure.text
        if failure.is_echo:
            text = f"waited for another rank: {_short(text)}"
        ranks_of.setdefault((failure.doing, text, failure.where,
                             "" if failure.is_echo else failure.traceback), []).append(rank)
    return [{"ranks": ranks, "doing": doing, "text": text, "where": where if not traceback else "",
             "traceback": traceback} for (doing, text, where, traceback), ranks in ranks_of.items()]


def _short(text):
    """Returns the part of Gloo's error that is the same on all ranks that wait."""
    text = re.sub(r"^RuntimeError: (\[\S+\] )?", "", text).partition(". This is")[0]
    return re.sub(r" \[\S+\]:\d+$| for (recv|send) operation to complete$", "", text)
