"""Backends other than Gloo on the CPU as a user meets them: why they cannot run here, and, with a
library that stands in for NCCL, how they run."""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

DISTGRAD = os.environ["DISTGRAD"]
RANK = str(pathlib.Path(DISTGRAD).with_name("distgrad-rank"))
STAND_INS = pathlib.Path(os.environ["STAND_IN_FOLDER"])
ROOT = pathlib.Path(__file__).resolve().parents[2]

SCENARIO = {
    "world_size": 3,
    "inputs": {"x": {"by_rank": [1.0, 2.0, 3.0]}},
    "steps": [{"y": {"all_reduce": "x * torch.ones(2)", "op": "max"}}],
    "loss": "(y * y).sum()",
    "objective": "sum",
}


def run(*arguments, **environment):
    return subprocess.run([DISTGRAD, *arguments], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, **environment})


def probe(*arguments, **environment):
    done = subprocess.run([RANK, "--probe", *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment}, check=True)
    return json.loads(done.stdout)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def scenario(self, **more):
        path = pathlib.Path(self.folder.name, "s.json")
        path.write_text(json.dumps({**SCENARIO, **more}))
        return str(path)

    def cases(self, *arguments, code, **environment):
        done = run("run", "--json", "-", *arguments, **environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)["cases"]


class WithoutAGpu(Case):
    """What is said where there is no GPU."""

    def setUp(self):
        super().setUp()
        self.why = probe()["cuda"]["unavailable"]
        if not self.why:
            self.skipTest("this machine has a GPU")

    def test_cases_are_skipped_with_the_reason(self):
        for arguments, backend in ((["--backend", "nccl"], "nccl"), (["--device", "cuda"], "gloo")):
            (case,) = self.cases(self.scenario(), *arguments, code=4)
            self.assertEqual(case["verdict"], "skipped")
            self.assertEqual((case["backend"], case["device"]), (backend, "cuda"))
            self.assertIn(self.why if backend == "gloo" else probe()["nccl"]["unavailable"],
                          case["why"])
            self.assertIsNone(case["as_expected"])

    def test_a_skip_that_the_file_expects_is_as_expected(self):
        expected = {"verdict": "skipped", "when": {"backend": "nccl"}}
        path = self.scenario(backend=["gloo", "nccl"], subjects={"reference": [expected, "match"]})
        gloo, nccl = self.cases(path, code=0)
        self.assertEqual((gloo["verdict"], nccl["verdict"]), ("match", "skipped"))
        self.assertTrue(nccl["as_expected"])

    def test_cpu_runs_are_not_told_of_it(self):
        (case,) = self.cases(self.scenario(), code=0)
        self.assertNotIn("device", case)

    def test_list_and_doctor_say_it(self):
        why = probe()["nccl"]["unavailable"]
        self.assertIn(why, run("list", "backends").stdout)
        doctor = run("doctor")
        self.assertIn(self.why, doctor.stdout)
        self.assertEqual(doctor.returncode, 0, "a missing GPU is no fault: " + doctor.stdout)

    def test_a_driver_without_a_gpu_gives_the_runtimes_words(self):
        found = probe(LD_LIBRARY_PATH=str(STAND_INS / "stub_driver"))["cuda"]
        if "was built without CUDA" in self.why:
            self.skipTest(self.why)
        self.assertIn("CUDA finds no GPU: ", found["unavailable"])
        self.assertEqual(found["driver"], "13.2")

    def test_the_library_loads_all_the_same(self):
        nccl = probe("--load")["nccl"]
        if "this build has no nccl" in nccl["unavailable"]:
            self.skipTest(nccl["unavailable"])
        self.assertRegex(nccl["version"], r"^NCCL 2\.\d+\.\d+")
        self.assertEqual(nccl["unavailable"], self.why)


class Libraries(Case):
    """What is wrong with a backend's library is the reason of the skip."""

    def why(self, path):
        (case,) = self.cases(self.scenario(), "--backend", "nccl", code=4,
                             DISTGRAD_NCCL_LIBRARY=str(path))
        return case["why"]

    def test_missing(self):
        self.assertIn("this build has no nccl: there is no /nowhere/lib.so",
                      self.why("/nowhere/lib.so"))

    def test_of_another_torch(self):
        self.assertIn("was built with another distgrad or torch (1.0, not 2.",
                      self.why(STAND_INS / "stand_in_of_another_torch.so"))

    def test_that_says_itself_that_it_does_not_fit(self):
        (case,) = self.cases(self.scenario(), "--backend", "nccl", code=4,
                             DISTGRAD_NCCL_LIBRARY=str(STAND_INS / "stand_in.so"), STAND_IN="unfit")
        self.assertIn("stand_in.so cannot be used: it is not what it seems", case["why"])

    def test_no_library(self):
        path = pathlib.Path(self.folder.name, "lib.so")
        path.write_text("nothing")
        self.assertIn("cannot be loaded", self.why(path))

    def test_no_backend(self):
        self.assertIn("lacks distgrad_backend_plugin",
                      self.why(STAND_INS / "stub_driver" / "libcuda.so.1"))


