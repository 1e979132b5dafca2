"""Implements check_step: compares a training step on real ranks with the same step in one
process."""

import json
import os
import pickle
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Optional, Union

from . import blame, launched, saving, transport
from .driver import compare, executable, write_step
from .nesting import refuse_in_rank
from .rank_room import why_no_room
from .step_host import Follower, Lead, StartError, run_here
from .step.report import GradientsReport
from .step_report import StepReport
from .words import ranks_text

# Without a single run, allows the time of so many steps, and seconds to search.
_STEPS, _SEARCH_S = 5, 60
_OPERATIONS = ("sum", "mean", "max", "min", "product")
# Gradients may be off by so much of their norm: four times what compare allows in the dtype.
_ROUNDS_BY = {"bfloat16": 0.125, "float16": 0.032, "float32": 2.5e-4}


class RankError(RuntimeError):
    """A process of check_step raised, died or hung. The text has its rank and its traceback.

    `failures` is [{"process": "rank-1" or "single", "kind": "exception", "crash" or "hang", "text",
    "output"}], the cause first."""

    def __init__(self, text, failures=()):
        super().__init__(text)
        self.failures = failures


def check_step(
    parallel: Callable,
    single: "Callable | Mapping | None" = None,
    world_size: Optional[int] = None,
    *,
    objective: "str | Callable" = "mean",
    reduce: Optional[Mapping[str, str]] = None,
    partly_held: Iterable[str] = (),
    counts: Optional[Mapping[str, int]] = None,
    strict: bool = False,
    rtol: Optional[float] = None,
    atol: Optional[float] = None,
    copies: Iterable[str] = (),
    pieces: Iterable[str] = (),
    detached: "bool | Iterable[str]" = (),
    float64: bool = False,
    backend: str = "gloo",
    seed: int = 0,
    timeout_s: float = 60,
    html: Optional[str] = None,
    junit: Optional[str] = None,
    markdown: Optional[str] = None,
    sarif: Optional[str] = None,
) -> Union[StepReport, GradientsReport]:
    """Compares the gradients of a step on `world_size` ranks with those of the same step in one
    process.

        def parallel():                       # on every rank, torch.distributed is initialised
            model = DistributedDataParallel(make_model())
            model(my_batch(dist.get_rank())).mean().backward()
            return {name: p.grad for name, p in model.named_parameters()}

        def single():                         # in a process without torch.distributed
            model = make_model()
            model(whole_batch()).mean().backward()
            return {name: p.grad for name, p in model.named_parameters()}

        def test_gradients():
            distgrad.check_step(parallel, single, world_size=4)

    Under torchrun, srun or mpirun the launcher's ranks run the step: all processes make the call,
    and all return or raise the same (docs/clusters.md). `world_size` is 4 by default, or the number
    that a launcher has started.

    Both return {parameter: gradient}. `parallel` gets `rank` and `world_size` if it has parameters
    of these names. `single` may be a dict of tensors, and as a function may return (gradients,
    losses), the losses unreduced, as a tensor by sequence or token, or a dict of the loss's terms:
    after a mismatch the report says how much each of them counts. Both start with
    torch.manual_seed(seed), the same everywhere. Each process is a new one: nothing that is in
    memory here but what the functions close over is there.

    A DTensor is joined as its placements say; its replicas must agree. Plain tensors of the shape
    of `single`'s must be equal to it on all ranks, unless `reduce` ({"name or pattern": "sum" or
    "mean", ...}) says that they are to be reduced first; of another shape, they are joined where
    they fit. A parameter that matches a pattern in `partly_held` may be absent on some of the
    ranks; so may, unasked, what other ranks hold in place of other parameters (pipeline stages).

    `counts` ({"micro-batches": 4}) gives numbers that a wrong factor may be, besides those of axes,
    groups and ranks. docs/compare.md says what counts as equal, and what `rtol` and `atol` replace.
    `strict` makes a match that shows nothing a failure: all gradients zero, the same data on every
    rank.

    Without `single`, `parallel` returns (model, step). The gradients that step() leaves must then
    be the derivative of the loss for that `objective`, as check_gradients tests it on running ranks
    (docs/step.md):

        def parallel():
            model = DistributedDataParallel(make_model())
            return model, lambda: one_step(model, my_batch(dist.get_rank()))

        def test_gradients():
            distgrad.check_step(parallel, world_size=4)

    The report is then check_gradients'. `copies`, `pieces`, `detached` and `float64` are its
    options. The options of comparing (`reduce`, `rtol`, ...) do not apply.

    `html`, `junit`, `markdown` and `sarif` are files for the report in these formats, one case per
    parameter (docs/reports.md).

    Returns the report, or raises AssertionError with it (also as its `report`). Raises RankError if
    a process raised, died, or was not done in `timeout_s` seconds; ValueError or TypeError for
    wrong arguments; RuntimeError if there is no `distgrad` executable."""
    __tracebackhide__ = True  # for pytest: the failure is the caller's
    refuse_in_rank("check_step")
    files = {"html": html, "junit": junit, "markdown": markdown, "sarif": sarif}
    if single is not None or any(files.values()):
        executable()
    team = launched.team()
    world_size = launched.ranks_by_default() if world_size is None else world_size
    compares = {"reduce": reduce, "partly_held": partly_held, "counts": counts, "rtol": rtol,
                "atol": atol}
    measures = {"copies": copies, "pieces": pieces, "detached": detached, "float64": float64}
    if single is None and (given := [name for name, value in compares.items() if value]):
        raise ValueError(f"{', '.join(given)}: without `single` nothing is compared")
    if single is not None and (given := [name for name, value in measures.items() if value]):
        raise ValueError(f"{', '.join(given)}: with `single` nothing is measured")
    _check_arguments(parallel, single, world_size, reduce, counts, timeout_s)
    if team and world_size > team.size:
        raise ValueError(
            f"check_step needs {world_size} ranks, and {team.launcher} has started {team.size}")
    if not team and (why := why_no_room(world_size)):
        raise ValueError(f"check_step: {why}; give a smaller world_size")
    with tempfile.TemporaryDirectory(prefix="distgrad-") as folder:
        request = {"parallel": transport.dumps(parallel),
                   "single": transport.dumps(single) if callable(single) else None,
                   "world_size": world_size, "backend": backend, "seed": seed,
                   "timeout_s": float(timeout_s), "began": time.monotonic(),
                   "modules": sorted(name for name in sys.modules if name.startswith("torch.")
                                     and not name.startswith("torch._inductor"))}
        patterns = [partly_held] if isinstance(partly_held, str) else list(partly_held)
        options = {"rtol": rtol, "atol": atol, "strict": strict, "partly_held": patterns,
                   "reduce": [f"{pattern}={op}" for pattern, op in (reduce or {}).items()],
                   "count": [f"{name}={n}" for name, n in (counts or {}).items()]}
        files = {name: os.path.abspath(path) for name, path in files.items() if path}
        if single is None:
            request["measured"] = transport.dumps((objective, {**measures, "timeout_s": timeout_s}))
            request["timeout_s"] = _STEPS * timeout_s + _SEARCH_S

            def lead():
                return _measured(folder, request, strict, files)
        else:
            def lead():
                return _compared(folder, request, parallel, single, options, files)
        if not team:
            return lead()
        call = ("check_step", getattr(parallel, "__qualname__", "a function"),
                f"world_size={world_size}")
        return team.agree(call, lead, Follower(team, folder, request))


