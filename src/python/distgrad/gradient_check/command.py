"""Runs `python -m distgrad.gradcheck FILE:FUNCTION`: reads its arguments, starts or joins ranks,
and returns its exit code."""

import argparse
import contextlib
import json
import math
import os
import socket
import sys
import tempfile
import time

from . import named
from ..command_output import OutputError, say, write_json
from ..rank_room import why_no_room
from ..visible_text import on_few_lines, visible_text
from ..words import ranks_text

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_RIGHT, _WRONG, _USER, _BROKEN, _TIME_OVER = 0, 1, 2, 3, 142
_CODES = {"right": _RIGHT, "wrong": _WRONG, "disputed": _RIGHT, "undecided": _BROKEN,
          "error": _BROKEN}
_NOT_USERS = ("<frozen ", "<string>", "/runpy.py",
              f'"{os.path.dirname(os.path.dirname(__file__))}/')
_LEAVE_S = 5  # The other ranks have this time to leave once rank 0 is done.
_RETRY_S = 0.1
_WHOLE_S = 3600  # Everything must be done in this time; a rank that hangs is reported long before.
_MANY, _PROGRESS_S = 16, 15.0  # So many ranks, or more, print how far they are.
_GROUPS = 2  # All ranks are connected by the group under test and the one in team.py.


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(_USER, f"gradcheck: {message.removeprefix('argument ')}\n")


class UsersError(Exception):
    """Says in one line what is wrong with the user's arguments or files."""


class _NotMet(Exception):
    """Says why the launcher's ranks did not meet; empty if another rank says it."""


class _TimeOver(Exception):
    """Says that --total-timeout is over, and where the ranks were."""


def main(arguments=None):
    """Returns the exit code: 0 right, 1 wrong, 2 the user's error, 3 not run or not judged."""
    options = _parser().parse_args(arguments)
    try:
        _check_options(options)
        result = _joined(options) if _joins(options) else _started(options)
        if result is None:  # not rank 0
            return _RIGHT
        if options.json != "-":
            say(visible_text(result["text"]))
        if options.json:
            write_json(options.json, result["report"])
    except (UsersError, OutputError) as error:
        if not _joins(options) or os.environ["RANK"] == "0":  # All ranks have the same error.
            print("gradcheck:", on_few_lines(str(error)), file=sys.stderr)
        return _USER
    except _NotMet as error:
        if str(error):
            print("gradcheck:", on_few_lines(str(error)), file=sys.stderr)
        return _BROKEN
    except _TimeOver as over:
        if str(over):
            print(visible_text(str(over)), file=sys.stderr)
        print("gradcheck: the time of --total-timeout is over", file=sys.stderr)
        return _TIME_OVER
    verdict = result["report"]["verdict"]
    return _WRONG if verdict == "disputed" and options.strict else _CODES[verdict]


def _joins(options):
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and options.ranks is None


def _count(options):
    return 4 if options.ranks is None else options.ranks


def _parser():
    parser = _Parser(prog="python -m distgrad.gradcheck", allow_abbrev=False,
                     description= "Measures the backward of a function on several ranks, and"
                     " compares it with what its forward does.",
                     epilog= "Under torchrun it joins the ranks that there are. Exit code: 0 right"
                     " or disputed, 1 wrong, 2 bad arguments, 3 a rank raised, died or hung, or"
                     " nothing could be judged.")
    parser.add_argument("function", metavar="FILE:FUNCTION",
                        help="losses.py:GatherLayer.apply, or package.module:function; a Module"
                        " class is instantiated without arguments, or as written:"
                        " losses.py:Loss(dim=3)")
    parser.add_argument("--ranks", type=int, help="how many are started (default: 4)")
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]EXPR", dest="given",
                        type=lambda text: ("input", text),
                        help="an argument of the function, in order, or by its name: randn(4,3),"
                        " arange(6.).reshape(2,3)+rank, 3, None; floating tensors require grad")
    parser.add_argument("--constant", action="append", metavar="[NAME=]EXPR", dest="given",
                        type=lambda text: ("constant", text),
                        help="an argument that does not require grad")
    parser.add_argument("--inputs", metavar="NAME",
                        help="a function of the file that returns the inputs; it may have the"
                        " parameters rank and world_size")
    parser.add_argument("--detached", action="append", default=[], metavar="LINE",
                        help="what is detached at this line, losses.py:12, is a constant on"
                        " purpose; all: wherever it is")
    parser.add_argument("--objective", choices=("sum", "mean", "replicated"),
                        help="what the ranks' losses are together: each its own (sum, the default),"
                        " the same with their mean meant, or one and the same loss")
    parser.add_argument("--copies", metavar="NAMES",
                        help="inputs that are copies of one tensor on all ranks: x,wpe; with"
                        " --objective alone those that are equal on all ranks")
    parser.add_argument("--strict", action="store_true",
                        help="exit code 1 also where the verdict is disputed")
    parser.add_argument("--dtype", choices=_DTYPES, default="float64",
                        help="of tensors that expressions make")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--rtol", type=float,
                        help="what rounding may do, relative to the largest element of a gradient")
    parser.add_argument("--directions", type=int, default=16,
                        help="random directions of large tensors (default: 16)")
    parser.add_argument("--timeout", type=float, default=60, metavar="S",
                        help="how long a rank may wait for another")
    parser.add_argument("--max-timeout", type=float, metavar="S",
                        help="--timeout is not more than this")
    parser.add_argument("--total-timeout", type=float, metavar="S",
                        help="how long the whole may take; then the exit code is 142")
    parser.add_argument("--json", metavar="FILE",
                        help="writes the report as JSON; - is standard output")
    return parser


