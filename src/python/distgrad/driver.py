"""Runs the `distgrad` executable and reads what it says."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .nesting import IN_RANK

_AS_EXPECTED, _USER_ERROR, _INTERRUPTED = 0, 2, (130, 143, -2, -15)


class Report(dict):
    """Holds the JSON report (docs/command-line.md) as a dict. `text`, or str(report), is what the
    command printed, without the end of its last line."""

    def __init__(self, fields, text):
        super().__init__(fields)
        self.text = text.rstrip()

    def __str__(self):
        return self.text


def executable():
    """Returns the path of `distgrad`. Looks in $DISTGRAD, in or beside this package if it is
    installed or built, in the build folders of its sources (the newest), and in PATH. Raises
    RuntimeError."""
    given = os.environ.get("DISTGRAD")
    if given:
        found = shutil.which(given)
        if found is None:
            raise RuntimeError(f"DISTGRAD is {given}, which is no executable file")
        return found
    # abspath keeps a link's own place: the build folder links to the sources.
    package = Path(os.path.abspath(__file__)).parent
    beside = [package / "bin" / "distgrad",  # installed by pip
              package.parents[3] / "bin" / "distgrad"]  # PREFIX/share/distgrad/python/distgrad
    built = sorted(Path(__file__).resolve().parents[3].glob("build/*/bin/distgrad"),
                   key=lambda f: -f.stat().st_mtime)
    for candidate in [*beside, *built, shutil.which("distgrad")]:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    raise RuntimeError("the distgrad executable was not found: build it (tools/run), put it into"
                       " PATH, or name it in the environment variable DISTGRAD")


def report_of(command, options, positional, shorten, others=None):
    """Runs `distgrad COMMAND` and returns the Report. `shorten` is applied to the texts; `others`
    is as in call(). Raises AssertionError with the report's text if something is not as expected,
    went wrong, or nothing was judged, and ValueError with what the command says of bad
    arguments."""
    code, fields, output, errors = _reported(command, options, positional, shorten, others=others)
    if code != _AS_EXPECTED or fields is None:
        raise AssertionError("\n".join(filter(None, [output.rstrip(), errors.strip()]))
                             or f"distgrad: exit code {code}")
    return Report(fields, output)


def compare(reference, observed, options, folder):
    """Runs `distgrad compare` in that folder. Returns (whether all is right, the JSON report, the
    text). Raises ValueError for bad arguments, RuntimeError if there is no report."""
    try:
        code, fields, output, errors = _reported("compare", options, [reference, observed], str,
                                                 folder)
    except ValueError as error:  # Its advice is an option of the command line.
        raise ValueError(str(error).partition(": --prefix ")[0]) from None
    if fields is None:
        raise RuntimeError(f"distgrad compare: exit code {code}\n{errors or output}")
    return code == _AS_EXPECTED, fields, output


def write_step(fields, text, files):
    """Writes a report of check_gradients, as data and as text, in the formats that `files` names.
    Raises ValueError for bad arguments, RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="distgrad-") as folder:
        path = os.path.join(folder, "report.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**fields, "text": text}, file)
        code, output, errors = call("step", {"report": path, **files}, [])
        if code != _AS_EXPECTED:
            raise RuntimeError(f"distgrad step: exit code {code}\n{errors or output}")


def _reported(command, options, positional, shorten, cwd=None, others=None):
    with tempfile.TemporaryDirectory(prefix="distgrad-") as folder:
        file = os.path.join(folder, "report.json")
        code, output, errors = call(command, {"json": file, **options}, positional, shorten,
                                    cwd, others)
        return code, _read(file), output, errors


def call(command, options, positional, shorten=str, cwd=None, others=None):
    """Runs `distgrad COMMAND`. `options` are the command line's, with underscores: True is a flag,
    None and False are left out, a list is several values. `others()` makes a launcher's other
    processes start the command too, and its ranks are then there; without it the command starts
    ranks itself. Returns (exit code, output, errors). Raises ValueError with what the command says
    of bad arguments."""
    code, output, errors = _run([os.path.abspath(executable()), command, *_option_words(options),
                                 "--", *positional], cwd, others)
    output, errors = shorten(output), shorten(errors)
    if code in _INTERRUPTED:
        raise KeyboardInterrupt
    if code == _USER_ERROR:
        raise ValueError((errors or output).strip())
    return code, output, errors


def rank_of_launcher():
    """Returns the command that is a rank of the same command elsewhere."""
    return [os.path.abspath(executable()), "run"]


def start(line, launched, cwd=None, **streams):
    """Starts the command line. If `launched`, it sees the launcher's variables and is one of its
    processes; else it starts its ranks itself."""
    environment = dict(os.environ, **{IN_RANK: "1"},
                       **({} if launched else {"DISTGRAD_LAUNCHER": "none"}))
    # The ranks use this interpreter and see the modules that this process sees.
    environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return subprocess.Popen(line, stdin=subprocess.DEVNULL, env=environment, cwd=cwd, **streams)


def _run(line, cwd, others):
    if others:
        others()
    process = start(line, others is not None, cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate()
    finally:
        if process.poll() is None:
            process.terminate()  # it ends its ranks
            process.wait()
    return process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")


def _option_words(options):
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            for one in value:
                words += [option, str(one)]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def _read(file):
    try:
        with open(file) as opened:
            return json.load(opened)
    except FileNotFoundError:
        return None
