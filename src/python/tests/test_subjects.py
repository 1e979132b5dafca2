"""How subjects are loaded and their arguments mapped, without process groups."""

import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

# cuts: autograd.Function as in a rank
from distgrad.ranks import adapters, adapters_loading, adapters_names, cuts  # noqa: E402,F401
from distgrad.ranks.call import Call, NotOffered, RankGroup, SubjectError  # noqa: E402
from distgrad.ranks.subjects import load_subject  # noqa: E402

SUBJECTS = FOLDER / "subjects"
PG = object()  # stands for a process group
X = torch.arange(24.0).reshape(6, 4)
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def call(kind, group="", ranks=(0, 1), rank=1, op="sum", factor=None, root=0, dim=None, splits=None,
         pairs=None):
    return Call(kind, "y", op, factor, root, dim, splits, pairs, RankGroup(group, ranks, rank, PG))


TP = dict(group="tp", ranks=(2, 3))

# Signatures as they are in well-known projects, each with a call and what it is to be called with:
# positional arguments, "x" being the operand. `ctx` marks an autograd.Function's forward.
SIGNATURES = [
    # (project, signature, kind, options, positional arguments)
    ("SimCLR GatherLayer", "ctx, input", "all_gather", {}, ["x"]),
    ("vissl GatherLayer", "ctx, x", "all_gather", {}, ["x"]),
    ("barlowtwins batch_all_gather", "x", "all_gather", {}, ["x"]),
    ("open_clip all_gather_with_grad", "tensor", "all_gather", {}, ["x"]),
    ("lightning all_gather", "tensor, group=None, sync_grads=True", "all_gather", {},
     ["x", None, True]),
    ("lightning all_gather, group", "tensor, group=None, sync_grads=True", "all_gather", TP,
     ["x", PG, True]),
    ("lightning AllGatherGrad", "ctx, tensor, group=None", "all_gather", TP, ["x", PG]),
    ("Megatron _reduce", "input_", "all_reduce", {}, ["x"]),
    ("Megatron-Core _reduce", "input_, group", "all_reduce", TP, ["x", PG]),
    ("Megatron-Core _gather_along_first_dim",
     "input_, group, output_split_sizes=None, use_global_buffer=False", "all_gather", TP,
     ["x", PG, None, False]),
    ("Megatron-Core _AllToAll", "ctx, group, input, output_split_sizes, input_split_sizes",
     "all_to_all", dict(TP, splits=((2, 4), (1, 5))), [PG, "x", [4, 5], [1, 5]]),
    ("Megatron-Core all_to_all", "group, input_, output_split_sizes_=None, input_split_sizes=None",
     "all_to_all", TP, [PG, "x", None, None]),
    ("DeepSpeed _AllToAll", "ctx, group, input", "all_to_all", TP, [PG, "x"]),
    ("DeepSpeed-Ulysses all-to-all", "input, scatter_idx, gather_idx, group", "all_to_all",
     dict(TP, dim=1), ["x", 1, 0, PG]),
    ("fairscale Tutel all_to_all", "ctx, x, group=dist.group.WORLD", "all_to_all", TP, ["x", PG]),
    ("fvcore AllReduce", "ctx, input", "all_reduce", {}, ["x"]),
    ("fvcore differentiable_all_gather", "input", "all_gather", {}, ["x"]),
    ("flash-attention all_reduce_raw", "input_, process_group, async_op=False", "all_reduce", TP,
     ["x", PG, False]),
    ("flash-attention AllGatherFunc", "ctx, input_, process_group", "all_gather", TP, ["x", PG]),
    ("flash-attention ReduceScatterFunc", "ctx, input_, process_group", "reduce_scatter", TP,
     ["x", PG]),
    ("Colossal-AI _gather", "input_, dim=-1, process_group=None", "all_gather", dict(TP, dim=1),
     ["x", 1, PG]),
    ("Colossal-AI _reduce_scatter", "input_, dim=1, process_group=None", "reduce_scatter",
     dict(TP, dim=0), ["x", 0, PG]),
    ("Colossal-AI _all_to_all", "input_, world_size, group, scatter_dim, gather_dim", "all_to_all",
     dict(TP, dim=0), ["x", 2, PG, 0, 1]),
    ("torch.distributed.nn _AllReduce", "ctx, op, group, tensor", "all_reduce", dict(TP, op="max"),
     [MAX, PG, "x"]),
    ("torch.distributed.nn _Broadcast", "ctx, src, group, tensor", "broadcast", dict(TP, root=1),
     [3, PG, "x"]),
    ("torch.distributed.nn _Reduce", "ctx, src, op, group, tensor", "reduce", dict(TP, root=1),
     [3, SUM, PG, "x"]),
    ("functional collectives all_reduce", "self, reduceOp: str, group, tag=''", "all_reduce",
     dict(TP, op="avg"), ["x", "avg", PG, ""]),
    ("functional collectives all_gather_tensor", "self, gather_dim: int, group, tag: str = ''",
     "all_gather", dict(TP, dim=1), ["x", 1, PG, ""]),
    ("functional collectives reduce_scatter",
     "self, reduceOp: str, scatter_dim: int, group, tag: str = ''", "reduce_scatter",
     dict(TP, op="max", dim=1), ["x", "max", 1, PG, ""]),
    ("DTensor-like reduce with text op", "t, op='SUM'", "all_reduce", dict(op="max"), ["x", "MAX"]),
    ("jax-like psum", "x, axis_name=None", "all_reduce", {}, ["x", None]),
    ("torchtitan all_reduce over a size", "x, group, world_size, rank", "all_reduce", TP,
     ["x", PG, 2, 1]),
    ("scatter with chunk sizes", "x, splits, dim, root, pg", "scatter",
     dict(TP, splits=((2, 4),), dim=0, root=1), ["x", [2, 4], 0, 1, PG]),
    ("group's root", "x, group_dst, group", "reduce", dict(TP, root=1), ["x", 1, PG]),
    ("global root", "x, dst, group", "gather", dict(TP, root=1), ["x", 3, PG]),
    ("send_recv by pairs", "x, pairs, group=None", "send_recv", dict(pairs=((0, 1),)),
     ["x", [(0, 1)], None]),
    ("a decorated function", "*args, **kwargs", "all_reduce", {}, ["x"]),
    ("keywords only", "x, *, group=None, op=None", "all_reduce", TP, ["x"]),
]