class WithAStandIn(Case):
    """The whole way of `--backend nccl`, over a library that needs no GPU."""

    def cases(self, *arguments, **more):
        library = str(STAND_INS / "stand_in.so")
        return super().cases(*arguments, "--backend", "nccl", DISTGRAD_NCCL_LIBRARY=library, **more)

    def test_the_debate_comes_out_as_over_gloo(self):
        files = [f"scenarios/debate/{name}.json" for name in ("all_reduce_sum", "weighted_product",
                                                              "weighted_sum")]
        cases = self.cases(*files, code=0)
        over_gloo = Case.cases(self, *files, code=0)
        self.assertEqual(list(map(self.outcome, cases)), list(map(self.outcome, over_gloo)))
        self.assertLessEqual({"match", "mismatch"}, {c["verdict"] for c in cases})

    @staticmethod
    def outcome(case):
        observed = {name: g["observed"] for name, g in case["gradients"].items()}
        rules = [f["rule"] for f in case["findings"]]
        return case["file"], case["subject"], case["verdict"], rules, observed

    def test_what_it_lacks_is_composed_and_reported(self):
        (case,) = self.cases(self.scenario(), code=0)
        self.assertEqual(case["composed"], ["all_reduce max of Double: composed of all_gather"])

    def test_its_errors_are_errors_of_the_backend(self):
        (case,) = self.cases(self.scenario(), code=3, STAND_IN="error")
        self.assertEqual(case["error"]["kind"], "backend")
        self.assertIn("NCCL error in: stand_in.cpp:1", case["error"]["message"])
        self.assertEqual((case["error"]["rank"], case["error"]["step"]), (2, "y"))

    def test_its_timeouts_are_hangs(self):
        (case,) = self.cases(self.scenario(), code=3, STAND_IN="timeout")
        self.assertEqual(case["error"]["kind"], "hang")
        self.assertIn("timeout", case["error"]["message"])

    def test_a_rank_that_ends_is_a_crash(self):
        (case,) = self.cases(self.scenario(), code=3, STAND_IN="abort")
        self.assertEqual(case["error"]["kind"], "crash")
        self.assertIn("SIGABRT", case["error"]["message"])

    def test_both_backends_in_one_run(self):
        path = self.scenario(backend=["gloo", "nccl"], world_size=3)
        done = run("run", "--json", "-", path, DISTGRAD_NCCL_LIBRARY=str(STAND_INS / "stand_in.so"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([c["verdict"] for c in json.loads(done.stdout)["cases"]],
                         ["match", "match"])


class GpuCheck(Case):
    """tools/gpu_check.py, as far as it goes without a GPU."""

    def check(self, minutes):
        spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools" / "gpu_check.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        options = argparse.Namespace(build=self.folder.name, python=sys.executable, programs=1,
                                     minutes=minutes, only="", out=self.folder.name)
        return module.Check(options)

    def test_without_a_gpu_it_says_so_and_ends_with_3(self):
        why = probe()["cuda"]["unavailable"]
        if not why:
            self.skipTest("this machine has a GPU")
        command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--build",
                   str(pathlib.Path(DISTGRAD).parents[1])]
        done = subprocess.run([*command, "--out", self.folder.name], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (3, f"no check: {why}\n"))

    def test_a_part_that_breaks_costs_no_other(self):
        check = self.check(minutes=1)
        check.first = lambda: check.run("child", [sys.executable, "-c",
                                                  "print('said'); raise SystemExit(4)"]) and 1 / 0
        check.second = lambda: check.done.append("7 cases")
        with contextlib.redirect_stdout(io.StringIO()):
            check.perform("first", 1)
            check.perform("second", 1)
            check.table()
        self.assertEqual([row[:3] for row in check.outcomes],
                         [("first", "nothing", "ZeroDivisionError: division by zero"),
                          ("second", "7 cases", "ok")])
        self.assertIn("| second | 7 cases | ok |",
                      pathlib.Path(self.folder.name, "summary.md").read_text())
        self.assertEqual(check.last_words("child"), "said")

    def test_a_part_out_of_time_ends_what_it_started(self):
        check = self.check(minutes=1)
        pid_file = pathlib.Path(self.folder.name, "pid")

        def sleeps():
            check.part_end = time.monotonic() + 1.5
            code, _, _ = check.run("sleeper",
                                   ["sh", "-c", f"sleep 600 & echo $! > {pid_file}; wait"])
            check.fault(f"exit code {code}")

        check.sleeps = sleeps
        check.perform("sleeps", 1)
        self.assertEqual(check.outcomes[0][2], "exit code None")
        process = pathlib.Path("/proc", pid_file.read_text().strip(), "cmdline")
        until = time.monotonic() + 10
        while process.exists() and process.read_text() and time.monotonic() < until:
            time.sleep(0.05)  # killed, and not yet gone
        self.assertFalse(process.exists() and process.read_text())


class Arguments(Case):
    def test_wrong_devices_are_reported(self):
        done = run("run", "--device", "tpu", self.scenario())
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn('run: --device: unknown device "tpu"; it is "cpu" or "cuda"', done.stderr)

    def test_nccl_takes_no_cpu_tensors(self):
        (case,) = self.cases(self.scenario(), "--backend", "nccl", "--device", "cpu", code=4)
        self.assertIn("nccl does not take tensors on the device cpu", case["why"])

    def test_a_rank_program_without_its_arguments_says_so(self):
        for arguments in (["--worker"], ["--worker", "0", "x", "3", "4", "5"],
                          ["--probe", "--lod"]):
            done = subprocess.run([RANK, *arguments], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("usage: distgrad-rank", done.stderr)

    def test_the_executables_link_no_cuda(self):
        for program in (DISTGRAD, RANK):
            needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True,
                                    check=True).stdout
            self.assertIn("NEEDED", needed)
            for library in ("libtorch_cuda", "libc10_cuda", "libnccl", "libcuda.so", "libcudart"):
                self.assertNotIn(library, needed)


if __name__ == "__main__":
    unittest.main()
