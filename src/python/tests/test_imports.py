"""Each module of the package can be imported, and no two import each other, at once or by way of
others."""

import ast
import importlib
import pathlib
import sys
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "distgrad"


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path, modules):
    """The package's own modules that a file names, at its top or inside a function."""
    name, names = name_of(path), set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])]) if node.level else node.module
            inside = {f"{base}.{alias.name}" for alias in node.names} & modules
            names.update(inside)
            if len(inside) < len(node.names):
                names.add(base)
    return (names & modules) - {name}


def circles(graph):
    """Each as the names along it, the first one last again."""
    found, done = [], set()

    def visit(name, way):
        if name in way:
            found.append([*way[way.index(name):], name])
        elif name not in done:
            for following in sorted(graph[name]):
                visit(following, [*way, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


class Imports(unittest.TestCase):
    def test_each_can_be_imported(self):
        sys.path.insert(0, str(PACKAGE.parent))
        for name in sorted(name_of(path) for path in PACKAGE.rglob("*.py")):
            if not name.endswith("__main__"):
                with self.subTest(name):
                    importlib.import_module(name)

    def test_there_is_no_circle(self):
        files = {name_of(path): path for path in PACKAGE.rglob("*.py")}
        graph = {name: imported_by(path, set(files)) for name, path in files.items()}
        self.assertGreater(sum(map(len, graph.values())), len(graph))
        self.assertEqual([" -> ".join(circle) for circle in circles(graph)], [])

    def test_a_circle_is_found(self):
        self.assertEqual(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}), [["b", "c", "b"]])


if __name__ == "__main__":
    unittest.main()
