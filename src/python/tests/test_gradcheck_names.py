"""Tests that gradcheck's findings, read from its sources, are those of `distgrad list findings`."""

import ast
import json
import os
import pathlib
import subprocess
import unittest

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "distgrad" / "gradient_check"


def _strings(node):
    if isinstance(node, ast.IfExp):
        return _strings(node.body) + _strings(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _makes_a_finding(call, file):
    """Returns whether the call's first argument is a finding's name. An oddity is a finding unless
    its third argument says that it is not wrong."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name == "_note" and file == "backward.py":
        return not any(isinstance(a, ast.Constant) and a.value is False for a in call.args[2:3])
    return name in ("Finding", "Mistake", "_mistake")


def names_given():
    """Returns {name: where} of all findings that gradcheck can make."""
    names = {}
    for path in sorted(SOURCES.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and _makes_a_finding(node, path.name):
                names.update((name, f"{path.name}:{node.lineno}") for name in
                             _strings(node.args[0]))
    return names


class Names(unittest.TestCase):
    def test_every_name_is_listed(self):
        rows = json.loads(subprocess.run([os.environ["DISTGRAD"], "list", "findings", "--json"],
                                         capture_output=True, check=True, text=True).stdout)
        listed = {row["finding"] for row in rows}
        names = names_given()
        self.assertLessEqual({"tie", "identity-backward", "stale-or-aliased", "contiguity"},
                             set(names))
        self.assertEqual({name: at for name, at in names.items() if name not in listed}, {})


if __name__ == "__main__":
    unittest.main()
