"""tools/atlas: its rows are what they say, and what it writes is what the audit measured. Of the
audits only two of torch's run here, which need no network."""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ATLAS = ROOT / "docs" / "atlas"


sys.path.insert(0, str(ROOT / "tools" / "atlas_parts"))


def part(name):
    spec = importlib.util.spec_from_file_location(f"atlas_{name}",
                                                  ROOT / "tools" / "atlas_parts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@unittest.skipUnless((ROOT / "tools" / "atlas").exists(), "in the sources only")
class Atlas(unittest.TestCase):
    def test_each_row_has_its_package_and_a_short_adapter(self):
        packages = part("rows").packages_in(ATLAS)
        files = {f.stem for f in (ATLAS / "subjects").glob("*.txt")}
        self.assertEqual({p.name if p.name in files else p.project for p in packages if p.rows},
                         files)
        rows_of = {p.name: [(r.function, r.options) for r in p.rows] for p in packages}
        self.assertEqual(rows_of["torch-2.11.0"], rows_of["torch"], "another release has the same")
        for package in packages:
            for requirement in package.requirements:
                self.assertRegex(requirement, r"^[\w.-]+==\S+$", "pinned")
            for row in package.rows:
                self.assertLessEqual(row.adapter_lines, 5, row.place)
                self.assertRegex(row.function, r"^[\w.]+:[\w.]+$")
                if row.call:
                    ast.parse(row.call, mode="eval")
                    self.assertEqual(row.place, f"{row.function.partition(':')[0]}:{row.call}")
                self.assertNotIn("(", row.function + " ".join(row.options))

    def test_what_does_not_run_is_told_and_costs_its_row_alone(self):
        rows, pages = part("rows"), part("pages")
        package = rows.Package("p", ["p==1"])
        row = rows.Row("all_gather", "p:f", "p:f", 0, (), "1", "")
        audit = {"offered": True, "wrong": False, "right_for": ["sum"], "rule": "adjoint",
                 "signature": "V->R", "explanation": "",
                 "aspects": {"ranks": {"state": "ok"}, "groups": {"state": "refused"},
                             "dim": {"state": "WRONG"}}, "errors": [], "refused": [],
                 "measured": {"formula": "x̄_r = Σ_k ȳ_k[r]", "right": "x̄_r = Σ_k ȳ_k[r]"}}
        entries = [pages.entry_of(package, row, result, "torch-2")
                   for result in ({"why": "not installed: a | b", "seconds": 1},
                                  {"audit": audit, "seconds": 2})]
        self.assertEqual([(e["ran"], e.get("fails_in"), e.get("not_taken")) for e in entries],
                         [(False, None, None), (True, ["dim"], ["groups"])])
        for error in ("hang (2-ranks): not done after 30 s",
                      "exception on rank 0: Found no NVIDIA driver on your system"):
            found = {**audit, "wrong": True, "rule": "its ranks die or hang" if "hang" in error
                     else "it raises in backward", "errors": [error]}
            entry = pages.entry_of(package, row, {"audit": found}, "torch-2")
            self.assertEqual((entry["ran"], entry["why"]), (False, error),
                             "no verdict on the function")
        text = pages.text_of(entries)
        self.assertIn("| p 1 | `p:f` as all_gather | not installed: a \\| b |", text)
        self.assertIn("| `p:f` | sum (but see *fails in*) | `x̄_r = Σ_k ȳ_k[r]` | adjoint | V→R |"
                      " dim | groups |  | none |", text)
        self.assertEqual(
            pages.entry_of(rows.Package("torch", []), row, {"why": "x"}, "torch-2")["version"], "2")
        self.check_what_is_red(pages, rows, audit)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "atlas").mkdir()
            pages.write(Path(folder), entries, "torch")
            self.assertIn("2 functions of 1 packages: 1 ran",
                          (Path(folder) / "atlas" / "tables.md").read_text())
            self.assertIn("<tr class=wrong>", (Path(folder) / "atlas" / "atlas.html").read_text())

    def check_what_is_red(self, pages, rows, audit):
        of_lightly = rows.Row("all_gather", "lightly.utils.dist:gather", "", 0, (), "1", "")
        old, new = (rows.Package(name, [f"lightly=={version}"])
                    for name, version in (("lightly-1.0", "1.0"), ("lightly", "2.0")))
        none = {**audit, "right_for": [], "wrong": True, "rule": "no-gradient",
                "measured": {"formula": "x̄_r = 0", "right": ""}}
        entries = [pages.entry_of(package, of_lightly, {"audit": found}, "torch-2")
                   for package, found in ((old, audit), (new, none))]
        self.assertEqual([e["package"] for e in entries], ["lightly", "lightly"])
        text = pages.text_of(entries)
        self.assertEqual([line for line in text.splitlines() if line.startswith("**")],
                         ["**lightly 1.0**", "**lightly 2.0**"],
                         "what one release does is not said of another one")
        self.assertIn("[double_backward.py](../findings/double_backward.py)", text)
        self.assertIn("| not differentiable | `x̄_r = 0` |", text)
        self.assertEqual(text.count("findings/double_backward.py"), 1, "that is not red")
        for version, script in (("0.1.2", "stable_pretraining_dropped.py"),
                                ("0.1.9", "all_gather_transposed.py")):
            release = rows.Package("stable-pretraining", [f"stable-pretraining=={version}"])
            of_release = rows.Row("all_gather", "stable_pretraining.utils.distributed:all_gather",
                                  "", 0, (), version, "")
            self.assertIn(f"findings/{script}", pages.text_of(
                [pages.entry_of(release, of_release, {"audit": {**audit, "right_for": []}}, "t")]))
        changed = part("comparisons").text_of(entries, pages.formula_of).partition("## What ch")[2]
        self.assertIn("| lightly 1.0 | `x̄_r = Σ_k ȳ_k[r]` | sum | dim |", changed)
        self.assertIn("| lightly 2.0 | `x̄_r = 0` | none: no-gradient | dim |", changed)
        raises = {**entries[0], "right_for": [], "wrong": True,
                  "rule": "adjoint, but it raises in backward"}
        meant = {**raises, "rule": "scaled", "package": "torchrec", "formula": "x̄_r[a] = 1/3 ȳ_a"}
        for entry, told in ((raises, "| its backward raises (see *fails in*) |"),
                            (meant, "| no objective by itself: divided by the ranks")):
            text = pages.text_of([entry])
            self.assertIn(told, text)
            self.assertIn("|  |  |\n", text + "\n", "there is nothing to show")
            self.assertFalse(pages._is_red(entry))
        self.assertTrue(pages._is_red({**raises, "rule": "scaled"}))
        self.assertTrue(pages._is_red({**meant, "formula": "x̄_r[a] = 1/9 ȳ_a"}))
        written, adapted = ({**entries[0], **how} for how in ({"call": "f(x, a | b)"},
                                                              {"adapter_lines": 2}))
        self.assertIn("3 ran, 1 of them as they are, 1 as a call written out in the row, 1 with an"
                      " adapter", pages.figures_of([entries[0], written, adapted]))
        self.assertIn("gather` as `f(x, a \\| b)` | sum", pages.text_of([written]))
        alike = [pages.entry_of(package, of_lightly, {"audit": audit}, "torch-2")
                 for package in (old, new)]
        self.assertNotIn("What changed",
                         part("comparisons").text_of(alike, pages.formula_of))
        two = part("comparisons").text_of([*alike, *(dict(e, function="f") for e in entries)],
                                          pages.formula_of).partition("## What ch")[2]
        self.assertIn("Of 2 functions that were measured in two releases", two)
        self.assertEqual(two.count("| lightly 2.0 |"), 1, "the other one is alike in both")

    def test_each_repro_is_there(self):
        functions = {(package.project, row.function)
                     for package in part("rows").packages_in(ATLAS) for row in package.rows}
        releases = {f"{package.project}=={package.version}"
                    for package in part("rows").packages_in(ATLAS)}
        lines = (ATLAS / "repros.txt").read_text().splitlines()
        for project, function, script in (line.split() for line in lines if line[0] != "#"):
            self.assertTrue((ROOT / "docs" / "findings" / script).exists(), script)
            if function != "*":
                self.assertIn((project.partition("==")[0], function), functions)
            if "==" in project:
                self.assertIn(project, releases)

    def test_rows_of_packages_that_are_not_asked_for_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            atlas = self.tree_of_two_packages(Path(folder))
            kept = {"package": "b", "version": "2", "collective": "all_gather", "function": "b:g",
                    "options": [], "adapter": "", "adapter_lines": 0, "call": "", "seconds": 1,
                    "command": "",
                    "ran": False, "why": "as it was"}
            gone = {**kept, "function": "b:no_subject_any_more"}
            (atlas / "atlas.json").write_text(
                json.dumps({"torch": Path(sys.prefix).name, "rows": [gone, kept]}))
            command = [sys.executable, Path(folder) / "tools" / "atlas", "--distgrad", "none",
                       "--torch", sys.prefix, "--work", Path(folder) / "work", "--pages",
                       "--only"]
            done = subprocess.run([*command, "a"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("b:g", done.stdout, "it prints what was asked for")
            rows = json.loads((atlas / "atlas.json").read_text())["rows"]
            self.assertEqual([(r["function"], r["why"]) for r in rows],
                             [("a:f", "has not been run yet"), ("b:g", "as it was")])
            self.assertIn("as it was", (atlas / "tables.md").read_text())
            subprocess.run([*command, "b", "--matching", "g"], capture_output=True, check=True)
            self.assertEqual(json.loads((atlas / "atlas.json").read_text())["rows"], rows)
            (atlas / "atlas.json").write_text(json.dumps({"torch": "torch-0", "rows": [kept]}))
            done = subprocess.run([*command, "a"], capture_output=True, text=True, check=False)
            self.assertIn("the rows of the other packages are not of", done.stderr)

    def tree_of_two_packages(self, folder):
        """tools/atlas with a docs/atlas of its own, which it writes to."""
        shutil.copytree(ROOT / "tools" / "atlas_parts", folder / "tools" / "atlas_parts")
        shutil.copy(ROOT / "tools" / "atlas", folder / "tools")
        atlas = folder / "docs" / "atlas"
        (atlas / "subjects").mkdir(parents=True)
        (atlas / "packages.txt").write_text("common: c==1\na: a==1\nb: b==2\n")
        (atlas / "repros.txt").write_text("")
        for package, function in (("a", "f"), ("b", "g")):
            (atlas / "subjects" / f"{package}.txt").write_text(
                f"all_gather {package}:{function}\n")
        return atlas

    def test_rows_of_torch_without_the_network(self):
        environment = Path(sys.prefix)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, ROOT / "tools" / "atlas", "--distgrad",
                       os.environ["DISTGRAD"], "--torch", environment, "--work", folder, "--only",
                       "torch", "--matching", "DTensor.full_tensor"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertRegex(done.stdout, r"\| `torch.distributed.tensor:DTensor.full_tensor` as"
                             r" `DTensor.from_local\(x, .*\).full_tensor\(\)` \| replicated \|",
                             done.stderr)
            again = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual((again.stdout, again.stderr), (done.stdout, ""),
                             "it goes on where it ended: nothing runs twice")


if __name__ == "__main__":
    unittest.main()
