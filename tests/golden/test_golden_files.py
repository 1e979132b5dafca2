"""`distgrad golden` and `run --golden` as a user runs them: what they write, say and return."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

DISTGRAD = os.environ["DISTGRAD"]
ROOT = pathlib.Path(__file__).resolve().parents[2]

SCENARIO = {
    "world_size": [2, 3],
    "inputs": {"x": 1.0},
    "steps": [{"xx": "(rank + 2) * x"}, {"y": {"all_reduce": "xx", "op": "sum"}}],
    "loss": "y * y",
    "objective": "sum",
    "subjects": {"reference": "match"},
}
GOLDEN = "golden/scenarios/a.json"


class GoldenFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.scenario(SCENARIO)

    def path(self, name):
        return pathlib.Path(self.folder.name, name)

    def scenario(self, content, name="scenarios/a.json"):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(json.dumps(content))

    def run_it(self, *arguments):
        done = subprocess.run([DISTGRAD, *arguments], cwd=self.folder.name, capture_output=True,
                              text=True)
        self.output = done.stdout + done.stderr
        return done.returncode

    def expect(self, code, *arguments, says=()):
        self.assertEqual(self.run_it(*arguments), code, self.output)
        for text in says:
            self.assertIn(text, self.output)

    def edit(self, old, new):
        text = self.path(GOLDEN).read_text()
        self.assertIn(old, text)
        self.path(GOLDEN).write_text(text.replace(old, new, 1))

    def test_what_is_written_is_up_to_date_and_not_written_again(self):
        self.expect(0, "golden", "update", says=["new", GOLDEN])
        cases = json.loads(self.path(GOLDEN).read_text())["cases"]
        self.assertEqual([c["world_size"] for c in cases], [2, 3])
        self.assertEqual(cases[0]["gradients"]["x"]["by_rank"], [40.0, 60.0])
        before = self.path(GOLDEN).stat()
        self.expect(0, "golden", "check", says=["1 up to date in"])
        self.expect(0, "golden", "update", says=["1 up to date in"])
        self.assertEqual(self.path(GOLDEN).stat(), before)

    def test_a_value_that_differs_is_shown_with_its_place_and_distance(self):
        self.run_it("golden", "update")
        right = self.path(GOLDEN).read_text()
        self.edit("60.0", "60.00000000000001")
        self.expect(1, "golden", "check", says=["differs", GOLDEN, "1 different"])
        self.expect(1, "golden", "diff",
                    says=["rank", "60.00000000000001", "60     1      -",
                          "the scenario is the same as when the file was written"])
        row = next(line for line in self.output.splitlines() if "60.00000000000001" in line)
        self.assertEqual(row.split()[1:], ["x", "1", "60.00000000000001", "60", "1", "-"])
        self.expect(0, "golden", "update", says=["changed"])
        self.assertEqual(self.path(GOLDEN).read_text(), right)

    def test_the_golden_file_is_what_a_run_is_compared_with(self):
        self.run_it("golden", "update")
        self.expect(0, "run", "--golden", "golden")
        self.edit("60.0", "61.0")
        self.expect(1, "run", "--golden", "golden", says=["FAIL", "61"])
        self.expect(0, "run")

    def test_a_run_without_a_golden_file_is_not_as_expected(self):
        self.expect(1, "run", "--golden", "golden", says=["there is no golden file"])
        self.run_it("golden", "update")
        self.expect(1, "run", "--golden", "golden", "--world-size", "4", says=["world_size=4"])
        self.scenario({**SCENARIO, "loss": "2 * y * y"})
        self.expect(1, "run", "--golden", "golden", says=["has changed since"])
        self.expect(2, "run", "--golden", "golden", "--simulate", says=["golden check"])

    def test_what_does_not_fit_together_is_named(self):
        self.run_it("golden", "update")
        self.scenario({**SCENARIO, "note": "another"})
        self.expect(0, "golden", "check")
        self.scenario({**SCENARIO, "timeout_s": 20, "tolerance": 0})
        self.scenario(SCENARIO, "scenarios/b.json")
        self.path("golden/scenarios/c.json").write_text(self.path(GOLDEN).read_text())
        self.expect(1, "golden", "check",
                    says=["SHA-256 no longer fits", "scenarios/b.json   has no golden file",
                          "golden/scenarios/c.json   has no scenario"])
        self.expect(0, "golden", "update", says=["removed"])
        self.assertFalse(self.path("golden/scenarios/c.json").exists())

    def test_nothing_is_written_where_an_oracle_disagrees(self):
        single = {"steps": [], "loss": "3 * x[0] * x[1]"}
        for wrong in ({"truth": {"x": "7 * rank"}}, {"single_device": single}):
            self.scenario({**SCENARIO, **wrong})
            self.expect(1, "golden", "update", says=["refused"])
            self.assertFalse(self.path(GOLDEN).exists())
            self.expect(1, "golden", "check", says=["refused"])

    def test_an_expected_disagreement_is_recorded_without_gradients(self):
        expected = {"reference": {"verdict": "mismatch", "finding": "program"}}
        single = {"steps": [], "loss": "3 * x[0] * x[1]"}
        self.scenario({**SCENARIO, "single_device": single, "subjects": expected})
        self.expect(0, "golden", "update")
        case = json.loads(self.path(GOLDEN).read_text())["cases"][0]
        self.assertIsNone(case["gradients"])
        self.assertIn("single_device", case["why"])

    def test_what_is_no_golden_file_stays(self):
        self.path("golden/scenarios").mkdir(parents=True)
        self.path(GOLDEN).write_text('{"mine": 1}')
        self.path("golden/other.json").write_text('{"mine": 2}')
        self.expect(1, "golden", "update", says=["is no golden file"])
        self.assertEqual(self.path(GOLDEN).read_text(), '{"mine": 1}')
        self.assertEqual(self.path("golden/other.json").read_text(), '{"mine": 2}')

    def test_nothing_is_written_through_a_link_to_elsewhere(self):
        for made in ("golden/scenarios", "other"):
            self.path(made).mkdir(parents=True)
        self.path(GOLDEN).symlink_to("../../other/a.json")
        self.expect(2, "golden", "update",
                    says=["a symbolic link leads out of the golden files' folder"])
        self.path(GOLDEN).unlink()
        self.path("golden/scenarios").rmdir()
        self.path("golden/scenarios").symlink_to("../other")
        self.expect(2, "golden", "update",
                    says=["a symbolic link leads out of the golden files' folder"])
        self.assertEqual(list(self.path("other").iterdir()), [])
        self.path("golden/scenarios").unlink()
        self.path("golden").rmdir()
        with tempfile.TemporaryDirectory() as elsewhere:
            self.path("golden").symlink_to(elsewhere)
            self.expect(2, "golden", "update",
                        says=["a symbolic link leads out of the golden files' folder"])
            self.assertEqual(os.listdir(elsewhere), [])
            self.expect(0, "golden", "update", "--golden", elsewhere)  # which the user named

    def test_mistakes_on_the_command_line(self):
        self.expect(2, "golden", "chekc", says=['did you mean "check"?'])
        self.expect(2, "golden", "check", "scenarios/a.json:world_size=2", says=["whole file"])
        self.expect(2, "golden", "check", "nowhere.json")


def parametrize(_, cases, ids):
    """pytest's, as far as the page needs it: no environment that runs this test has pytest."""
    def decorated(test):
        def run_all():
            for case in cases:
                ids(case)
                test(case)
        return run_all
    return decorated


class Documentation(unittest.TestCase):
    def names_of_the_example(self, old="", new=""):
        page = (ROOT / "docs/golden.md").read_text()
        example = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL).group(1)
        self.assertIn(old, example)
        pytest = types.ModuleType("pytest")
        pytest.mark = types.SimpleNamespace(parametrize=parametrize)
        sys.modules["pytest"] = pytest
        self.addCleanup(sys.modules.pop, "pytest")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(ROOT)
        names = {}
        exec(example.replace(old, new) if old else example, names)
        return names

    def test_the_example_passes(self):
        self.names_of_the_example()["test_gradients"]()

    def test_the_example_fails_for_an_implementation_that_is_wrong(self):
        wrong = self.names_of_the_example("world_size * 2 * y", "2 * y")
        with self.assertRaises(AssertionError):
            wrong["test_gradients"]()


if __name__ == "__main__":
    unittest.main()
