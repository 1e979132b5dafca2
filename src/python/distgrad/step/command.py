"""Runs `distgrad step FILE:FUNCTION`, which is check_step of a function that the user names.
src/cli/step_command.cpp reads the options."""

import json
import sys

from .. import launched
from ..command_output import OutputError, say, write_json
from ..gradient_check import named
from ..stepping import RankError, check_step
from ..visible_text import on_few_lines, visible_text

_RIGHT, _WRONG, _USER, _BROKEN = 0, 1, 2, 3
_NOT_LOADED = "distgrad.ranks.call.SubjectError: "
_CODES = {"right": _RIGHT, "disputed": _RIGHT, "wrong": _WRONG, "undecided": _BROKEN}


class Named:
    """Stands for FILE:FUNCTION, which each process that runs the step imports for itself."""

    def __init__(self, text):
        named.look_for(text)
        self.text = text

    def __call__(self):
        raise TypeError("it is called in the ranks")

    def __reduce__(self):
        return _loaded, (self.text,)


def _loaded(text):
    from ..ranks import adapters_loading

    place, name, _ = named.parts_of(text)
    return adapters_loading.find_name(adapters_loading.load_module(place), name, place)


def main(request):
    """Runs with the options in `request`, as JSON. Returns the exit code: 0 right, 1 wrong, 2 the
    user's error, 3 not run or not decided."""
    options = json.loads(request)
    sys.orig_argv = options["command"]  # Reports show the command that the user ran.
    try:
        report = _report(options)
        if launched.team() and launched.team().rank:
            return _code(report, options["strict"])
        if options["json"] != "-":
            say(visible_text(str(report).replace("check_step: ", "step: ", 1).replace(
                "check_gradients: ", "step: ", 1)))
        if options["json"]:
            write_json(options["json"], report if isinstance(report, dict) else report.to_dict())
        return _code(report, options["strict"])
    except (named.NotThere, OutputError, ValueError, TypeError) as error:
        print("step:", on_few_lines(str(error).removeprefix("check_step: ")), file=sys.stderr)
        return _USER
    except (RankError, launched.LaunchError, AssertionError) as error:  # These have no report.
        for failure in getattr(error, "failures", ()):
            if failure["text"].startswith(_NOT_LOADED):
                print("step:", on_few_lines(failure["text"].removeprefix(_NOT_LOADED)),
                      file=sys.stderr)
                return _USER
        print(visible_text(str(error).replace("check_step: ", "step: ", 1)), file=sys.stderr)
        return _BROKEN


def _report(options):
    """Returns a StepReport or a GradientsReport."""
    function, single = options["function"], options["single"]
    place = named.parts_of(function)[0]
    try:
        return check_step(
            Named(function), Named(f"{place}:{single}") if single else None, options["ranks"],
            objective=options["objective"], strict=options["strict"], backend=options["backend"],
            timeout_s=options["timeout"], copies=options["copies"], pieces=options["pieces"],
            detached="all" in options["detached"] or options["detached"],
            float64=options["float64"],
            **{name: options[name] or None for name in ("html", "junit", "markdown", "sarif")})
    except AssertionError as error:
        if not hasattr(error, "report"):
            raise
        return error.report


def _code(report, strict):
    if isinstance(report, dict):
        return _WRONG if report.wrong or strict and report.vacuous else _RIGHT
    return _WRONG if strict and report.verdict == "disputed" else _CODES[report.verdict]
