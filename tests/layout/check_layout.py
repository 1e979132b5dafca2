"""What docs/architecture.md says of folders, and style of the sources, held against the files.

usage: check_layout.py SOURCES [top|includes|lines|columns|format]..., all of them if none is named.
`columns` looks at Python and shell as well.
"""

import pathlib
import re
import shutil
import subprocess
import sys

COLUMNS = 100
SCRIPT_FOLDERS = (".ci", "docs", "src", "tests", "tools")
# Another version lays out differently; Debian 12 has this one.
CLANG_FORMAT = "14"
TOP = {"CMakeLists.txt", "CMakePresets.json", "README.md", "docs", "golden", "pyproject.toml",
       "scenarios", "src", "tests", "tools"}
# May use what stands above them for their tests' sake or for what they measure.
NOT_SHIPPED = re.compile(r"_test\.(cpp|h)$|_fuzz\.cpp$|/fake_rank\.cpp$|^src/rank/bench/")
TEST = re.compile(r"_test\.|/sample_\w+\.h$|/testdata/|^python/tests/")


def sources(root, *folders):
    """The C++ files below these folders, relative to `root`."""
    return sorted(str(path.relative_to(root)) for folder in folders
                  for path in (root / folder).rglob("*") if path.suffix in (".cpp", ".h"))


def scripts(root):
    """Python and shell, with a suffix or a first line that says so, relative to `root`."""
    for path in sorted(path for folder in SCRIPT_FOLDERS for path in (root / folder).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not path.is_symlink():
            if path.suffix in (".py", ".sh") or (not path.suffix and is_script(path)):
                yield name


def is_script(path):
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def table_of_folders(root):
    """{folder: (folders it may include, with what these may; its most lines)}, the folders without
    src/."""
    page = (root / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `src/([\w/]+)` \|[^|]*\|([^|]*)\|[^|]*\| (\d+) \|$", page, re.M)
    folders = [name for name, *_ in rows]
    direct = {}
    for i, (name, may, _) in enumerate(rows):
        words = [word.strip() for word in may.split(",")]
        direct[name] = folders[:i] if "all above" in words else [f for f in folders if f in words]
    closed = {}

    def close(name):
        if name not in closed:
            closed[name] = set(direct[name]).union(*(close(f) for f in direct[name]))
        return closed[name]

    return {name: (close(name), int(most)) for name, _, most in rows}


def folder_of(path, table):
    """The innermost of the table's folders that this path, without src/, is in, or its first
    part."""
    return max((f for f in table if path.startswith(f + "/")), key=len,
               default=path.split("/")[0])


def include_errors(root):
    table = table_of_folders(root)
    if len(table) < 20:
        yield f"docs/architecture.md: its table of folders was not understood: {sorted(table)}"
    for name in sources(root, "src"):
        folder = folder_of(name[len("src/"):], table)
        if folder not in table:
            yield f"{name}: src/{folder} has no row in docs/architecture.md"
            continue
        if NOT_SHIPPED.search(name):
            continue
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            found = re.match(r'#include "(\w+/.*)"', line)
            other = found and folder_of(found[1], table)
            if other and other != folder and other not in table[folder][0]:
                yield (f"{name}:{number}: src/{folder} may not include src/{other}"
                       " (docs/architecture.md)")


def line_errors(root):
    """Folders with more lines than the table allows, tests and their data aside."""
    table = table_of_folders(root)
    lines = dict.fromkeys(table, 0)
    for path in (root / "src").rglob("*"):
        name = str(path.relative_to(root / "src"))
        folder = folder_of(name, table)
        if path.suffix in (".cpp", ".h", ".py") and folder in lines and not TEST.search(name):
            lines[folder] += len(path.read_text().splitlines())
    for folder, (_, most) in table.items():
        if lines[folder] > most:
            yield (f"src/{folder}: {lines[folder]} lines, at most {most} (docs/architecture.md):"
                   " take some out, or raise the number and say why")


def column_errors(root):
    for name in [*sources(root, "src", "tests"), *scripts(root)]:
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            if len(line) > COLUMNS and not is_raw_text(name, line):
                yield f"{name}:{number}: {len(line)} columns"


def is_raw_text(name, line):
    """In C++, a text that is needed in one piece, or an address."""
    return name.endswith((".cpp", ".h")) and ('"' in line or "://" in line)


def format_errors(root):
    tool = shutil.which("clang-format")
    version = tool and subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    if not version or f"version {CLANG_FORMAT}." not in version:
        print(f"format: skipped, as there is no clang-format {CLANG_FORMAT} here")
        return
    files = sources(root, "src", "tests")
    done = subprocess.run([tool, "--dry-run", "--ferror-limit=1", *files], cwd=root,
                          capture_output=True, text=True)
    for name in sorted(set(re.findall(r"^([^\s:]+):\d+:\d+: warning", done.stderr, re.M))):
        yield f"{name}: run clang-format -i {name}"


def top_errors(root):
    """Yields what was committed beside the folders by mistake."""
    done = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    if done.returncode:
        print("top: skipped, as this is no git checkout")
        return
    for name in sorted({path.split("/")[0] for path in done.stdout.splitlines()} - TOP):
        if not name.startswith("."):
            yield f"{name}: the top folder has {', '.join(sorted(TOP))} alone"


CHECKS = {"top": top_errors, "includes": include_errors, "lines": line_errors,
          "columns": column_errors, "format": format_errors}


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    errors = [e for name in sys.argv[2:] or CHECKS for e in CHECKS[name](root)]
    print("\n".join(errors))
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