def _check_options(options):
    """Raises UsersError for what can be seen without torch, which takes seconds to import."""
    if ":" not in options.function:
        raise UsersError(
            f"{options.function!r} is not FILE:FUNCTION, such as losses.py:GatherLayer.apply")
    try:
        named.look_for(options.function)
    except named.NotThere as error:
        raise UsersError(str(error)) from None
    if not options.given and not options.inputs:
        raise UsersError(
            "no inputs: give --input EXPR for each argument of the function, or --inputs NAME")
    if options.given and options.inputs:
        raise UsersError(
            "--inputs makes all inputs: --input and --constant cannot be given besides")
    if options.ranks is not None and options.ranks < 1:
        raise UsersError(f"--ranks is a number of ranks, not {options.ranks}")
    if not _joins(options) and (why := why_no_room(_count(options), _GROUPS)):
        raise UsersError(f"{why}; give fewer --ranks")
    if options.directions < 1:
        raise UsersError(f"--directions is to be 1 at least, not {options.directions}")
    if options.rtol is not None and not 0 <= options.rtol < 1:
        raise UsersError(f"--rtol is to be from 0 to 1, not {options.rtol:g}")
    for name in ("timeout", "max_timeout", "total_timeout"):
        seconds = getattr(options, name)
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsersError(
                f"--{name.replace('_', '-')} is a number of seconds above 0, not {seconds:g}")
    if options.max_timeout:
        options.timeout = min(options.timeout, options.max_timeout)


def _joined(options):
    """Runs under torchrun or a launcher like it. Returns None on ranks other than 0."""
    import torch
    import torch.distributed as dist

    if options.backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(options.backend, store=_met(rank, size), rank=rank, world_size=size)
    errors = [None] * size
    dist.all_gather_object(errors, _users_error(options, rank, size))
    known = [f"rank {r}: {text}" if text != errors[0] else text
             for r, text in enumerate(errors) if text]
    if known:
        raise UsersError(known[0])
    result = _checked(options)
    dist.destroy_process_group()
    return None if rank else result


def _met(rank, size):
    """Returns the store, once all of the launcher's ranks have come to it. Raises _NotMet. torch's
    own waits print much when they end in vain, so this asks again and again."""
    import torch.distributed as dist

    seconds, place = _launch_timeout_s(), os.environ["MASTER_ADDR"]
    port, end = int(os.environ["MASTER_PORT"]), time.monotonic() + seconds
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    keys, absent = [f"came-{other}" for other in range(size)], [0]
    if serves or _is_listening(place, port, end):
        store = dist.TCPStore(place, port, None, serves, wait_for_workers=False, multi_tenant=True)
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        store.set(keys[rank], "")
        while not store.check(keys) and time.monotonic() < end and not store.check(["over"]):
            time.sleep(_RETRY_S)
        absent = [other for other, key in enumerate(keys) if not store.check([key])]
        if not absent:
            return store
        store.set("over", "")
        time.sleep(2 * _RETRY_S)  # The others see it before the store ends.
    if rank and 0 not in absent:
        raise _NotMet
    raise _NotMet(f"{ranks_text(absent)} of the launcher's {size} did not come to {place}:{port}"
                  f" within {seconds} s")


def _is_listening(place, port, end):
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((place, port), 1):
            return True
        time.sleep(_RETRY_S)
    return False


def _launch_timeout_s():
    text = os.environ.get("DISTGRAD_LAUNCH_TIMEOUT") or "240"
    if not text.isdecimal() or int(text) < 1:
        raise UsersError(f"DISTGRAD_LAUNCH_TIMEOUT={text} is no number of seconds from 1 on")
    return min(int(text), 240)


