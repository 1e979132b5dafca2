"""docs/atlas/packages.txt and docs/atlas/subjects as data."""

import hashlib
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """A function of a package, as one collective. `place`: what is called, the function itself, a
    call of it that is written out, or an adapter."""

    kind: str
    function: str  # module:name
    place: str
    adapter_lines: int  # 0: there is none
    options: tuple
    version: str
    source: str  # of the adapter
    call: str = ""  # of what is written out, in the function's module

    def key(self, torch):
        told = repr((self.kind, self.place, self.options, self.version, self.source, torch))
        return f"{self.function.replace(':', '.')}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Package:
    name: str
    requirements: list
    rows: list = field(default_factory=list)

    @property
    def project(self):
        """Its name without the version that tells an older release's rows from the newer one's."""
        return re.sub(r"-\d[\d.]*$", "", self.name)

    @property
    def version(self):
        return self.requirements[0].partition("==")[2] if self.requirements else ""

    @property
    def is_torch(self):
        """Another release of torch, which shares nothing with the one that all others run on."""
        return self.project == "torch" and bool(self.requirements)


def packages_in(folder, matching=""):
    packages = []
    for line in _lines(folder / "packages.txt"):
        name, _, requirements = line.partition(":")
        package = Package(name.strip(), requirements.split())
        package.rows.extend(
            row for row in _rows(folder / "subjects", package) if matching in row.function)
        packages.append(package)
    return packages


def _rows(folder, package):
    """An older release has the newer one's, unless it has a file of its own."""
    files = (folder / f"{name}.txt" for name in (package.name, package.project))
    file = next((file for file in files if file.exists()), None)
    return [_row(folder, package, line) for line in _lines(file)] if file else []


def _row(folder, package, line):
    """KIND MODULE:NAME [as CALL | via ADAPTER] [--OPTION ...]"""
    told, *options = line.split(" --")
    options = tuple(word for option in options for word in f"--{option}".split())
    kind, function, *how = told.split(maxsplit=3)
    if not how:
        return Row(kind, function, function, 0, options, package.version, "")
    word, named = how
    if word == "as":
        place = f"{function.partition(':')[0]}:{named}"
        return Row(kind, function, place, 0, options, package.version, "", named)
    adapters = folder / "adapters" / f"{package.project.replace('-', '_')}_adapters.py"
    source = _source(adapters, named)
    return Row(kind, function, f"docs/atlas/subjects/adapters/{adapters.name}:{named}",
               _code_lines(source), options, package.version, source)


def _source(file, name):
    """The adapter's own lines: from its def to the next thing at the margin."""
    lines = file.read_text().splitlines()
    start = next(
        i for i, line in enumerate(lines) if line.startswith((f"def {name}(", f"class {name}(")))
    return "\n".join([lines[start],
                      *inspect.getblock([line + "\n" for line in lines[start:]])[1:]]).strip()


def _code_lines(source):
    """All but the def: what somebody had to write."""
    return sum(1 for line in source.splitlines()[1:]
               if line.strip() and not line.strip().startswith(("#", '"""')))


def _lines(file):
    texts = (line.partition("#")[0].strip() for line in Path(file).read_text().splitlines())
    return [text for text in texts if text]


def first_lines(text):
    """What a message begins with, without the call and the adapter that it shows."""
    return " ".join(text.partition(". Write the call out")[0].split())[:300]
