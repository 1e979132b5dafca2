"""Runs what needs a GPU and prints what docs/backends.md records. Called by tools/gpu_check, or by
`run` in a folder that `tools/gpu_check --pack` made."""

import argparse
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEBATE = """{"world_size": 2, "inputs": {"x": 1.0},
 "steps": [{"xx": "(rank + 2) * x"}, {"y": {"all_reduce": "xx"}}],
 "loss": "y * y", "objective": "sum", "backend": "nccl"}
"""
# A part's share of the time that is left when it begins; the last one has all.
PARTS = {"machine": 0.5, "self_test": 0.3, "debate": 0.3, "conformance": 0.4, "scenarios": 0.5,
         "random": 0.7, "timings": 1.0}


class OutOfTime(Exception):
    pass


class Check:
    def __init__(self, options):
        self.bin = pathlib.Path(options.build, "bin").resolve()
        self.tests = pathlib.Path(options.build, "tests").resolve()
        self.python = options.python
        self.programs = options.programs
        self.out = pathlib.Path(options.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.end = time.monotonic() + 60 * options.minutes
        self.part_end = self.end
        self.only = options.only.split(",") if options.only else list(PARTS)
        self.lines = []  # of all that is printed
        self.outcomes = []  # (part, outcome, seconds)
        self.faults = []  # of the part that runs
        self.done = []  # what of it has run, in a few words each
        self.gpus = 0

    def say(self, text=""):
        """Printed, and kept at once: what is there survives whatever ends this program."""
        print(text, flush=True)
        self.lines.append(text)
        (self.out / "summary.md").write_text("\n".join(self.lines) + "\n")

    def run(self, name, command, **environment):
        """(exit code or None where the time was over, what it printed, seconds). All it said is in
        FOLDER/NAME.log."""
        left = self.part_end - time.monotonic()
        if left < 1:
            raise OutOfTime(name)
        begin = time.perf_counter()
        path = self.out / f"{name}.log"
        with open(path, "w") as log, open(self.out / f"{name}.out", "w+") as printed:
            child = subprocess.Popen([str(word) for word in command], cwd=ROOT,
                                     stdin=subprocess.DEVNULL, stdout=printed, stderr=log,
                                     env={**os.environ, **environment}, start_new_session=True)
            try:
                code = child.wait(timeout=left)
            except subprocess.TimeoutExpired:
                code = None
                child.send_signal(signal.SIGINT)  # distgrad still writes its report then
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    pass
            finally:
                try:
                    os.killpg(child.pid, signal.SIGKILL)  # what it left running too
                except ProcessLookupError:
                    pass
                child.wait()
            printed.seek(0)
            text = printed.read()
        path.write_text(text + path.read_text())
        (self.out / f"{name}.out").unlink()
        return code, text, time.perf_counter() - begin

    def fault(self, what):
        self.faults.append(what)

    def last_words(self, name):
        lines = [line for line in (self.out / f"{name}.log").read_text().splitlines()
                 if line.strip()]
        return lines[-1][:200] if lines else "it said nothing"

    # ---- the parts

    def machine(self):
        code, text, _ = self.run("probe", [self.bin / "distgrad-rank", "--probe", "--load"])
        if code != 0:
            raise RuntimeError(
                f"distgrad-rank does not run (exit code {code}): {self.last_words('probe')}")
        probe = json.loads(text[text.index("{"):])
        cuda, nccl = probe["cuda"], probe["nccl"]
        self.gpus = len(cuda["devices"])
        self.say("| what | version |\n| --- | --- |")
        rows = [("GPUs", ", ".join(cuda["devices"])), ("driver", f"CUDA {cuda['driver']}"),
                ("torch", probe["torch"]), ("torch's CUDA", cuda["runtime"]),
                ("NCCL", nccl.get("version", "")),
                ("processor", f"{platform.processor()}, {os.cpu_count()} threads")]
        for row in rows:
            self.say("| " + " | ".join(row) + " |")
        if cuda["unavailable"]:
            print(f"no check: {cuda['unavailable']}", file=sys.stderr)
            sys.exit(3)
        if nccl["unavailable"]:
            self.fault("nccl: " + nccl["unavailable"])
        self.done.append(f"{self.gpus} GPU" + "s" * (self.gpus != 1))

    def self_test(self):
        """Written beside the executable: from then on it, and not the sources, says what is
        native."""
        code, text, seconds = self.run("self_test_nccl",
                                       [self.bin / "distgrad-rank", "--self-test", "nccl"])
        if code != 0 or "{" not in text:
            return self.fault("self-test of nccl: " + self.last_words("self_test_nccl"))
        text = text[text.index("{"):]
        found = json.loads(text)["nccl"]
        (self.bin / "nccl-traits.json").write_text(text)
        (self.out / "nccl-traits.json").write_text(text)
        wrong = [f"{k} ({v.get('why', '')})" for k, v in found.items() if not v["native"]]
        self.say(f"\nself-test of nccl, {len(found)} primitives in {seconds:.1f} s; composed:"
                 f" {', '.join(wrong) or 'nothing'}")
        self.done.append(f"{len(found)} primitives")

    def debate(self):
        """One folder first: where even this fails, the rest need not be waited for."""
        self.scenario_table([("nccl", ["--backend", "nccl", "--share-gpu"]),
                             ("gloo on cuda", ["--backend", "gloo", "--device", "cuda"])],
                            ["scenarios/debate"])

    def conformance(self):
        self.say("\n| conformance test | tests passed | failed | skipped | seconds |\n" +
                 "| --- " * 5 + "|")
        for name in ("gloo_on_cuda", "nccl_on_cuda"):
            code, text, seconds = self.run(
                f"conformance_{name}", [self.tests / "conformance_test", f"--gtest_filter=*{name}"],
                DISTGRAD_NCCL_LIBRARY=str(self.bin / "libdistgrad-nccl.so"))
            passed, failed, skipped = (sum(line.startswith(mark) and " ms)" in line
                                           for line in text.splitlines())
                                       for mark in ("[       OK ]", "[  FAILED  ]", "[  SKIPPED ]"))
            if code != 0:
                self.fault(f"conformance {name}: " + ("out of time" if code is None
                                                      else f"exit code {code}"))
            elif passed == 0:
                self.fault(f"conformance {name}: nothing ran; the log says why")
            self.say(
                f"| {name.replace('_', ' ')} | {passed} | {failed} | {skipped} | {seconds:.0f} |")
            self.done.append(f"{passed} tests of {name}")

    def scenarios(self):
        """Folder by folder, so that one that hangs costs no other's figures."""
        rows = [("nccl", ["--backend", "nccl", "--share-gpu"]),
                ("gloo on cuda", ["--backend", "gloo", "--device", "cuda"])]
        if self.gpus > 1:
            rows.append(("nccl, own GPU each", ["--backend", "nccl"]))
        self.scenario_table(rows, sorted(f"scenarios/{p.name}"
                                         for p in (ROOT / "scenarios").iterdir() if p.is_dir()))

    def scenario_table(self, rows, folders):
        self.say("\n| scenarios | folder | cases | as expected | not | broken | skipped | disputed"
                 " | seconds |\n" + "| --- " * 9 + "|")
        for folder in folders:
            for name, arguments in rows:
                self.scenario_row(name, folder, arguments)

    def scenario_row(self, name, folder, arguments):
        stem = f"{name.replace(' ', '_').replace(',', '')}_{pathlib.Path(folder).name}"
        report = self.out / f"{stem}.json"
        report.unlink(missing_ok=True)
        command = [self.bin / "distgrad", "run", "--quiet", "--allow-empty", "--python",
                   self.python, "--json", report, *arguments, folder]
        code, _, seconds = self.run(stem, command)
        if not report.exists():
            self.fault(f"{name}, {folder}: " + ("out of time" if code is None
                                                else self.last_words(stem)))
            return self.say(f"| {name} | {folder} |" + " - |" * 6 + f" {seconds:.1f} |")
        if code is None:
            self.fault(f"{name}, {folder}: out of time")
        summary = json.loads(report.read_text())["summary"]
        if summary["not_as_expected"] or summary["broken"]:
            self.fault(f"{name}, {folder}: {summary['not_as_expected']} not as expected,"
                       f" {summary['broken']} broken")
        elif summary["skipped"] == summary["cases"]:
            self.fault(f"{name}, {folder}: all skipped; the report says why")
        figures = [summary[k] for k in ("cases", "as_expected", "not_as_expected", "broken",
                                        "skipped", "disputed")]
        self.say(f"| {name} | {folder} | " + " | ".join(map(str, figures)) + f" | {seconds:.1f} |")
        self.done.append(f"{summary['cases'] - summary['skipped']} cases of {name}")

    def random(self):
        """Whatever order a GPU's kernels add in, no program may be accused there that matches on
        the CPU. (`reference` is an adjoint, and some of the files ask for what no adjoint gives.)
        In portions: each is on all three before the next begins."""
        totals = {name: {} for name in ("gloo on cpu", "nccl", "gloo on cuda")}
        accused = {name: [] for name in totals}
        portion = 200
        try:
            for first in range(1, self.programs + 1, portion):
                self.portion(first, min(portion, self.programs + 1 - first), totals, accused)
        except OutOfTime:
            self.fault(f"{sum(totals['gloo on cuda'].values())} of {self.programs} random programs:"
                       " out of time")
        self.say("\n| random programs, `reference` | programs | match | mismatch | disputed | error"
                 " | skipped | accused here alone |\n" + "| --- " * 8 + "|")
        for name, counts in totals.items():
            figures = ([sum(counts.values())] + [
                counts.get(v, 0) for v in ("match", "mismatch", "disputed", "error", "skipped")])
            self.say(f"| {name} | " + " | ".join(map(str, [*figures, len(accused[name])])) + " |")
            if counts.get("skipped"):
                self.fault(
                    f"{name}: {counts['skipped']} random programs skipped; the reports say why")
            if accused[name]:
                self.fault(f"{name} alone accuses {', '.join(accused[name][:5])}")
            self.done.append(f"{figures[0]} programs of {name}")

    def portion(self, first, count, totals, accused):
        folder = self.out / "random" / str(first)
        code, _, _ = self.run("random_scenarios",
                              [self.python, ROOT / "tools" / "random_scenarios.py", "--count",
                               count, "--seed", first, folder])
        if code is None:
            raise OutOfTime("random_scenarios")
        if code != 0:
            raise RuntimeError("random_scenarios.py: " + self.last_words("random_scenarios"))
        on_cpu = {}
        for name, arguments in (("gloo on cpu", []), ("nccl", ["--backend", "nccl", "--share-gpu"]),
                                ("gloo on cuda", ["--device", "cuda"])):
            report = self.out / f"random_{name.replace(' ', '_')}_{first}.json"
            report.unlink(missing_ok=True)
            code, _, _ = self.run(report.stem,
                                  [self.bin / "distgrad", "run", "--quiet", "--subject",
                                   "reference", "--json", report, *arguments, folder])
            if not report.exists():
                raise OutOfTime(name) if code is None else RuntimeError(
                    f"random programs, {name}: {self.last_words(report.stem)}")
            for case in json.loads(report.read_text())["cases"]:
                verdict, file = case["verdict"], case["file"]
                totals[name][verdict] = totals[name].get(verdict, 0) + 1
                if name == "gloo on cpu":
                    on_cpu[file] = verdict
                elif verdict in ("mismatch", "error") and on_cpu.get(file, verdict) != verdict:
                    accused[name].append(file)

    def timings(self):
        self.say(
            "\n| pytorch#58005 over NCCL | ranks | distgrad | Python |\n| --- | --- | --- | --- |")
        scenario = self.out / "debate.json"
        scenario.write_text(DEBATE)
        many = self.out / "many"
        many.mkdir(exist_ok=True)
        for i in range(100):
            (many / f"{i}.json").write_text(DEBATE)
        for ranks in (1, 2, 4):
            base = [self.bin / "distgrad", "run", "--quiet", "--share-gpu", "--world-size", ranks]
            one = min(self.timed(f"cold_{ranks}", [*base, scenario]) for _ in range(3))
            all_of_them = min(self.timed(f"warm_{ranks}", [*base, many]) for _ in range(2))
            cold, warm = (self.peer(mode, ranks, count)
                          for mode, count in (("cold", 1), ("warm", 100)))
            self.say(
                f"| cold: one program, processes and all | {ranks} | {one:.2f} s | {cold:.2f} s |")
            self.say(f"| warm: a further program | {ranks} | {(all_of_them - one) / 99 * 1e3:.2f}"
                     f" ms | {warm / 100 * 1e3:.2f} ms |")
            self.done.append(f"{ranks} ranks")

    def timed(self, name, command):
        """Seconds of a run in which everything matched; a skip would take none."""
        code, _, seconds = self.run(name, command)
        if code is None:
            raise OutOfTime(name)
        if code != 0:
            raise RuntimeError(f"{name}: exit code {code}: {self.last_words(name)}")
        return seconds

    def peer(self, mode, ranks, count):
        command = [self.python, ROOT / "tools" / "bench_peer.py", mode, "--ranks", ranks, "--count",
                   count, "--backend", "nccl"]
        code, text, _ = self.run(f"peer_{mode}_{ranks}", command)
        if code != 0:
            self.fault(f"the peer in Python, {mode}, {ranks} ranks: " +
                       self.last_words(f"peer_{mode}_{ranks}"))
            return float("nan")
        row = json.loads(text)
        return row["wall_s"] + (row["import_s"] if mode == "cold" else 0)

    # ---- all of them

    def perform(self, part, share):
        begin = time.monotonic()
        self.part_end = begin + share * (self.end - begin)
        self.faults, self.done = [], []
        try:
            getattr(self, part)()
        except OutOfTime as name:
            self.fault(f"out of time before {name}")
        except Exception as e:  # the next part may do
            self.fault(f"{type(e).__name__}: {e}")
        outcome = "; ".join(self.faults) or "ok"
        ran = ", ".join(dict.fromkeys(self.done)) or "nothing"
        self.outcomes.append((part, ran, outcome, f"{time.monotonic() - begin:.0f}"))

    def table(self):
        self.say("\n| part | what ran | outcome | seconds |\n| --- | --- | --- | --- |")
        for row in self.outcomes:
            self.say("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--only", default="",
                        help="of " + ",".join(PARTS) + "; the machine is always looked at")
    parser.add_argument("--out", default=str(ROOT / "build" / "gpu-check"))
    options = parser.parse_args()
    if unknown := set(filter(None, options.only.split(","))) - set(PARTS):
        parser.error(f"--only: there is no part {', '.join(sorted(unknown))}; the parts are"
                     f" {', '.join(PARTS)}")
    check = Check(options)
    for part, share in PARTS.items():
        if part == "machine" or part in check.only:
            check.perform(part, share)
    check.table()
    return 0 if all(outcome == "ok" for _, _, outcome, _ in check.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