def _users_error(options, rank, world_size):
    """Returns what is wrong with the arguments on this rank, or None."""
    try:
        prepared_inputs(options, rank, world_size)
    except UsersError as error:
        return str(error)
    return None


def _started(options):
    """Starts the ranks, prints their output, and returns rank 0's result, or what became of the
    ranks if there is none."""
    from ..ranks import garbage

    with garbage.left_alone(for_good=True):  # This is done once for all forked processes.
        import torch

        from ..child_processes import ChildProcesses

    count = _count(options)
    if options.backend == "nccl" and torch.cuda.device_count() < count:
        raise UsersError(f"--backend nccl: {count} ranks need a GPU each, and there are"
                         f" {torch.cuda.device_count()}")
    whole_s = min(_WHOLE_S, options.total_timeout or _WHOLE_S)
    end = time.monotonic() + whole_s
    with _folder() as folder:
        names = [f"rank-{rank}" for rank in range(count)]
        processes = ChildProcesses(folder, names, whole_s,
                                   lambda name: _be_rank(name, options, count, folder), names[:1],
                                   _LEAVE_S, on_turn=_progress(folder, names))
        failures = processes.run()
        printed = {}
        for name in names:
            printed.setdefault(processes.output_of(name), []).append(name)
        for text, those in printed.items():
            if text:
                print(visible_text(f"{', '.join(those)} printed:\n{text}"), file=sys.stderr)
        try:
            with open(os.path.join(folder, "result")) as file:
                result = json.load(file)
        except FileNotFoundError:
            if options.total_timeout and time.monotonic() >= end:
                raise _TimeOver(_where_they_were(failures)) from None
            result = _without_report(failures)
    if "users_error" in result:
        raise UsersError(result["users_error"])
    return result


def _progress(folder, names):
    """Returns a function that prints now and then how far the ranks are, if they are many."""
    begin = told = time.monotonic()

    def say():
        nonlocal told
        now = time.monotonic()
        if len(names) >= _MANY and now - told >= _PROGRESS_S:
            told = now
            joined = sum(os.path.exists(os.path.join(folder, f"{name}.joined")) for name in names)
            print(f"gradcheck: {now - begin:.0f} s: {joined} of {len(names)} ranks have joined",
                  file=sys.stderr, flush=True)

    return say


def _folder():
    """Returns a folder: that of the process that started this one, if it gave one, since it removes
    the folder even if this process is killed."""
    given = os.environ.pop("DISTGRAD_FOLDER", None)
    return (contextlib.nullcontext(given) if given
            else tempfile.TemporaryDirectory(prefix="distgrad-"))


def _without_report(failures):
    """Returns the result for ranks that did not come to the check, because --inputs or a module's
    constructor raised, or a rank died."""
    ranks = {}
    for f in sorted(failures, key=lambda f: _rank_of(f["process"])):
        wrote = f["output"].splitlines()[-1:] if f["kind"] == "crash" else []
        ranks.setdefault("; it wrote: ".join([f["text"], *wrote]), []).append(f["process"])
    text = "\n".join(f"{', '.join(names)}: {text}" for text, names in ranks.items())
    return {"text": text, "report": {"verdict": "error", "text": text}}


def _where_they_were(failures):
    """Returns the lines of the user's code in which ranks hang."""
    lines_of = {}
    for failure in failures:
        own = [line.strip() for line in failure["text"].splitlines()
               if line.startswith("  File") and not any(part in line for part in _NOT_USERS)]
        if failure["kind"] == "hang" and own:
            lines_of.setdefault("\n".join(f"  {line}" for line in own), []).append(
                failure["process"])
    return "\n".join(f"{', '.join(names)} was at\n{text}" for text, names in lines_of.items())


def _rank_of(name):
    return int(name.rpartition("-")[2])


def _be_rank(name, options, count, folder):
    from ..child_processes import join_group
    from ..ranks.process import wait_for_a_free_core

    rank = _rank_of(name)
    wait_for_a_free_core()
    try:
        _prepare_early(options, rank, count)
        join_group(rank, count, options.backend, folder, options.timeout)
        open(os.path.join(folder, f"{name}.joined"), "w").close()
        result = _checked(options)
    except UsersError as error:
        result = {"users_error": str(error)}
    if rank == 0 or "users_error" in result:  # Any rank's error will do as the result.
        path = os.path.join(folder, "result")
        with open(f"{path}~{rank}", "w") as file:
            json.dump(result, file)
        os.rename(f"{path}~{rank}", path)


def _prepare_early(options, rank, world_size):
    """Raises UsersError for wrong arguments before any rank waits for others, unless something is
    to be made that needs the process group."""
    try:
        prepared_inputs(options, rank, world_size)
    except (UsersError, RuntimeError, ValueError) as error:
        if "process group has not been initialized" not in str(error):
            raise


