#!/usr/bin/env python3
"""What README.md and the pages in docs show is what happens: commands run, outputs are compared,
programs are files.

    check_pages.py [--write] DISTGRAD SOURCES [PAGE...]

Run by a python that has torch. Each page has a folder of its own, a copy of docs/examples beside a
link to the scenarios.

    ```console   "$ command" and what it prints. "..." stands for whatever it prints there; times
                 and addresses are not compared
    ```sh        commands that succeed; nothing is compared
    ```python    lines of a .py file below docs, or that the page wrote
    ```json      a scenario (one that has "objective") is simulated, and is the file that the line
                 above it names

`--write` puts what was printed in the place of an output that differs: look at the difference
before it is committed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ARGUMENTS = [word for word in sys.argv[1:] if word != "--write"]
DISTGRAD, SOURCES = Path(ARGUMENTS[0]).absolute(), Path(ARGUMENTS[1]).absolute()
EXAMPLES = SOURCES / "docs/examples"

# Pages and commands that something else tries, or that need what a test has not.
ELSEWHERE = {"docs/ci.md": "tests/ci_examples", "docs/clusters.md": "tests/launchers"}
NOT_RUN = {
    r"(sudo )?(apt-get|pip|git|cmake|ninja|source) ": "sets up or builds",
    r"tools/": "sets up or builds; the scenarios that it runs are tests themselves",
    r"distgrad .*(nccl|cuda)": "needs a GPU",
    r"distgrad .*library:build/": "needs a library that is built for it: tests/operators",
    r"distgrad run .*--timeout 3600": "stops at a breakpoint: src/python/tests/test_debugging.py",
    r"distgrad (fuzz .*--seconds|golden|run --golden)":
        "takes long, or writes beside the scenarios: tests/golden",
    r"distgrad doctor": "tells of the machine",
    r"build/": "needs a build folder",
}


def environment():
    foreign = ("GITHUB_", "CI_", "DISTGRAD", "COLUMNS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    path = [str(DISTGRAD.parent), os.path.dirname(sys.executable), os.path.join(sys.prefix, "bin"),
            os.environ["PATH"]]
    return {**kept, "PATH": ":".join(path), "PYTHONPATH": str(SOURCES / "src/python"),
            "NO_COLOR": "1", "DISTGRAD": str(DISTGRAD), "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1"}


# ---- what a page holds

class Block:
    def __init__(self, line, language, lines):
        self.line, self.language, self.lines = line, language, lines

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)


def blocks_of(text):
    blocks, begun = [], None
    for number, line in enumerate(text.split("\n")):
        fence = re.match(r"```(\w*)$", line)
        if fence and begun is None:
            begun = Block(number + 1, fence[1], [])
        elif line == "```" and begun is not None:
            blocks.append(begun)
            begun = None
        elif begun is not None:
            begun.lines.append(line)
    return blocks


def shown_commands(block):
    """Of a console: (line in the page, command, output)."""
    shown = []
    for offset, line in enumerate(block.lines):
        if line.startswith("$ "):
            shown.append((block.line + offset, line[2:], []))
        elif shown:
            shown[-1][2].append(line)
    return shown


# ---- what is printed

TIME = r"\d+(?:\.\d+)?(?:e-\d+)? (?:m?s|min)(?: \d+ s)?"
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
NOISE = re.compile(r"^(\[W|W\d{4} ).*\n", re.MULTILINE)


def plain(text):
    """Without what differs by run: addresses, times, rates, and where a line breaks because of a
    time's length."""
    text = re.sub(r"\(\d+/s\)", "(RATE)", ADDRESS.sub("ADDRESS", text))
    text = re.sub(r"(\s+in|took)\s+" + TIME.replace(" ", r"\s+"),
                  lambda found: " " + found[1].strip() + " TIME", text)
    return re.sub(r"TIME\.\s+Again", "TIME. Again", text)


def fits(output, printed):
    shown = plain("\n".join(output).strip("\n"))
    pattern = r"[^\0]*?".join(re.escape(part) for part in shown.split("..."))
    return re.fullmatch(pattern, plain(printed)) is not None


class Commands:
    """Runs each command once, unless what it does depends on the ones before it."""

    def __init__(self):
        self._done, self._lock = {}, threading.Lock()
        self.times = []

    def run(self, command, folder):
        if not re.match(r"distgrad (audit|run|explain|list|help|version|schema)"
                        r" ?(?!.*(--out|--html|--json|failing|repro))", command):
            return self._run(command, folder)
        with self._lock:
            is_new = command not in self._done
            future = self._done.setdefault(command, Future())
        if is_new:
            try:
                future.set_result(self._run(command, folder))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def _run(self, command, folder):
        started = time.monotonic()
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment(), text=True,
                              timeout=240, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.times.append((time.monotonic() - started, command))
        text = NOISE.sub("", done.stdout).replace(f"{folder}/", "").replace(str(SOURCES) + "/", "")
        return done.returncode, text.strip("\n")


# ---- a page