def _measured(folder, request, strict, files):
    __tracebackhide__ = True
    _run_processes(folder, request)
    with open(os.path.join(folder, "report"), "rb") as file:
        report = pickle.load(file)
    if files:
        write_step(report.to_dict(), str(report), {**files, "ran": _command(), "strict": strict})
    if report.verdict not in (("right",) if strict else ("right", "disputed")):
        error = AssertionError(str(report).replace("check_gradients:", "check_step:", 1))
        error.report = report
        raise error
    return report


def _compared(folder, request, parallel, single, options, files):
    __tracebackhide__ = True
    _run_processes(folder, request)
    if not callable(single):
        _save_single(single, os.path.join(folder, "single"))
    if not _has_gradients(os.path.join(folder, "single")):
        raise AssertionError("check_step: the single run has no gradient at all (all are None):"
                             " nothing was compared")
    good, fields, text = compare("single", "ranks", options, folder)
    where = _where(fields, folder, request) if not good and callable(single) else None
    if where and (found := _computed_in(fields, where)):
        dtype, whose, place = found
        judged = _wrong(fields)
        options = {**options, "dtype": dtype}
        good, fields, text = compare("single", "ranks", options, folder)
        text += f"\n{whose} in {dtype} ({place}): what nothing explains is held to that.\n"
        if _wrong(fields) != judged:
            where = None if good else _where(fields, folder, request)
    if where and (near := [p for p in _wrong_ones(fields) if p["verdict"] == "close"]):
        if _saw_short_dtype(near, where):
            options = {**options, "saw_short_dtype": True}
            good, fields, text = compare("single", "ranks", options, folder)
        elif "dtypes" in where:
            where["text"].append("Nothing in either run was seen to be in a shorter dtype that"
                                 " rounds as far as that.")
    report = StepReport(fields, text, request["backend"], where)
    if files:
        Path(folder, "text").write_text(report.page_text(), encoding="utf-8")
        compare("single", "ranks", {**options, **files, "text": "text", "ran": _command(),
                                    "where": where["text"] if where else [],
                                    "from": os.getcwd(), "place": transport.line_of(parallel),
                                    "before_s": time.monotonic() - request["began"]}, folder)
    if not good:
        error = AssertionError(str(report))
        error.report = report
        raise error
    return report