def _checked(options):
    """Returns the report as text and data, on each rank."""
    import torch
    import torch.distributed as dist

    from .api import gradcheck

    torch.set_num_threads(1)
    function, inputs, kwargs = prepared_inputs(options, dist.get_rank(), dist.get_world_size())
    report = gradcheck(function, inputs, kwargs=kwargs, rtol=options.rtol,
                       directions=options.directions, timeout_s=options.timeout,
                       objective=options.objective,
                       copies=options.copies and [name.strip() for name in
                                                  options.copies.split(",")],
                       detached="all" in options.detached or tuple(options.detached),
                       raise_exception=False)
    if [error["doing"] for error in report.errors] == ["arguments"]:
        raise UsersError(report.errors[0]["text"])
    return {"text": str(report), "report": report.to_dict()}


def prepared_inputs(options, rank, world_size):
    """Returns (function, its arguments, its keyword arguments). Raises UsersError."""
    import torch

    from ..ranks import adapters_loading
    from ..ranks.call import SubjectError

    place, name, call = named.parts_of(options.function)
    try:
        module = adapters_loading.load_module(place)
        function = adapters_loading.find_name(module, name, place)
        maker = options.inputs and adapters_loading.find_name(module, options.inputs, place)
    except SubjectError as error:
        raise UsersError(str(error)) from None
    if call:
        function = _called(name + call, module, options, rank, world_size)
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function = function.apply
    elif isinstance(function, type) and issubclass(function, torch.nn.Module):
        _check_constructor(function, options)
        torch.manual_seed(rank)
        function = function().to(getattr(torch, options.dtype))
    if not callable(function):
        raise UsersError(f"{options.function} is a {type(function).__name__} and cannot be called")
    device = (torch.device("cuda", torch.cuda.current_device()) if options.backend == "nccl"
              else torch.device("cpu"))
    if isinstance(function, torch.nn.Module):
        function = function.to(device)
    if maker:
        return function, _made(maker, rank, world_size), {}
    inputs, kwargs = _evaluated(options, rank, world_size, device)
    _check_names(function, kwargs, options)
    return function, inputs, kwargs


def _called(text, module, options, rank, world_size):
    """Returns what a written-out call gives, such as Loss(temperature=0.1)."""
    import torch

    torch.manual_seed(rank)
    try:
        made = eval(text, {**vars(module), "rank": rank, "world_size": world_size})
    except Exception as error:  # The user's code may raise anything.
        raise UsersError(f"{options.function}: {type(error).__name__}: {error}") from None
    return made.to(getattr(torch, options.dtype)) if isinstance(made, torch.nn.Module) else made


def _check_constructor(module_class, options):
    """Raises UsersError if a module's class needs arguments, and says how to give them."""
    import inspect

    try:
        parameters = list(inspect.signature(module_class).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [p.name for p in parameters if p.default is p.empty
              and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed:
        of = ", ".join(f"{name}=..." for name in needed)
        raise UsersError(f"{options.function} is made of {', '.join(needed)}: write the call out,"
                         f" '{options.function}({of})'")


def _check_names(function, kwargs, options):
    """Raises UsersError if the function has no parameter of such a name, if that is known."""
    from .subject import parameters_of

    parameters = parameters_of(function)
    if parameters is None:
        return
    names = [p.name for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    for name in kwargs:
        if name not in names and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UsersError(f"{options.function} has no parameter {name!r}; it has"
                             f" {', '.join(names) or 'none'}")


def _made(maker, rank, world_size):
    import inspect

    offered = {"rank": rank, "world_size": world_size}
    return maker(**{k: v for k, v in offered.items() if k in inspect.signature(maker).parameters})


def _evaluated(options, rank, world_size, device):
    import torch

    from .input_expressions import InvalidExpression, split_name, value_of
    from .nested import exchanged

    positional, named = [], {}
    for number, (kind, text) in enumerate(options.given):
        name, expression = split_name(text)
        try:
            value = value_of(expression, number, rank, world_size, getattr(torch, options.dtype))
        except InvalidExpression as error:
            raise UsersError(f"--{kind} {text}: {error}") from None

        def placed(_, leaf):
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if kind == "input" and leaf.is_complex():
                raise UsersError(f"--{kind} {text} is complex: check a function of real tensors,"
                                 " with torch.view_as_real()")
            leaf = leaf.detach().clone().to(device)
            return leaf.requires_grad_(kind == "input" and leaf.is_floating_point())

        value = exchanged(value, placed)
        if name is not None:
            named[name] = value
        elif named:
            raise UsersError(f"--{kind} {text}: arguments without a name come first")
        else:
            positional.append(value)
    return tuple(positional), named
