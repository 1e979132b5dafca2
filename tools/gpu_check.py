"""Runs what needs a GPU and prints what docs/backends.md records. Called by tools/gpu_check."""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEBATE = """{"world_size": 2, "inputs": {"x": 1.0}, "steps": [{"xx": "(rank + 2) * x"}, {"y": {"all_reduce": "xx"}}],
 "loss": "y * y", "objective": "sum", "backend": "nccl"}
"""


class Check:
    def __init__(self, options):
        self.bin = pathlib.Path(options.build, "bin")
        self.tests = pathlib.Path(options.build, "tests")
        self.python = options.python
        self.programs = options.programs
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.failures = []
        self.probe = {}

    def run(self, name, command, **environment):
        """The finished process and its seconds; all it said is kept in FOLDER/NAME.log."""
        begin = time.perf_counter()
        done = subprocess.run(
            [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
        )
        seconds = time.perf_counter() - begin
        (self.out / f"{name}.log").write_text(done.stdout + done.stderr)
        return done, seconds

    def note(self, what, good):
        if not good:
            self.failures.append(what)
        return "ok" if good else "**FAILS**"

    # ---- the parts

    def machine(self):
        done, _ = self.run("probe", [self.bin / "distgrad-rank", "--probe", "--load"])
        self.probe = json.loads(done.stdout)
        cuda, nccl = self.probe["cuda"], self.probe["nccl"]
        if cuda["unavailable"] or nccl["unavailable"]:
            print(f"no check: {cuda['unavailable'] or nccl['unavailable']}", file=sys.stderr)
            sys.exit(3)
        print("| what | version |\n| --- | --- |")
        rows = [("GPUs", ", ".join(cuda["devices"])), ("driver", f"CUDA {cuda['driver']}"), ("torch", self.probe["torch"]),
                ("torch's CUDA", cuda["runtime"]), ("NCCL", nccl["version"]), ("processor", platform.processor())]
        for row in rows:
            print("| " + " | ".join(row) + " |")

    def self_test(self):
        """Written beside the executable: from then on it, and not the sources, says what is native."""
        done, seconds = self.run("self_test_nccl", [self.bin / "distgrad-rank", "--self-test", "nccl"])
        good = done.returncode == 0
        if good:
            (self.bin / "nccl-traits.json").write_text(done.stdout[done.stdout.index("{"):])
            wrong = [k for k, v in json.loads(done.stdout[done.stdout.index("{"):])["nccl"].items() if not v["native"]]
            print(f"\nself-test of nccl ({seconds:.1f} s), composed: {', '.join(wrong) or 'nothing'}")
        else:
            print(f"\nself-test of nccl: {self.note('self-test', False)}; {self.out}/self_test_nccl.log")

    def conformance(self):
        done, seconds = self.run("conformance", [self.tests / "conformance_test"])
        skipped = done.stdout.count("[  SKIPPED ]")
        print(f"\nconformance test: {self.note('conformance test', done.returncode == 0)} in {seconds:.0f} s, {skipped} lines of skips")

    def scenarios(self):
        print("\n| scenarios | cases | as expected | not | broken | skipped | disputed | seconds |\n" + "| --- " * 8 + "|")
        for name, arguments in (
            ("nccl", ["--backend", "nccl", "--share-gpu"]),
            ("nccl, own GPU each", ["--backend", "nccl"]),
            ("gloo on cuda", ["--backend", "gloo", "--device", "cuda"]),
        ):
            self.scenario_row(name, ["scenarios", "--allow-empty", *arguments])

    def scenario_row(self, name, arguments):
        report = self.out / f"{name.replace(' ', '_').replace(',', '')}.json"
        _, seconds = self.run(report.stem, [self.bin / "distgrad", "run", "--json", report, *arguments])
        summary = json.loads(report.read_text())["summary"]
        self.note(f"scenarios, {name}", summary["not_as_expected"] == 0 and summary["broken"] == 0)
        figures = [summary[k] for k in ("cases", "as_expected", "not_as_expected", "broken", "skipped", "disputed")]
        print(f"| {name} | " + " | ".join(map(str, figures)) + f" | {seconds:.1f} |")

    def random_programs(self):
        """Whatever order a GPU's kernels add in, no program may be accused there that matches on the CPU. (`reference` is an
        adjoint, and some of the files ask for what no adjoint gives.)"""
        folder = self.out / "random"
        count = self.programs
        self.run("random_scenarios", [self.python, ROOT / "tools" / "random_scenarios.py", "--count", count, folder])
        print(f"\n| {count} random programs, `reference` | match | mismatch | disputed | error | skipped | accused here alone |\n" + "| --- " * 7 + "|")
        on_cpu = self.random_row("gloo on cpu", [], folder, {})
        self.random_row("nccl", ["--backend", "nccl", "--share-gpu"], folder, on_cpu)
        self.random_row("gloo on cuda", ["--device", "cuda"], folder, on_cpu)

    def random_row(self, name, arguments, folder, on_cpu):
        """Verdicts by file. `on_cpu`: those to compare with, or none."""
        report = self.out / f"random_{name.replace(' ', '_')}.json"
        self.run(report.stem, [self.bin / "distgrad", "run", "--quiet", "--subject", "reference", "--json", report, *arguments, folder])
        verdicts = {c["file"]: c["verdict"] for c in json.loads(report.read_text())["cases"]}
        counts = [sum(v == which for v in verdicts.values()) for which in ("match", "mismatch", "disputed", "error", "skipped")]
        accused = [f for f, v in verdicts.items() if v in ("mismatch", "error") and on_cpu.get(f, v) != v]
        self.note(f"random programs, {name}: {', '.join(accused[:5])}", not accused)
        print(f"| {name} | " + " | ".join(map(str, [*counts, len(accused)])) + " |")
        return verdicts

    def timings(self):
        print("\n| pytorch#58005 over NCCL | ranks | distgrad | Python |\n| --- | --- | --- | --- |")
        scenario = self.out / "debate.json"
        scenario.write_text(DEBATE)
        many = self.out / "many"
        many.mkdir(exist_ok=True)
        for i in range(200):
            (many / f"{i}.json").write_text(DEBATE)
        for ranks in (1, 2, 4):
            base = [self.bin / "distgrad", "run", "--quiet", "--share-gpu", "--world-size", ranks]
            one = min(self.run(f"cold_{ranks}", [*base, scenario])[1] for _ in range(3))
            all_of_them = min(self.run(f"warm_{ranks}", [*base, many])[1] for _ in range(3))
            cold, warm = (self.peer(mode, ranks, count) for mode, count in (("cold", 1), ("warm", 200)))
            print(f"| cold: one program, processes and all | {ranks} | {one:.2f} s | {cold:.2f} s |")
            print(f"| warm: a further program | {ranks} | {(all_of_them - one) / 199 * 1e3:.2f} ms | {warm / 200 * 1e3:.2f} ms |")

    def peer(self, mode, ranks, count):
        command = [self.python, ROOT / "tools" / "bench_peer.py", mode, "--ranks", ranks, "--count", count, "--backend", "nccl"]
        done, _ = self.run(f"peer_{mode}_{ranks}", command)
        if done.returncode != 0:
            self.failures.append(f"the peer in Python, {mode}, {ranks} ranks")
            return float("nan")
        row = json.loads(done.stdout)
        return row["wall_s"] + (row["import_s"] if mode == "cold" else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--programs", type=int, default=10000)
    parser.add_argument("--out", default=str(ROOT / "build" / "gpu-check"))
    check = Check(parser.parse_args())
    for part in (check.machine, check.self_test, check.conformance, check.scenarios, check.random_programs, check.timings):
        part()
        sys.stdout.flush()
    if check.failures:
        print("\nnot as it should be: " + "; ".join(check.failures))
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
