"""Runs cases on ranks, and says which results are not as expected."""

import os

import torch.distributed as dist

from . import parts, ranks
from .parts import NOTHING

import distgrad  # noqa: E402: by the path that ranks.py sets

GROUPS = {4: [0, 1, 2, 3], 3: [1, 2, 3], 2: [3, 1]}  # Each rank is a group of size 1.


_AT_ONCE = 16  # A set of ranks does so many cases within its time-out on a busy machine.


def by_default(cases, seldom):
    """Returns the cases that run by default: all but those in `seldom`, which are variants of
    others. DISTGRAD_ALL_TESTS (tools/test --all) runs all."""
    if os.environ.get("DISTGRAD_ALL_TESTS"):
        return cases
    return [case for case in cases if case.name not in seldom]


def reports(cases, world_size=4):
    """Returns [(case, size of its group, report)]. Raises if the ranks have different reports."""
    return [one for start in range(0, len(cases), _AT_ONCE)
            for one in _reports(cases[start:start + _AT_ONCE], world_size)]


def _reports(cases, world_size):
    by_rank = ranks.run(lambda: _on_this_rank(cases), world_size)
    reported = []
    for index, case in enumerate(cases):
        for size in case.ranks:
            found = [results[index, size] for results in by_rank if (index, size) in results]
            if size > 1 and any(report != found[0] for report in found):
                raise AssertionError(f"{case.name}: the ranks have different reports")
            reported.append((case, size, found[0]))
    return reported


def _on_this_rank(cases):
    results, me = {}, dist.get_rank()
    groups = {size: dist.new_group(members) for size, members in GROUPS.items()}
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][me]
    for index, case in enumerate(cases):
        for size in case.ranks:
            spoilt = dist.new_group(GROUPS[size]) if case.breaks else None
            # Ranks must not wait in gradcheck for ranks that are still in another group's check.
            dist.barrier()
            if size > 1 and me not in GROUPS[size]:
                continue
            parts.use(spoilt or (alone if size == 1 else groups[size]))
            results[index, size] = checked(case)
    return results


def checked(case):
    inputs = case.inputs()
    positional, named = ((), inputs) if isinstance(inputs, dict) else (inputs, None)
    function = case.function() if case.makes else case.function
    options = {"basis": True, **case.options}  # A slow machine must not get random directions.
    return distgrad.gradcheck(function, positional, parts.group(), kwargs=named,
                              raise_exception=False, **options)


def plain(text):
    return " ".join(str(text).lower().split())


def objections(case, report):
    """Returns texts on what is not as the case expects."""
    found = []
    first = report.findings[0] if report.findings else None
    if case.finding is None and report.verdict != case.verdict:
        found.append(f"it is {case.verdict}")
    if case.finding is not None and (first is None or first.name != case.finding
                                     or report.verdict == "right"):
        found.append(f"expected {case.finding}")
    if case.finding is not None and case.alone and len(report.findings) != 1:
        found.append("expected one finding")
    measured = tuple(first.measured) if first else None
    right = tuple(first.right) if first else tuple(report.formulas.get("y, x", ()))
    if case.measured is not None and measured != case.measured:
        found.append(f"measured: expected {case.measured}, not {measured}")
    if case.right is not None and right != case.right:
        found.append(f"right: expected {case.right}, not {right}")
    if case.right_for == NOTHING and report.right_for:
        found.append("expected to be right for no other objective")
    elif case.right_for not in (None, NOTHING) and not any(
            case.right_for in text for text in report.right_for):
        found.append(f"expected to be right for: {case.right_for}")
    found += [f"not said: {words}" for words in case.words if plain(words) not in plain(report)]
    found += [f"said: {words}" for words in case.absent if plain(words) in plain(report)]
    return found