def function_of(signature):
    """(target, what it was called with): a function of this signature, or an autograd.Function
    where ctx is its first."""
    calls = []
    scope = {"dist": dist, "calls": calls, "torch": torch}
    body = f"def f({signature}):\n    calls.append(locals())\n    return None\n"
    exec(body, scope)  # the test's own text
    if not signature.startswith("ctx"):
        return scope["f"], calls
    return type("F", (torch.autograd.Function,), {"forward": staticmethod(scope["f"])}).apply, calls


class Mapping(unittest.TestCase):
    def test_signatures_of_well_known_projects(self):
        for project, signature, kind, options, wanted in SIGNATURES:
            with self.subTest(project):
                target, _ = function_of(signature)
                binding = adapters.bind(target, kind, "m.py:f", "m.py")
                the_call = call(kind, **options)
                binding.check(the_call)
                got = []
                adapters.invoke(lambda *a, **k: got.append((list(a), k)), binding.slots,
                                adapters.Arguments(the_call, X), binding.by_position)
                positional, _ = got[0]
                self.assertEqual(["x" if a is X else a for a in positional], wanted)

    def test_apply_is_called_by_position_and_really_runs(self):
        target, calls = function_of("ctx, op, group, tensor")
        binding = adapters.bind(target, "all_reduce", "m.py:F.apply", "m.py")
        adapters.invoke(target, binding.slots, adapters.Arguments(call("all_reduce", op="max"), X),
                        binding.by_position)
        self.assertEqual((calls[0]["op"], calls[0]["group"]), (MAX, PG))
        self.assertTrue(torch.equal(calls[0]["tensor"], X))

    def test_keyword_only_parameters_go_by_name(self):
        target, calls = function_of("x, *, op=None, group=None")
        binding = adapters.bind(target, "all_reduce", "m.py:f", "m.py")
        adapters.invoke(target, binding.slots, adapters.Arguments(call("all_reduce", **TP), X),
                        False)
        self.assertEqual((calls[0]["op"], calls[0]["group"]), (SUM, PG))

    def test_the_operand_goes_by_keyword_too_where_all_do(self):
        target, calls = function_of("*, scale=1.0, tensor, group=None")
        binding = adapters.bind(target, "all_reduce", "m.py:f", "m.py")
        adapters.invoke(target, binding.slots, adapters.Arguments(call("all_reduce", **TP), X),
                        False)
        self.assertIs(calls[0]["tensor"], X)
        self.assertEqual((calls[0].get("scale", 1.0), calls[0]["group"]), (1.0, PG))

    def test_lists_are_cut_and_lists_to_fill_are_made(self):
        for signature, kind, options, tensors in [
            ("tensors, group=None", "all_to_all", dict(splits=((2, 4), (1, 5))), [(1, 4), (5, 4)]),
            ("output_tensor_list, input_tensor_list, group", "all_to_all",
             dict(splits=((2, 4), (1, 5))), [(4, 4), (5, 4)]),
            ("tensor_list, tensor, group", "all_gather", {}, [(6, 4), (6, 4)]),
            ("output, input, op, group", "reduce_scatter", {}, (3, 4)),
            ("output, input_list, op, group", "reduce_scatter", dict(dim=1), (6, 2)),
            ("output, input, group", "all_gather", {}, (12, 4)),
        ]:
            with self.subTest(signature):
                target, calls = function_of(signature)
                binding = adapters.bind(target, kind, "m.py:f", "m.py")
                adapters.invoke(target, binding.slots, adapters.Arguments(call(kind, **options), X),
                                False)
                first = calls[0][signature.split(",")[0]]
                self.assertEqual([tuple(t.shape) for t in first]
                                 if isinstance(first, list) else tuple(first.shape), tensors)

    def test_scatter_lists_are_the_roots_alone(self):
        target, calls = function_of("tensor, scatter_list=None, src=0, group=None")
        binding = adapters.bind(target, "scatter", "m.py:f", "m.py")
        for rank in (0, 1):
            adapters.invoke(target, binding.slots,
                            adapters.Arguments(call("scatter", rank=rank), X), False)
        self.assertEqual([len(c["scatter_list"] or ()) for c in calls], [2, 0])
        self.assertEqual(tuple(calls[1]["tensor"].shape), (3, 4))

    def test_what_the_signature_cannot_say_is_not_offered(self):
        for signature, kind, options, reason in [
            ("x", "all_reduce", dict(op="premul_sum", factor=2.0), "no parameter for the op"),
            ("x", "all_reduce", TP, "no parameter for the group"),
            ("x, group", "broadcast", dict(root=1), "no parameter for the root"),
            ("x, root_rank, group", "broadcast", dict(TP, root=1),
             "`root_rank` does not say whether it counts"),
            ("x, group", "reduce_scatter", dict(splits=((1, 5),)), "no parameter for splits"),
            ("x, group", "all_to_all", dict(dim=1), "no parameter for the dimension"),
            ("x, op='sum'", "all_reduce", dict(op="premul_sum", factor=2.0), "premul_sum's factor"),
            ("x, average=True", "all_reduce", dict(op="min"), "sum and avg only"),
            ("x, op=my_ops", "all_reduce", dict(op="premul_sum", factor=2.0),
             "no parameter for the op"),
            ("x, group=True", "all_reduce", TP, "no parameter for the group"),
        ]:
            with self.subTest(signature):
                target, _ = function_of(signature.replace("my_ops", "3"))
                binding = adapters.bind(target, kind, "m.py:f", "m.py")
                with self.assertRaisesRegex(NotOffered, reason):
                    binding.check(call(kind, **options))

    def test_what_it_can_say_is_offered(self):
        for signature, kind, options in [
            ("x", "all_reduce", {}),
            ("x, group", "reduce_scatter", dict(splits=((3, 3),))),
            ("x, root_rank", "broadcast", dict(root=1)),
            ("x", "all_gather", dict(dim=1)),  # the shape of what it gives will tell
        ]:
            with self.subTest(signature):
                adapters.bind(function_of(signature)[0], kind, "m.py:f",
                              "m.py").check(call(kind, **options))

    def test_every_kind_has_names_and_no_name_two_kinds(self):
        seen = {}
        for kind, names in adapters_names.KIND_NAMES.items():
            for name in names:
                self.assertNotIn(name, seen)
                seen[name] = kind

    def test_names_of_classes(self):
        for name, plain in [("AllGather", "all_gather"), ("_AllGatherFunc", "all_gather"),
                            ("GatherLayer", "gather_layer"), ("AllReduceFunction", "all_reduce"),
                            ("all_to_all_single", "all_to_all_single"), ("_AlltoAll", "allto_all"),
                            ("ReduceScatter", "reduce_scatter")]:
            self.assertEqual(adapters_names.plain_name(name), plain)


