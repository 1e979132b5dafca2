"""Measures distgrad side by side with what it is compared to, and prints the ratios.

    bench_table.py --distgrad PATH --bench FOLDER --python PATH [--json FILE] [--quick]

Rows: (a) one cold scenario of 4 ranks against the Python peer; (b) 1,000 warm cases against the
bare Gloo loop and the peer with its processes kept; (c) simulated programs per second against a
bare libtorch loop and torch's LocalTensorMode; (d) 4 ranks with tensors of 64 MiB and 2 with 256
MiB against the bare loop, time and peak memory; (e) random programs (`distgrad fuzz`) against the
bare loop, and simulated ones. Each figure is the median of several runs, taken in turn. No torch is
needed here.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
DEBATE = {
    "inputs": {"x": 1.0},
    "steps": [{"xx": "(rank + 2) * x"}, {"y": {"all_reduce": "xx"}}],
    "loss": "y * y",
    "objective": "sum",
}


def scenario(folder, name, **changes):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**DEBATE, **changes}))
    return path


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.runs = 3 if options.quick else 7
        self.rows = []

    def seconds(self, paths, *more):
        begin = time.perf_counter()
        done = subprocess.run([self.options.distgrad, "run", "--quiet", *more, *map(str, paths)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wall = time.perf_counter() - begin
        if done.returncode != 0:
            sys.exit(f"distgrad failed ({done.returncode}):\n{done.stdout}")
        return wall

    def peer(self, mode, ranks, count=1):
        """Whole-process seconds, and the object that the peer prints."""
        begin = time.perf_counter()
        done = subprocess.run([self.options.python, str(HERE / "bench_peer.py"), mode, "--ranks",
                               str(ranks), "--count", str(count)],
                              stdout=subprocess.PIPE, check=True, text=True)
        return time.perf_counter() - begin, json.loads(done.stdout)

    def bare(self, ranks, count, elements=1):
        done = subprocess.run([str(self.options.bench / "bare_gloo"), str(ranks), str(count),
                               str(elements)], stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout)

    def row(self, what, ours, theirs, unit, target):
        ratio = ours / theirs
        self.rows.append({"what": what, "distgrad": ours, "other": theirs, "unit": unit,
                          "ratio": ratio, "target": target})
        print(f"{what:<58} {ours:>10.4g} {theirs:>10.4g} {unit:<5} {ratio:>8.3g}  {target}",
              flush=True)

    def cold(self):
        path = scenario(self.folder, "cold", world_size=4)
        self.seconds([path])
        ours, theirs = [], []
        for _ in range(self.runs if self.options.quick else 5):
            ours.append(self.seconds([path]))
            theirs.append(self.peer("cold", 4)[0])
        self.row("(a) cold, 4 ranks, against the Python peer", statistics.median(ours),
                 statistics.median(theirs), "s", "<= 0.05")

    def warm(self, ranks):
        # What 1,000 more cases take: start, connect and report of a run cancel out.
        few, many = self.folder / f"few{ranks}", self.folder / f"many{ranks}"
        for folder, count in ((few, 100), (many, 1100)):
            folder.mkdir()
            for i in range(count):
                scenario(folder, f"case{i}", world_size=ranks)
        ours, bare = [], []
        for _ in range(self.runs):
            ours.append(self.seconds([many]) - self.seconds([few]))
            bare.append(self.bare(ranks, 1000)["wall_s"])
        self.row(f"(b) 1,000 warm cases, N = {ranks}, against the bare Gloo loop",
                 statistics.median(ours), statistics.median(bare), "s", "<= 1.2")
        _, peer = self.peer("warm", ranks, 1000)
        self.row("(b) the same against the Python peer", statistics.median(ours), peer["wall_s"],
                 "s", "")

    def simulation(self):
        done = subprocess.run([str(self.options.bench / "simulation_bench"),
                               "--benchmark_format=json", "--benchmark_repetitions=3",
                               "--benchmark_report_aggregates_only=true"],
                              stdout=subprocess.PIPE, check=True, text=True)
        medians = {b["run_name"]: b["items_per_second"]
                   for b in json.loads(done.stdout)["benchmarks"]
                   if b["aggregate_name"] == "median"}
        for ranks in (4, 512):
            bare = medians[f"BM_BareLibtorch/ranks:{ranks}"]
            for bounds, text in ((0, ""), (1, " with bounds")):
                ours = medians[f"BM_Simulate/ranks:{ranks}/bounds:{bounds}"]
                self.row(f"(c) simulated programs, N = {ranks}{text}: libtorch loop / ours", bare,
                         ours, "1/s", "<= 1.5")
        for ranks, count in ((4, 100), (64, 3)):
            _, peer = self.peer("local-tensor", ranks, count)
            if ranks == 4:
                ours = medians["BM_Simulate/ranks:4/bounds:0"]
                self.row(f"(c) LocalTensorMode / ours, N = {ranks}", count / peer["wall_s"], ours,
                         "1/s", "")

    def large(self, ranks, mebibytes):
        elements = mebibytes * 2**20 // 8
        path = scenario(self.folder, "large", world_size=ranks, loss="y.sum() * (rank + 1)",
                        inputs={"x": {"random": {"shape": [elements], "kind": "integers"}}})
        small = scenario(self.folder, "small", world_size=ranks)
        ours, bare, peaks = [], [], []
        for _ in range(3):
            with PeakMemory(self.options.distgrad) as peak:
                ours.append(self.seconds([path], "--timeout", "300") - self.seconds([small]))
            peaks.append(peak)
            bare.append(self.bare(ranks, 1, elements))
        size = f"{ranks} ranks x {mebibytes} MiB"
        self.row(f"(d) {size} against the bare loop", statistics.median(ours),
                 statistics.median(b["wall_s"] for b in bare), "s", "<= 3")
        base = self.bare(ranks, 1, 1)["peak_kib"]
        self.row("(d) peak memory of a rank beyond libtorch, in such tensors",
                 (statistics.median(p.rank_kib for p in peaks) - base) / 1024, mebibytes, "MiB",
                 "<= 3")
        self.row("(d) peak memory of the driver, in such tensors",
                 statistics.median(p.driver_kib for p in peaks) / 1024, mebibytes, "MiB", "")


    def fuzzed(self, ranks, count):
        start = time.perf_counter()
        subprocess.run([self.options.distgrad, "fuzz", "--world-size", str(ranks), "--seed", "1",
                        "--count", str(count)],
                       stdout=subprocess.DEVNULL, check=True, cwd=self.folder)
        return time.perf_counter() - start

    def fuzz(self, ranks):
        # What 1,000 more programs take; one has 1.5 collectives on average, forward and backward,
        # the loop's has one.
        ours, bare = [], []
        for _ in range(self.runs):
            ours.append(self.fuzzed(ranks, 1100) - self.fuzzed(ranks, 100))
            bare.append(self.bare(ranks, 1500)["wall_s"])
        self.row(f"(e) 1,000 random programs, N = {ranks}, against the bare Gloo loop",
                 statistics.median(ours), statistics.median(bare), "s", "<= 1.3")

    def fuzz_simulated(self):
        done = subprocess.run([str(self.options.bench / "fuzz_bench"), "5000"],
                              stdout=subprocess.PIPE, check=True, text=True)
        per_second = float(re.search(r"simulated: (\d+) a second", done.stdout).group(1))
        self.row("(e) random programs simulated a second and core: 5000 / ours", 5000, per_second,
                 "1/s", "<= 1")


class PeakMemory:
    """The largest VmHWM of any rank (not of the simulator) and of the driver, by the names that
    they give themselves. Of this installation: others may be at work beside."""

    def __init__(self, distgrad):
        self.folder = str(pathlib.Path(distgrad).resolve().parent) + "/"

    def __enter__(self):
        self.rank_kib = self.driver_kib = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.stop.wait(0.01):
            for entry in os.scandir("/proc"):
                if not entry.name.isdigit():
                    continue
                try:
                    program = os.readlink(f"{entry.path}/exe")
                    if not program.startswith(self.folder):
                        continue
                    text = (pathlib.Path(entry.path) / "status").read_text()
                except OSError:
                    continue
                fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
                peak = int(fields["VmHWM"].split()[0]) if "VmHWM" in fields else 0
                if fields["Name"].strip().startswith("dg rank"):
                    self.rank_kib = max(self.rank_kib, peak)
                elif program == self.folder + "distgrad":
                    self.driver_kib = max(self.driver_kib, peak)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distgrad", required=True)
    parser.add_argument("--bench", required=True, type=pathlib.Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="abcde", help="which of the rows, e.g. ac")
    options = parser.parse_args()
    print(f"{'':<58} {'distgrad':>10} {'other':>10} {'':<5} {'ratio':>8}  to reach")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        if "a" in options.only:
            bench.cold()
        if "b" in options.only:
            for ranks in (2, 4, 8):
                bench.warm(ranks)
        if "c" in options.only:
            bench.simulation()
        if "d" in options.only:
            bench.large(4, 64)
            bench.large(2, 256)
        if "e" in options.only:
            for ranks in (2, 4):
                bench.fuzz(ranks)
            bench.fuzz_simulated()
    if options.json:
        options.json.write_text(json.dumps(bench.rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