def _command():
    """Returns what the user ran."""
    line = sys.orig_argv if hasattr(sys, "orig_argv") else [sys.executable, *sys.argv]
    return shlex.join([os.path.basename(line[0]), *line[1:]])


def _computed_in(fields, where):
    """Returns (dtype, who, where) of a computation in a dtype that is coarser than the gradients',
    or None. The gradients are no more exact than that. A float64 step may compute its loss or a
    norm in float32; under autocast, or with parameters in mixed precision, everything is
    coarser."""
    found = where.get("computed_in", {})
    saved = {p["dtype"] for p in fields["parameters"]}
    if saved & {"bfloat16", "float16"}:  # compare allows for these
        return None
    wider = ("bfloat16", "float16", *(["float32"] if saved == {"float64"} else []))
    return next(((dtype, *found[dtype]) for dtype in wider if dtype in found), None)


def _saw_short_dtype(near, where):
    """Returns whether something on the way, if only what was exchanged, rounds as far as these
    gradients are off."""
    error = max(float(p["relative_error"]) for p in near)
    saved = {p["dtype"] for p in near}
    return any(dtype in where.get("dtypes", {}) and error <= most
               for dtype, most in _ROUNDS_BY.items() if dtype not in saved)


def _wrong_ones(fields):
    return [p for p in fields["parameters"] if not p["right"] and not p["forgiven"]]


def _wrong(fields):
    """Returns, by name, what is wrong with each parameter."""
    return {p["name"]: {"verdict": p["verdict"],
                        "factor": p["factor"] if p["verdict"] == "scaled" else None,
                        "off": p["relative_error"]}
            for p in _wrong_ones(fields)}


def _where(fields, folder, request):
    """Returns what another, watched run says of where the mistake is; None if nothing is wrong."""
    wrong = _wrong(fields)
    right = [p["name"] for p in fields["parameters"] if p["verdict"] == "right"]
    if not wrong:
        return None
    again = tempfile.mkdtemp(prefix="again-", dir=folder)
    # The single run waits for the ranks' end, and has more to do.
    request = {**request, "wrong": wrong, "right": right, "timeout_s": 3 * request["timeout_s"]}
    try:
        _run_processes(again, request)
    except RankError as error:
        return {"text": ["It was not found where it begins, as the second, watched run failed:"
                         f" {_last_line(error)}"]}
    with open(os.path.join(again, "where")) as file:
        where = json.load(file)
    if any(Path(again, name).read_bytes() != Path(folder, name).read_bytes()
           for name in _saved(folder)):
        where["text"].append("The second run, which this is from, gave other gradients than the"
                             " first.")
    return where


def _last_line(error):
    """Returns the last line of the first failed process's text, its traceback: what it printed
    comes behind that."""
    text = error.failures[0]["text"] if error.failures else ""
    return (text or str(error)).rstrip().splitlines()[-1]


def _saved(folder):
    return [os.path.join(what, name) for what in ("ranks", "single")
            for name in sorted(os.listdir(os.path.join(folder, what)))]


