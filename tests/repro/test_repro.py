"""`distgrad repro` as a user runs it: that the scripts give the report's numbers, run by
themselves, and are reduced."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import scripts_on_ranks

DISTGRAD = os.environ["DISTGRAD"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)

# Every kind of collective, groups, a mesh, layouts, random inputs; each with every rule that some
# library has for it.
EVERY_RULE = ["all_reduce_sum", "all_reduce_product", "all_reduce_max_ties", "all_gather_dim1",
              "reduce_avg", "broadcast_root2", "copy_invariant", "slice_invariant",
              "reduce_scatter_sum", "all_to_all", "gather", "scatter", "send_recv"]


def distgrad(*arguments, code=0):
    done = subprocess.run([DISTGRAD, *map(str, arguments)], capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{text}"
    return done


def built_in_subjects():
    return ",".join(line.split()[0] for line in distgrad("list", "subjects").stdout.splitlines())


class Numbers(unittest.TestCase):
    """The scripts' gradients and truths are those of the report of the same cases."""

    def check(self, paths, least, **options):
        count, missing, found = scripts_on_ranks.check(paths, **options)
        self.assertEqual((missing, found), ([], {}))
        self.assertGreaterEqual(count, least)

    def test_names_that_the_script_uses_itself(self):
        ranks = [1, 0] if scripts_on_ranks.KEEPS_ORDER else [0, 1]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "names.json")
            gathered = {"all_gather": "os * shard_rank", "group": "shard"}
            file.write_text(json.dumps({"world_size": 2, "groups": {"shard": [ranks]},
                                        "inputs": {"leaf": {"expr": "rank + 2.0"}, "dist": 3.0},
                                        "steps": [{"os": "leaf * dist"}, {"loss": gathered},
                                                  {"program": "sum([t * t for t in loss])"}],
                                        "loss": "program * (rank + 1)", "objective": "mean",
                                        "subjects": {"reference": "match", "simclr": "match"}}))
            self.check([str(file)], 2)

    def test_every_built_in_subject(self):
        files = [f"scenarios/collectives/{name}.json" for name in EVERY_RULE]
        self.check(files, 15, every=7,
                   options=["--subject", built_in_subjects(), "--world-size", "2"])


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return pathlib.Path(self.folder.name, name)

    def run_script(self, case, *launcher):
        script = self.path("repro.py")
        distgrad("repro", case, "-o", script)
        return subprocess.run([sys.executable, *launcher, script], capture_output=True, text=True,
                              timeout=300)

    def test_python_runs_it_and_it_says_that_they_differ(self):
        done = self.run_script("scenarios/debate/all_reduce_sum.json:subject=in_place")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("x            rank 0  20        40     <-- differs", done.stdout)

    def test_torchrun_runs_it_and_it_says_that_they_agree(self):
        done = self.run_script("scenarios/debate/all_reduce_sum.json:subject=torch_nn", "-m",
                               "torch.distributed.run", "--nproc-per-node=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("x            rank 1  60        60", done.stdout)
        self.assertNotIn("differs", done.stdout)

    def test_it_fails_where_the_subject_raises(self):
        done = self.run_script(
            "scenarios/collectives/all_reduce_avg.json:subject=mpi4torch,world_size=2,dtype=float64"
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("NotImplementedError: the backward of all_reduce is not implemented",
                      done.stderr)

    def test_a_function_of_the_user_is_imported(self):
        self.path("losses.py").write_text("""import torch, torch.distributed as dist
class GatherLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return tuple(parts)
    @staticmethod
    def backward(ctx, *grads):
        return grads[dist.get_rank()]
""")
        subject = f"all_gather=python:{self.path('losses.py')}:GatherLayer.apply"
        found = distgrad("repro", "scenarios/collectives/all_gather_gram.json:world_size=2",
                         "--subject", subject, "--python", sys.executable)
        self.assertIn("import losses\n", found.stdout)
        self.assertIn("y = losses.GatherLayer.apply(x)\n", found.stdout)
        compile(found.stdout, "repro.py", "exec")

    def test_what_fails_is_the_program(self):
        script = self.path("repro.py")
        distgrad("repro", "scenarios/regress/torchtitan-2106.json:world_size=2", "-o", script)
        names = scripts_on_ranks.load(scripts_on_ranks.compiled(script))
        rows = list(names["guards"](*names["truth"]()))
        self.assertEqual([name for name, _, seen, wanted, _ in rows if not seen.equal(wanted)],
                         ["loss", "x", "w", "bias"])

    def test_errors_are_one_line(self):
        for arguments, text in [
                (["scenarios/debate/total.json"], "it takes one case"),
                (["scenarios/collectives/copy.json:subject=fvcore,world_size=2", "--objective",
                  "rank:7"], "nothing to show"),
                (["scenarios/collectives/broadcast.json:world_size=2,dtype=float64", "--subject",
                  "simclr"], "simclr does not offer broadcast"),
                (["--shrink", "scenarios/debate/total.json:subject=reference"],
                 "this case matches"),
                (["nope.json"], "no such file"),
        ]:
            self.assertIn(text, distgrad("repro", *arguments, code=2).stderr)

    def test_a_folder_takes_several_cases(self):
        distgrad("repro", "scenarios/debate/total.json", "-o", self.folder.name + "/all/")
        scripts = sorted(os.listdir(self.path("all")))
        self.assertIn("scenarios-debate-total.json-subject-in_place.py", scripts)
        self.assertGreater(len(scripts), 2)


class Shrinking(unittest.TestCase):
    def test_the_scenario_is_minimal_and_shows_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "small.json")
            done = distgrad("repro", "--shrink", "--scenario",
                            "scenarios/collectives/all_gather_uneven.json:subject=simclr", "-o",
                            file)
            self.assertIn("ranks, not 3", done.stderr)
            small = json.loads(file.read_text())
            self.assertEqual(small["world_size"], 2)
            self.assertEqual(len(small["steps"]), 1)
            report = pathlib.Path(folder, "report.json")
            distgrad("run", "--json", report, file, code=1)
            (case,) = json.loads(report.read_text())["cases"]
            self.assertEqual(case["findings"][0]["rule"], "own-slice")
            self.assertEqual(case["findings"][0]["collective"], "all_gather")


if __name__ == "__main__":
    unittest.main()