class Loading(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.addCleanup(setattr, sys, "path", list(sys.path))

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def assert_error(self, text, *parts):
        with self.assertRaises(SubjectError) as caught:
            load_subject(text)
        for part in parts:
            self.assertIn(part, str(caught.exception))
        return str(caught.exception)

    def test_a_file_imports_what_lies_beside_it_and_is_not_taken_for_another_of_its_name(self):
        self.write("a/helper_of_a.py", "VALUE = 2.0\n")
        first = self.write("a/mine.py",
                           "import helper_of_a\ndef all_reduce(x): return x * helper_of_a.VALUE\n")
        second = self.write("b/mine.py", "def all_reduce(x): return x * 3.0\n")
        values = [load_subject(f"python:{path}")(call("all_reduce", ranks=(0,), rank=0),
                                                 X)[0, 1].item() for path in (first, second)]
        self.assertEqual(values, [2.0, 3.0])

    def test_modules_come_from_the_current_folder_as_with_dash_m(self):
        self.write("package/__init__.py", "")
        self.write("package/ours.py",
                   "class A:\n    @staticmethod\n    def all_reduce(x): return x + 1\n")
        source = ("import sys, torch; sys.path.insert(0, {!r})\n"
                  "from distgrad.ranks.subjects import load_subject\n"
                  "load_subject('python:package.ours:A.all_reduce'); print('loaded')")
        script = self.write("elsewhere/script.py", source.format(str(FOLDER.parent)))
        done = subprocess.run([sys.executable, script], cwd=self.folder, capture_output=True,
                              text=True)
        self.assertEqual(done.stdout, "loaded\n", done.stderr)

    def test_what_cannot_be_found_is_named_with_its_nearest(self):
        path = self.write("mine.py",
                          "def all_gather(x): return x\ndef all_reduce_it(x): return x\n")
        self.assert_error(f"python:{self.folder}/mime.py", "no such file", "did you mean mine.py?")
        self.assert_error(f"python:{path}:all_gathr", "has no 'all_gathr'",
                          "did you mean all_gather?", "all_reduce_it")
        self.assert_error("python:torch.distributed.nn.functionals",
                          "did you mean torch.distributed.nn.functional?")
        self.assert_error("python:torch.distributed.nn.functional.all_reduce",
                          "write python:torch.distributed.nn.functional:all_reduce")
        self.assert_error("python:no_such_module_at_all", "no module named 'no_such_module_at_all'",
                          sys.executable)
        self.assert_error("gloo", "is not python:MODULE:NAME")
        self.assert_error("python:mine.py:", "is not of the form")
        self.assert_error("python:folder/mine", "neither a module's name nor a file")

    def test_what_raises_while_it_is_imported_is_shown_where_it_does(self):
        path = self.write("raises.py", "def deep():\n    raise KeyError('TP')\n\ndeep()\n")
        text = self.assert_error(f"python:{path}", "KeyError: 'TP'", "line 4", "in deep")
        self.assertNotIn("adapters_loading", text)
        self.assertNotIn("importlib", text)
        path = self.write("needs.py", "import not_installed_anywhere\n")
        self.assert_error(f"python:{path}", "ModuleNotFoundError", "not_installed_anywhere",
                          "line 1")
        path = self.write("broken.py", "def f(:\n")
        self.assert_error(f"python:{path}", "cannot be read", "def f(:")
        path = self.write("script.py", "import sys\nsys.exit(2)\n")
        self.assert_error(f"python:{path}", "ends the program", "__main__")

    def test_what_code_fails_of_only_here_is_told_with_the_remedy(self):
        path = self.write(
            "twice.py",
            "raise ValueError('trying to initialize the default process group twice!')\n")
        self.assert_error(f"python:{path}", "is_initialized()")
        package = path.parent / "layers"
        (package / "comm").mkdir(parents=True)
        for folder in (package, package / "comm"):
            (folder / "__init__.py").write_text("")
        (package / "comm" / "sums.py").write_text("from ..base import AllReduce\n")
        self.assert_error(f"python:{package}/comm/sums.py",
                          f"in {path.parent} name it python:layers.comm.sums")

    def test_a_failed_import_is_tried_again(self):
        path = self.write("later.py", "1 / 0\n")
        self.assert_error(f"python:{path}", "ZeroDivisionError")
        path.write_text("def all_reduce(x): return x\n\n\n")
        load_subject(f"python:{path}")

    def test_a_function_whose_name_is_no_kind_needs_one(self):
        path = self.write("mine.py", "def total(x): return x\nclass AllGather:\n    pass\n")
        self.assert_error(f"python:{path}:total", f"write KIND=python:{path}:total")
        self.assert_error(f"python:{path}:AllGather", f"write all_gather=python:{path}:AllGather")
        load_subject(f"all_reduce=python:{path}:total")

    def test_what_cannot_be_mapped_is_answered_with_a_call_and_an_adapter_that_run(self):
        path = self.write("quantised.py", "def quantised_sum(x, bits, n_ranks, group):\n"
                          "    return x * bits * n_ranks\n")
        text = self.assert_error(f"all_reduce=python:{path}:quantised_sum", "`bits` is not known")
        lines = text.replace("bits=...", "bits=8").splitlines()
        written = shlex.split(lines[2])[0]
        self.assertIn("quantised_sum(x, bits=8, n_ranks=world_size, group=group)", written)
        self.write("adapters.py", "\n".join(lines[5:-1]).replace("group.size()", "2"))
        for subject in (written, lines[-1].partition("as the subject: ")[2]):
            value = load_subject(subject)(call("all_reduce"), X)
            self.assertTrue(torch.equal(value, 16 * X), subject)

    def test_the_call_that_is_shown_runs_for_methods_modules_and_lists(self):
        path = self.write("several.py", """
            import torch

            class Comm:
                def total(self, x, bits): return x * bits

            class Sum(torch.nn.Module):
                def __init__(self, bits):
                    super().__init__()
                    self.bits = bits

                def forward(self, x): return x * self.bits

            def chunked(tensors, bits): return tensors[0] * bits
            """)
        for kind, name, value in (("all_reduce", "Comm.total", 8 * X), ("all_reduce", "Sum", 8 * X),
                                  ("reduce_scatter", "chunked", 8 * X[:3])):
            text = self.assert_error(f"{kind}=python:{path}:{name}", "Write the call out")
            written = shlex.split(text.splitlines()[2])[0]
            subject = load_subject(written.replace("(...)", "()").replace("...", "8"))
            self.assertTrue(torch.equal(subject(call(kind), X), value), written)

    def test_adapters_of_files_that_cannot_be_imported_by_name_go_into_them(self):
        path = self.write("my-model.py", "def f(x, bits): return x\n")
        self.assert_error(f"all_reduce=python:{path}:f", "at the end of my-model.py",
                          "def all_reduce_adapter(x):",
                          f"all_reduce=python:{path}:all_reduce_adapter")

    def test_what_is_no_function_is_reported(self):
        path = SUBJECTS / "misshapen.py"
        self.assert_error(f"all_reduce=python:{path}:NUMBER", "not callable", "int")
        self.assert_error(f"all_reduce=python:{path}:Plain", "is a class, but neither")
        self.assert_error(f"all_reduce=python:{path}:all_reduce+all_reduce=reference", "`bits`")

    def test_composites(self):
        path = self.write("a+b=c.py", "def all_reduce(x): return x\n")
        subject = load_subject(f"all_reduce=python:{path}:all_reduce+all_gather=in_place")
        subject.check(call("all_reduce"))
        subject.check(call("all_reduce", op="max"))
        self.assertTrue(subject.op_is_untold(call("all_reduce", op="max")))
        self.assertFalse(subject.op_is_untold(call("all_reduce")))
        with self.assertRaises(NotOffered):
            subject.check(call("all_reduce", op="premul_sum", factor=2.0))
        subject.check(call("broadcast"))  # the reference has everything
        self.assert_error("all_reduce=reference+all_reduce=in_place", "named twice")

    def test_a_module_offers_what_it_defines_and_not_what_it_imported(self):
        path = self.write("mine.py", """
            from copy import copy
            from functools import reduce
            from torch.distributed import all_reduce, broadcast
            import torch

            class GatherLayer(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x

            def _reduce_scatter_base(x): return x
            def all_gather_into_tensor(x): return x
            def _reduce(x): return x  # of which all_reduce is made, in Megatron
            def _split(x): raise AssertionError
            def scatter_to_model_parallel_region(x): return x
            """)
        subject = load_subject(f"python:{path}")
        for kind in ("all_gather", "reduce_scatter", "copy", "slice"):
            subject.check(call(kind))
        for kind in ("all_reduce", "broadcast", "reduce", "send_recv"):
            with self.assertRaisesRegex(NotOffered, f"has no {kind}"):
                subject.check(call(kind))
        self.assertEqual(adapters_loading.find_kind(adapters_loading.load_module(str(path)),
                                                    "slice")[0], "scatter_to_model_parallel_region")

    def test_only_setup_of_groups_is_a_setup(self):
        path = self.write(
            "ddp.py",
            "def setup(rank, world_size): raise ValueError\ndef all_reduce(x): return x\n")
        load_subject(f"python:{path}").setup({"": call("copy").group})
        path = self.write("fails.py",
                          "def setup(groups): groups['tp']\ndef all_reduce(x): return x\n")
        subject = load_subject(f"python:{path}")
        with self.assertRaisesRegex(SubjectError, r"setup of .*fails.py raised KeyError: 'tp'"):
            subject.setup({"": call("copy").group})

    def test_setup_runs_again_when_the_layout_changes(self):
        path = self.write("counts.py", "SEEN = []\n"
                          "def setup(groups): SEEN.append(list(groups))\n"
                          "def all_reduce(x): return x\n")
        subject = load_subject(
            f"all_reduce=python:{path}:all_reduce+all_gather=python:{path}:all_reduce")
        world, tp = {"": call("copy").group}, {"": call("copy").group,
                                               "tp": call("copy", **TP).group}
        for groups in (world, world, tp, world, tp):
            subject.setup(groups)
        module = sys.modules[next(n for n in sys.modules if n.endswith("counts_py"))]
        self.assertEqual(module.SEEN, [[""], ["", "tp"], [""], ["", "tp"]])
        subject.check(call("all_reduce", **TP))


if __name__ == "__main__":
    unittest.main()
