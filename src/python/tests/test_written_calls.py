"""Calls written out as subjects: how their text is cut, and what their names get. Without process
groups."""

import sys
import tempfile
import unittest
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

# cuts: autograd.Function as in a rank
from distgrad.ranks import adapters_written, cuts, finding  # noqa: E402,F401
from distgrad.ranks.call import Call, NotOffered, RankGroup, SubjectError  # noqa: E402
from distgrad.ranks.subject_text import without_calls  # noqa: E402
from distgrad.ranks.subjects import load_subject, place_and_name  # noqa: E402

PG = object()  # stands for a process group
X = torch.arange(24.0).reshape(6, 4)
TP = RankGroup("tp", (2, 3), 1, PG)

MODULE = """
import torch

SCALE = 3
group = "the module's own"
dim = 7
told = []


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        told.append(arguments)
        return arguments[0] * 1

    @staticmethod
    def backward(ctx, g):
        return g


def all_gather(x, **options):
    told.append(options)
    return [torch.stack([x, x])]


def world_size():
    return 1


def __getattr__(name):
    if name == "lazy":
        return 11
    raise AttributeError(name)


SECRET = {"key": 1}
"""


def call(kind, dim=None, op="sum", root=0, splits=None, pairs=None, group=TP):
    return Call(kind, "y", op, None, root, dim, splits, pairs, group)


class Texts(unittest.TestCase):
    def test_calls_are_overwritten(self):
        # As SubjectText.CallsAreOverwritten has them, in src/model/subject_text_test.cpp
        for text, plain in (
                ("python:m:f(x)[0].wait(1)@async", "python:m:f______.wait___@async"),
                ("copy=python:m:f({'(': \"\\\")\"}, x)+a", "copy=python:m:f_________________+a"),
                ("f.json:subject=python:m:f(a,b),dtype=x",
                 "f.json:subject=python:m:f_____,dtype=x"),
                ("python:m:f(x", "python:m:f__"),
                ("python:a (old)/f.py:g", "python:a (old)/f.py:g"),
                ("run:1(a/f.json:subject=python:m:f", "run:1(a/f.json:subject=python:m:f"),
                ("library:a.so:ns::op(", "library:a.so:ns::op(")):
            self.assertEqual(without_calls(text), plain)

    def test_places(self):
        for text, place, name in (
                ("python:m:f('a.py:b')", "m", "f('a.py:b')"),
                ("python:a(b.py:G.apply(x)[0:1]", "a(b.py", "G.apply(x)[0:1]"),
                ("python:m", "m", None), ("python:f.py", "f.py", None)):
            self.assertEqual(place_and_name(text), (place, name))
        for text in ("python:m:", "python::f(x)", "python:m:1f(x)", "python:m:(x)"):
            with self.assertRaises(SubjectError):
                place_and_name(text)


