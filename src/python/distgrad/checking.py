"""Implements check, audit and run: they test the user's own collectives, and scenario files, on
distgrad's own ranks."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Optional, Union

from . import launched, transport
from .driver import Report, call, report_of
from .launched_command import on_all, others_start
from .nesting import refuse_in_rank


def check(
    function: Callable,
    collective: str,
    world_size: Optional[int] = None,
    *,
    op: str = "sum",
    objective: str = "sum",
    dtype: Optional[str] = None,
    timeout_s: Optional[float] = None,
    without: Iterable[str] = (),
    keep: "Union[str, os.PathLike, None]" = None,
    **options,
) -> Report:
    """Runs `function` as `collective` in small programs on `world_size` ranks, and compares with a
    simulation.

        def test_gather():
            distgrad.check(GatherLayer.apply, "all_gather", world_size=4)

    `function` is a function, an autograd.Function or its `apply`, a Module or a Module class; what
    its parameters get, by their names, is in docs/your-code.md. It may be made inside another
    function. `objective` says what the ranks optimise together: "sum", "mean", "replicated" (one
    loss, computed on every rank) or "rank:1". `dtype` is float64 by default. The programs are
    scenario files, and are left in the folder `keep` if one is given. `options` are those of
    `distgrad run`.

    `world_size` is 4 by default. Under torchrun, srun or mpirun it is the number of started
    processes, the ranks are the launcher's, and all processes make the call: all return or raise
    the same (docs/clusters.md). The same holds for audit() and run().

    The programs are the audit's, all on `world_size` ranks, without the tensors that many functions
    are not meant for: no elements, no dimension, ties, zeros, gathers of different sizes. `without`
    leaves out more of them, by the names of aspects ("groups") or programs ("uneven"). Calls that
    the function's parameters cannot express are skipped, which strict=True counts as a failure.

    Returns the report, or raises AssertionError with it, also if every case was skipped. Raises
    ValueError for a bad argument, or a function that cannot be loaded in the ranks."""
    refuse_in_rank("check")
    _check_collective(collective)
    team = launched.team()
    world_size = launched.ranks_by_default() if world_size is None else world_size
    if team and world_size > team.size:
        raise ValueError(
            f"check needs {world_size} ranks, and {team.launcher} has started {team.size}")
    asked = {"op": op, "objective": objective, "world_size": world_size,
             "without": [*_NOT_CHECKED, *_NOT_CHECKED_OF.get(collective, ()), *without]}

    def lead():
        with tempfile.TemporaryDirectory(prefix="distgrad-") as temporary:
            folder = os.path.abspath(keep or temporary)
            os.makedirs(folder, exist_ok=True)
            subject = f"{collective}={_subject_place(function, folder)}"
            call("audit", {**asked, "battery": folder}, [subject])
            return _run(
                [folder], {"dtype": dtype, "timeout": timeout_s, "allow_code": True, **options},
                None if keep else folder, others_start(team, os.path.join(folder, "function")))

    return on_all(team, ("check", collective, f"world_size={world_size}"), lead)


# Leaves out tensors that many functions are not meant for.
_NOT_CHECKED = ("scalar", "empty", "values")
_NOT_CHECKED_OF = {"all_gather": ("uneven",), "gather": ("uneven",)}


def audit(
    function: Callable,
    collective: str,
    *,
    objective: Optional[str] = None,
    **options,
) -> Report:
    """Runs the whole battery of `distgrad audit` on one function: 1 to 5 ranks, dims, dtypes,
    groups, shapes, ties, zeros, ops.

        distgrad.audit(GatherLayer.apply, "all_gather")

    Without `objective`, it is enough to be right for any one. `options` are those of `distgrad
    audit` (strict=True, op="sum", without=["groups"]). Takes some seconds. Returns the results, or
    raises AssertionError with the table if a collective is wrong or none could be judged, and
    ValueError as check() does."""
    refuse_in_rank("audit")
    _check_collective(collective)
    team = launched.team()

    def lead():
        with tempfile.TemporaryDirectory(prefix="distgrad-") as folder:
            subject = f"{collective}={_subject_place(function, folder)}"
            options.setdefault("python", sys.executable)
            return report_of("audit", {"objective": objective, **options}, [subject],
                             _Shortened(folder, True),
                             others_start(team, os.path.join(folder, "function")))

    return on_all(team, ("audit", collective), lead)


def run(paths: "Union[str, os.PathLike, Iterable]" = "scenarios", **options) -> Report:
    """Runs `distgrad run` on scenario files, folders or single cases. The options are the command
    line's, with underscores:

        distgrad.run("scenarios/debate", subject="torch_nn", world_size=[2, 3])
        distgrad.run(["mine.json:subject=in_place", "others"], strict=True)

    Returns the report, or raises AssertionError with its text if a case is not as expected or went
    wrong, or nothing ran (unless allow_empty=True). Raises ValueError with the command's own words
    for a bad path, file or option."""
    refuse_in_rank("run")
    for taken in {"json", "color"} & set(options):
        raise TypeError(f"run() has no option {taken!r}: the report is returned")
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    team = launched.team()
    return on_all(team, ("run", *map(os.fspath, paths)),
                  lambda: _run(paths, options, None, others_start(team)))


def _run(paths, options, gone, others):
    """Runs `distgrad run`. `gone` is a folder that is deleted by the time the report is read, or
    None."""
    shorten = _Shortened(gone, "python" not in options)
    options.setdefault("python", sys.executable)
    return report_of("run", {"color": "never", **options}, [os.fspath(path) for path in paths],
                     shorten, others)


class _Shortened:
    """Removes from the text what its reader cannot use: a folder that is gone by then (None if
    there is none), this interpreter's path in the names of cases, and, for cases in that folder,
    details that an earlier case has shown."""

    def __init__(self, folder, python):
        self._folder = folder
        self._python = python

    def __call__(self, text):
        lines = [line for line in map(self._line, text.split("\n")) if line is not None]
        return "\n".join(_each_verdict_once(lines) if self._folder else lines)

    def _line(self, line):
        again = line.startswith("Again")
        if again and self._folder:
            return None
        if self._python and not again:
            line = line.replace(f":python={sys.executable}",
                                "").replace(f",python={sys.executable}", "")
        return line.replace(self._folder + os.sep, "") if self._folder else line


def _each_verdict_once(lines):
    """Keeps the details of a case, which are indented, only if its verdict is new, as the programs
    of check() differ in little."""
    known, kept, shown = set(), [], True
    for line in lines:
        if line.startswith(("FAIL ", "ERR ", "skip ")):
            verdict = line.split(None, 2)[2:]
            shown = tuple(verdict) not in known
            known.add(tuple(verdict))
        elif not line.startswith("  "):
            shown = True
        if shown or not line.startswith("  "):
            kept.append(line)
    return kept


def _check_collective(collective):
    from .ranks.collectives import KINDS  # it imports torch, which `import distgrad` must not

    if collective not in KINDS:
        raise ValueError(f"unknown collective {collective!r}; it is one of {', '.join(KINDS)}")


# These characters would mean something else in a subject's name.
_SPECIAL = set("+,=:")


def _subject_place(function, folder):
    """Returns python:FILE.py:NAME or python:MODULE:NAME. `folder` is for a file that loads a
    function without such a name. Raises TypeError if it is not callable."""
    if not callable(function):
        raise TypeError(f"{function!r} is no function")
    place = transport.place_of(function)
    module = sys.modules[place[0]] if place else None
    file = os.path.abspath(getattr(module, "__file__", None) or "")
    if place and not _SPECIAL & set(file):
        if getattr(module, "__package__", None) and module.__name__ != "__main__":
            return f"python:{place[0]}:{place[1]}"
        if file.endswith(".py"):
            return f"python:{file}:{place[1]}"
    return f"python:{_file_for(function, folder)}:function"


_LOADER = """\
import importlib.util
import sys
from pathlib import Path

# The sender's, whatever distgrad the ranks are of.
_spec = importlib.util.spec_from_file_location("distgrad.transport", {transport!r})
_transport = sys.modules["distgrad.transport"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_transport)
function = _transport.loads(Path({data!r}).read_bytes())
"""


def _file_for(function, folder):
    """Writes a file whose `function` is this one, sent by value, and returns its path."""
    folder = os.path.join(folder, "function")
    os.makedirs(folder)
    data, file = os.path.join(folder, "function.pickle"), os.path.join(folder, "function.py")
    with open(data, "wb") as opened:
        opened.write(transport.dumps(function))
    with open(file, "w") as opened:
        opened.write(_LOADER.format(transport=os.path.abspath(transport.__file__), data=data))
    return file