def anchors_of(file):
    """Of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def problem_with_link(file, target):
    path, _, anchor = target.partition("#")
    aim = (file.parent / path).resolve() if path else file
    if not aim.exists():
        return f"{target}: there is no such file"
    if anchor and aim.suffix == ".md" and anchor not in anchors_of(aim):
        return f"{target}: there is no such heading"
    return None


def why_not_run(command):
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command)), None)


def problem_with_python(block, folder):
    """None where all of it stands in a file; "..." is for what is left out."""
    def plain(text):
        return "\n".join(line.strip() for line in text.split("\n"))
    parts = [plain(part).strip("\n") for part in block.text.split("...\n")]
    for file in [*sorted((SOURCES / "docs").rglob("*.py")), *Path(folder).glob("*.py")]:
        text, at = plain(file.read_text()), 0
        for part in parts:
            at = text.find(part, at)
            if at < 0:
                break
        else:
            return None
    return "no file below docs, and none that the commands before it wrote, has these lines"


class Page:
    def __init__(self, name, commands, write):
        self.name, self._commands, self._write = name, commands, write
        self._file = SOURCES / name
        self.problems, self.scenarios, self.ran = [], [], 0

    def check(self):
        text = self._file.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="page-") as folder:
            folder = os.path.join(os.path.realpath(folder), "examples")
            shutil.copytree(EXAMPLES, folder)
            os.symlink(SOURCES / "scenarios", os.path.join(folder, "scenarios"))
            replaced = [self._check_block(block, folder) for block in blocks_of(text)]
        self._check_rest(text)
        if self._write:
            for old, new in filter(None, replaced):
                text = text.replace(old, new, 1)
            self._file.write_text(text, encoding="utf-8")
        return self

    def _complain(self, line, what):
        self.problems.append(f"{self.name}:{line}: {what}")

    def _check_rest(self, text):
        for target in re.findall(r"\]\(([^)\s]+)\)",
                                 re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
            if not target.startswith("http") and (problem := problem_with_link(self._file, target)):
                self._complain(0, problem)
        for number, line in enumerate(text.split("\n"), 1):
            if re.match(r" {4}(\$ )?distgrad ", line):
                self._complain(number,
                               "a command that is not in a ```console or ```sh block is not tried")
        for name, shown in re.findall(
                r"`((?:scenarios|examples)/[\w/.-]+\.json)`[^\n]*\n+```json\n(.*?)```", text,
                re.DOTALL):
            file = SOURCES / name if name.startswith("scenarios") else SOURCES / "docs" / name
            if json.loads(file.read_text()) != json.loads(shown):
                self._complain(0, f"{name} is another one than the page shows")

    def _check_block(self, block, folder):
        if block.language == "console":
            return self._check_console(block, folder)
        if block.language == "sh":
            for command in filter(None, (line.partition("  #")[0].strip() for line in block.lines)):
                if not why_not_run(command):
                    code, printed = self._commands.run(command, folder)
                    self.ran += 1
                    if code != 0:
                        self._complain(block.line, f"{command}: exit code {code}\n{printed}")
        elif block.language == "python":
            if problem := problem_with_python(block, folder):
                self._complain(block.line, problem)
        elif block.language == "json":
            self._keep_scenario(block)
        elif any(line.startswith("$ ") for line in block.lines):
            self._complain(block.line, "a command that is not in a ```console block is not tried")
        return None

    def _check_console(self, block, folder):
        replaced = []
        for line, command, output in shown_commands(block):
            printed = None
            if not why_not_run(command):
                self.ran += 1
                code, printed = self._commands.run(command, folder)
                if fits(output, printed):
                    printed = None
                else:
                    self._complain(line, f"{command}\nprints (exit code {code})\n{printed}\n")
            replaced += [f"$ {command}", *(output if printed is None else printed.split("\n"))]
        return f"```console\n{block.text}```", "```console\n" + "".join(
            line + "\n" for line in replaced) + "```"

    def _keep_scenario(self, block):
        try:
            scenario = json.loads(block.text)
        except ValueError:
            return  # a part of one
        if isinstance(scenario, dict) and "objective" in scenario and '"call"' not in block.text:
            self.scenarios.append((f"{self.name}:{block.line}", scenario))


def check_scenarios(pages):
    """All in one run."""
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for name, scenario in (pair for page in pages for pair in page.scenarios):
            file = os.path.join(folder, f"{len(names)}.json")
            names[os.path.basename(file)] = name
            Path(file).write_text(json.dumps(scenario))
        if not names:
            return []
        done = subprocess.run([DISTGRAD, "run", "--simulate", "--quiet", folder],
                              capture_output=True, text=True, env=environment())
        if done.returncode != 0:
            return [f"{names}\n{done.stdout}{done.stderr}"]
    print(f"{len(names)} scenarios are valid")
    return []


def main():
    names = ARGUMENTS[2:] or ["README.md",
                              *sorted(f"docs/{f.name}" for f in (SOURCES / "docs").glob("*.md"))]
    commands = Commands()
    pages = [Page(name, commands, "--write" in sys.argv) for name in names if name not in ELSEWHERE]
    with ThreadPoolExecutor(2) as pool:
        problems = [problem for page in pool.map(Page.check, pages) for problem in page.problems]
    problems += check_scenarios(pages)
    for problem in problems:
        print(problem)
    for seconds, command in sorted(commands.times, reverse=True)[:5]:
        print(f"{seconds:.1f} s  {command}")
    print(f"{sum(page.ran for page in pages)} commands on {len(pages)} pages, {len(problems)}"
          " problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