class WrittenCalls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "mine.py"
        self.file.write_text(MODULE)

    def load(self, text, kind="all_gather", mode=""):
        return load_subject(f"{kind}=python:{self.file}:{text}{mode}")

    def told(self, text, asked=None, **options):
        """What the call in `text` hands to Gather."""
        kind = (asked or call("all_gather", **options)).kind
        subject = self.load(text, kind)
        subject(asked or call(kind, **options), X)
        return sys.modules["distgrad_subject_" + "".join(
            c if c.isalnum() else "_" for c in str(self.file))].told[-1]

    def test_names_get_what_parameters_do_and_all_else_is_the_modules(self):
        told = self.told("Gather.apply(torch.cat([x, x]), group, SCALE, max(1, 2), rank, lazy,"
                         " [n for n in range(group_size)], 'group')")
        self.assertEqual(told[1:], (PG, 3, 2, 1, 11, [0, 1], "group"))
        self.assertTrue(torch.equal(told[0], torch.cat([X, X])))

    def test_a_name_of_the_call_wins_over_the_modules_unless_it_is_called(self):
        self.assertEqual(self.told("Gather.apply(torch.cat([x, x], 1), group, dim)", dim=1)[1:],
                         (PG, 1))
        self.assertEqual(self.told("Gather.apply(torch.stack([x, x]), world_size())")[1:], (1,))
        self.assertEqual(self.told("Gather.apply(x, dim)", call("all_reduce"))[1:], (7,),
                         "an all_reduce has none")

    def test_the_rest_of_the_call_and_its_mode(self):
        subject = self.load("all_gather(x, note='+all_reduce=@async', at={1: 2})[0]",
                            mode="@checkpoint")
        self.assertEqual(subject._by_kind["all_gather"].mode, "checkpoint")
        value = subject(call("all_gather"), X)
        self.assertTrue(torch.equal(value, torch.stack([X, X])))
        load_subject(f"python:{self.file}:all_gather(x)[0]")  # its name says which it is

    def test_what_it_does_not_name_is_not_offered(self):
        for text, asked in (("Gather.apply(x)", call("all_reduce")),
                            ("Gather.apply(x, group)", call("all_reduce", op="premul_sum")),
                            ("Gather.apply(x, group)", call("broadcast", root=1))):
            with self.assertRaises(NotOffered):
                self.load(text, asked.kind).check(asked)
        self.load("Gather.apply(x, group, op)", "all_reduce").check(call("all_reduce", op="max"))

    def test_buffers_lists_and_pairs(self):
        # Filled, as c10d does it
        output = self.told("Gather.apply(x, output)", call("all_gather", dim=0))[1]
        self.assertEqual(output.shape, (12, 4))
        tensors = self.told("Gather.apply(tensors[0], tensors)", call("reduce_scatter"))[1]
        self.assertEqual([t.shape for t in tensors], [(3, 4), (3, 4)])
        pairs = ((0, 1), (1, 0))
        self.assertEqual(self.told("Gather.apply(x, dict(pairs)[rank])",
                                   call("send_recv", pairs=pairs))[1], 0)

    def assert_error(self, text, *parts, kind="all_gather"):
        with self.assertRaises(SubjectError) as caught:
            self.load(text, kind)
        told = str(caught.exception)
        self.assertNotIn("\n", told, "one line")
        for part in parts:
            self.assertIn(part, told)

    def test_what_is_wrong_with_it_is_told_in_a_line(self):
        self.assert_error("Gather.apply(x", "was never closed", "it is of the form")
        self.assert_error("Gather.apply(x) + x", "it is of the form NAME(ARGUMENTS)")
        self.assert_error("Gahter.apply(x)", "has no 'Gahter'", "did you mean Gather?")
        self.assert_error("Gather.apply(x, gruop)", "`gruop` is neither in", "did you mean group?")
        self.assert_error("Gather.apply(x, src)", "all_gather has no `src`")
        self.assert_error("Gather.apply(tensor)", "`tensor` is neither in", "of the call it can be")
        self.assert_error("Gather.apply(group)", "it has no operand, which is called x")
        self.assert_error("Gather(x, group)", "write Gather.apply(x, group)")
        self.assert_error("SCALE(x)", "is not callable", "int")
        self.assert_error("Gather.apply(x, 0, 1)", "`pairs` is the list", kind="send_recv")
        with self.assertRaises(SubjectError) as caught:
            load_subject(f"python:{self.file}:Gather.apply(x)")
        self.assertIn(f"write gather=python:{self.file}:Gather.apply(x)", str(caught.exception))

    def test_an_audit_that_is_not_told_the_kind_finds_it_in_the_name(self):
        text = f"python:{self.file}:all_gather(x, note='a@b')[0]@async"
        self.assertEqual(finding.functions_of(text, ()), {
            "functions": [{"kind": "all_gather", "name": "all_gather(x, note='a@b')[0]",
                           "problem": ""}], "unnamed": [], "built_in": False})

    def test_as_source_its_names_of_the_module_are_spelled_out(self):
        written = adapters_written.Written("G.apply(x, [SCALE for é in (G, SCALE)], S='SCALE')",
                                           ("G", "SCALE"))
        self.assertEqual(written.source(lambda name: "mine." + name),
                         "mine.G.apply(x, [mine.SCALE for é in (mine.G, mine.SCALE)], S='SCALE')")
        for text in ("G(x, f'{G}')", "G(x, [G for G in x])", "G(x, lambda G: G)"):
            with self.assertRaises(SubjectError):
                adapters_written.Written(text, ("G",)).source(str)


if __name__ == "__main__":
    unittest.main()