def _check_arguments(parallel, single, world_size, reduce, counts, timeout_s):
    if not callable(parallel):
        raise TypeError("parallel is to be a function that returns {parameter: gradient}, or"
                        " (model, step)")
    transport.check_parameters("parallel", parallel, ("rank", "world_size"))
    if callable(single):
        transport.check_parameters("single", single, ())
    if single is not None and not callable(single) and not isinstance(single, Mapping):
        raise TypeError(
            "single is to be a function that returns {parameter: gradient}, or such a dict")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size is to be a number of ranks, not {world_size!r}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is to be above 0, not {timeout_s!r}")
    for pattern, operation in (reduce or {}).items():
        if operation not in _OPERATIONS:
            raise ValueError(
                f"reduce={{{pattern!r}: {operation!r}}}: it is one of {', '.join(_OPERATIONS)}")
    for name, count in (counts or {}).items():
        if not isinstance(count, int) or not 0 < count < 10**6:
            raise ValueError(f"counts={{{name!r}: {count!r}}}: it is to be a number of something")


def _run_processes(folder, request):
    """Runs the step's processes. Raises RankError if one fails. However it ends, no process is
    left."""
    __tracebackhide__ = True
    team = launched.team()
    try:
        failures = Lead(team, folder, request).run() if team else run_here(folder, request)
    except StartError as error:
        raise RankError(str(error), []) from None
    if failures:
        text = _failure_text(failures)
        raise RankError(text, [{key: value for key, value in failure.items() if key != "noted"}
                               for failure in failures if _is_failure(failure)])


# A rank says this when another one is gone: an echo of the cause.
ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Gloo connect",
          "communicator was aborted", "remote process exited")  # the last two are NCCL's


def _failure_text(failures):
    failures.sort(key=_is_echo)  # a stable sort keeps the order of time otherwise
    failure_of = {failure["process"]: failure for failure in failures}
    lead = _lead(failures)
    processes = {}  # what happened -> to whom
    for failure in failures:
        is_news = _is_failure(failure) and not (processes and _is_echo(failure))
        if is_news or lead and failure["kind"] != "finished":
            happened = failure["kind"], _place_text(failure), failure["output"]
            processes.setdefault(happened, []).append(failure["process"])
    parts = [lead] if lead else []
    for (kind, text, output), names in processes.items():
        head = f"{_who(names)} {_kind_text(kind, failure_of[names[0]], len(names) > 1)}"
        text_of = f"{head}:\n{text or '(no Python code)'}"
        parts.append(text_of + (f"\nit printed:\n{output}" if output else ""))
    return "check_step: " + "\n\n".join(parts)


def _lead(failures):
    """Returns what the notes of all ranks show if they wait for each other in vain; else ""."""
    if not all(_is_echo(f) or blame.waits_in_vain(f) for f in failures if _is_failure(f)):
        return ""
    return blame.explanation({_rank_of(failure["process"]): failure for failure in failures
                              if failure["process"] != "single"})


def _is_failure(failure):
    """Returns whether this is a failure, and not only a note beside one."""
    return failure["kind"] not in ("unfinished", "finished")


def _place_text(failure):
    return "\n".join(filter(None, [failure["text"], failure.get("stack")]))


def _kind_text(kind, failure, are_several):
    if blame.is_aborted_by_gloo(failure):
        return (f"{'were' if are_several else 'was'} ended by Gloo, which was sent more than the"
                " call takes")
    if kind == "unfinished":
        return f"{'were' if are_several else 'was'} at"
    if kind != "hang":
        return {"exception": "raised", "crash": "died"}[kind]
    inside = f" in {failure['collective']}" if failure["collective"] else ""
    finished = failure["finished"]
    beside = (f", when {_who(finished)} {'has' if len(finished) == 1 else 'have'} finished,"
              if finished else ",")
    return f"not done after {failure['seconds']:.0f} s{beside} but{inside} at"


def _is_echo(failure):
    return any(echo in failure["text"] for echo in ECHOES)


def _who(names):
    ranks = sorted(_rank_of(name) for name in names if name != "single")
    runs = ["the single run"] if "single" in names else []
    if ranks:
        runs.append(ranks_text(ranks))
    return " and ".join(runs)


def _rank_of(name):
    return int(name[len("rank-"):])


def _save_single(gradients, folder):
    if any(hasattr(value, "device_mesh") for value in gradients.values()):
        raise TypeError("single has a DTensor; give the whole tensor (full_tensor())")
    saving.save(gradients, folder, place=(0, 1))


def _has_gradients(folder):
    with open(os.path.join(folder, "rank_0.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return len(header) > 1  # besides the metadata
