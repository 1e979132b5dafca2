"""distgrad on the ranks of real launchers: run_launchers.py PART, one of PARTS. Exit code 77: a
package or a right is missing, which is said. The report is to be the same as on one machine, but
for times and hosts; what ends a rank or a host is reported, and leaves nothing."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
DISTGRAD = os.environ["DISTGRAD"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SCENARIOS = [str(SOURCES / "scenarios" / name) for name in ("collectives/all_gather.json",
                                                            "collectives/broadcast_group.json",
                                                            "debate/weighted_sum.json")]
RUN = ["run", "--world-size", "2,3,4", *SCENARIOS]
SUBJECT = ["run", "--subject", f"all_gather=python:{HERE}/ranks.py:all_gather", "--world-size",
           "2,4", SCENARIOS[0]]
SLEEPING = ["run", "--subject", f"all_gather=python:{HERE}/ranks.py:sleeping_gather",
            "--world-size", "4", "--timeout", "300", SCENARIOS[0]]
AUDIT = ["audit", f"all_gather=python:{HERE}/ranks.py:all_gather", "--world-size", "4",
         "--without", "groups,shape,dtype,graph,operand,cotangent"]


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def need(*programs, root=False):
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        skip(f"{', '.join(missing)} not found")
    if root and os.geteuid() != 0:
        skip("needs root")


class Folder:
    """A folder for a test's files, with its secret and its mark: all that it starts inherits
    that."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="distgrad-launch-"))
        self.environment = dict(os.environ, OMP_NUM_THREADS="1", DISTGRAD_LAUNCH_TIMEOUT="120",
                                PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                                XDG_STATE_HOME=str(self.path), LAUNCH_TEST=str(self.path),
                                LAUNCH_TEST_MARK=str(self.path / "mark"))
        for name in ("RANK", "WORLD_SIZE", "DISTGRAD_LAUNCHER", "DISTGRAD_SECRET"):
            self.environment.pop(name, None)

    def run(self, command, seconds=280):
        """One that does not end fails, with who was still there and waited where."""
        process = self.start(command)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            there = [f"{pid} {name} in {self.wait_of(pid)}" for pid, name in self.processes()]
            output, errors = self.end_group(process)
            why = f"not over after {seconds} s: {there}\n{output}\n{errors}"
            raise AssertionError(why) from None
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    @staticmethod
    def end_group(process):
        """By SIGTERM, for what has to end others first, then by SIGKILL."""
        for end in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, end)
            try:
                return process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                pass
        return "", "its output is held by who left its group"

    @staticmethod
    def wait_of(pid):
        try:
            return Path(f"/proc/{pid}/wchan").read_text() or "user space"
        except OSError:
            return "its end"

    def start(self, command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def processes(self):
        """Of this test's: (pid, name)."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_text(errors="replace")
                if f"LAUNCH_TEST={self.path}\0" in environment:
                    state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        found.append((int(process.name), (process / "comm").read_text().strip()))
            except OSError:
                pass
        return found

    def check_all_gone(self):
        end = time.monotonic() + 20
        while time.monotonic() < end and self.processes():
            time.sleep(0.05)
        assert not self.processes(), f"left behind: {self.processes()}"
        shutil.rmtree(self.path)


def without_places(value):
    """A report without times and hosts, and without the addresses of objects that messages of torch
    have in them."""
    if isinstance(value, str):
        return re.sub(r"0x[0-9a-f]{8,}", "0x...", value)
    if isinstance(value, dict):
        return {k: without_places(v) for k, v in value.items()
                if k not in ("elapsed_s", "host", "hosts", "command", "mesh_order")}
    return [without_places(v) for v in value] if isinstance(value, list) else value


def compare(folder, launched, arguments, code, more=()):
    """What `launched(command)` runs, with `more` arguments there, gives the report of one
    machine."""
    reports = []
    for name, start, also in (("here", list, ()), ("there", launched, more)):
        file = folder.path / f"{name}.json"
        result = folder.run(
            start([DISTGRAD, arguments[0], "--json", str(file), *also, *arguments[1:]]))
        ran = f"{name}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert file.exists(), "no report: " + ran
        # torchrun has an exit code of its own for processes that fail.
        assert (result.returncode == 0) == (code == 0), ran
        reports.append(json.loads(file.read_text()))
    assert without_places(reports[0]) == without_places(reports[1]), "the reports differ"
    return result, reports[1]


def check_run(folder, launched, hosts):
    result, report = compare(folder, launched, RUN, 0)
    summary = report["summary"]
    assert summary["as_expected"] > 10 and summary["broken"] == 0, summary
    text = result.stdout
    assert "as expected" in text and "On the 4 ranks of" in text, text
    names = report["tool"].get("hosts")
    assert (names is None) if hosts == 1 else len(set(names)) == hosts and len(names) == 4, names
    return result, report


def check_larger_world(folder, launched):
    result = folder.run(launched([DISTGRAD, "run", "--world-size", "5", SCENARIOS[-1]]))
    text = result.stdout + result.stderr
    assert "needs 5 ranks" in result.stdout and "has started 4" in result.stdout, text


def check_everything(folder, launched, hosts):
    check_run(folder, launched, hosts)
    compare(folder, launched, SUBJECT, 1)
    compare(folder, launched, AUDIT, 1)
    check_larger_world(folder, launched)


def check_mesh_order(folder, launched):
    """A mesh that lies over two hosts the other way gives the same, from other places."""
    mesh = {"world_size": 4, "mesh": {"dp": 2, "tp": 2},
            "inputs": {"x": {"expr": "torch.arange(4.) * (rank + 1)"}},
            "steps": [{"a": {"all_reduce": "x", "group": "tp"}},
                      {"b": {"all_gather": "a", "group": "dp"}}],
            "loss": "(b ** 2).sum() * (rank + 1)", "objective": "sum",
            "subjects": {"reference": "match"}}
    scenario = folder.path / "mesh.json"
    scenario.write_text(json.dumps(mesh))
    result, report = compare(folder, launched, ["run", str(scenario), SCENARIOS[0]], 0,
                             ["--mesh-order", "tp,dp"])
    assert "The mesh of 1 case lay over them as tp,dp." in result.stdout, result.stdout
    assert report["tool"]["mesh_order"] == ["tp", "dp"], report["tool"]
    said = f"all_gather=python:{HERE}/ranks.py:gather_that_says_where"
    for more, address in (((), "10.77.0.1"), (("--mesh-order", "tp,dp"), "10.77.0.2")):
        result = folder.run(
            launched([DISTGRAD, "run", *more, "--subject", said, str(scenario)]))
        assert f"here is {address}" in result.stdout, result.stdout + result.stderr
        address_of = re.search(r"rank 1 is on \S+ \((.*)\)", result.stdout)
        assert address_of and address_of.group(1) == address, result.stdout
    result = folder.run(launched([DISTGRAD, "run", "--mesh-order", "tp,pp", str(scenario)]))
    assert ("run: --mesh-order tp,pp: no case has a mesh of just these axes; there are dp, tp"
            in result.stderr), result.stdout + result.stderr


def torchrun():
    """Two agents on this machine, as on two."""
    def launched(command):
        words = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
                 "--master-port", str(free_port()), "--no-python", *command]
        first, second = ([*words[:3], "--node-rank", rank, *words[3:]] for rank in "01")
        return ["bash", "-c", '"${@:2:$1}" & "${@:$1+2}"; code=$?; wait; exit $code', "-",
                str(len(first)), *second, *first]

    folder = Folder()
    check_run(folder, launched, 1)
    check_larger_world(folder, launched)
    folder.check_all_gone()


def open_mpi():
    """The mpirun that is Open MPI's; another MPI may have the name."""
    for name in ("mpirun.openmpi", "mpirun"):
        if shutil.which(name) and "Open MPI" in subprocess.run(
                [name, "--version"], capture_output=True, text=True).stdout:
            return [name, "--oversubscribe", "-np", "4",
                    *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    return None


def mpi():
    words = open_mpi()
    if not words:
        skip("no Open MPI")
    folder = Folder()
    check_run(folder, lambda command: [*words, *command], 1)
    check_step_among(folder, lambda command: [*words, *command], 4)
    folder.check_all_gone()


def pmi():
    """MPICH's."""
    need("mpiexec.hydra")
    folder = Folder()
    check_run(folder, lambda command: ["mpiexec.hydra", "-n", "4", *command], 1)
    folder.check_all_gone()


def mpi_hosts():
    """From the first of two hosts, by what stands for ssh there."""
    need("ip", root=True)
    if not can_make_hosts() or not Path("/dev/net/tun").exists():
        skip("no hosts can be made here")
    named = "10.78.0.1:2,10.78.0.2:2"
    into = str(HERE / "into_host")
    kinds = {}
    if words := open_mpi():
        kinds["Open MPI"] = [*words, "--host", named, "--mca", "plm_rsh_agent", into]
        for name in ("MASTER_ADDR", "XDG_STATE_HOME", "LAUNCH_TEST"):
            kinds["Open MPI"] += ["-x", name]
    if shutil.which("mpiexec.hydra"):
        kinds["MPI"] = ["mpiexec.hydra", "-n", "4", "-hosts", named, "-launcher", "ssh",
                        "-launcher-exec", into]
    if not kinds:
        skip("no MPI")
    for name, words in kinds.items():
        folder = Folder()
        folder.environment["MASTER_ADDR"] = "10.78.0.1"

        def launched(command):
            line = shlex.join([*words, *command])
            return [str(HERE / "hosts_apart"), "2", "0", f"[[ $HOST_NUMBER != 0 ]] || {line}"]

        result, _ = check_run(folder, launched, 2)
        assert f"On the 4 ranks of {name}: ranks 0-1 on" in result.stdout, result.stdout
        folder.check_all_gone()


def slurm():
    need("srun", "slurmctld", "slurmd", "munged", root=True)
    folder = Folder()
    words = [str(HERE / "slurm_here"), "2", "srun", "-N", "2", "-n", "4"]
    check_run(folder, lambda command: [*words, *command], 2)
    check_step_among(folder, lambda command: [*words, *command], 4)
    folder.check_all_gone()


def on_two_hosts(command):
    """4 ranks by two torchruns, each on a host of its own."""
    words = " ".join([*TORCHRUN, "--nnodes=2", "--nproc-per-node=2", "--master-addr=10.77.0.1",
                      "--master-port=29555"])
    rest = " ".join(f"'{word}'" for word in command)
    return [str(HERE / "two_hosts"),
            *(x for rank in "01" for x in (f"{words} --node-rank={rank} --no-python {rest}",
                                           "--"))][:-1]


def can_make_hosts():
    name = f"dgt{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


def hosts():
    need("ip", root=True)
    if not can_make_hosts():
        skip("no network namespaces can be made here")
    folder = Folder()
    check_everything(folder, on_two_hosts, 2)
    check_mesh_order(folder, on_two_hosts)
    check_api(folder, on_two_hosts, 4, ["wrong", "collective"])  # launcher_api makes all calls
    folder.check_all_gone()


def wait_for(what, why):
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end, f"{why} does not come"
        time.sleep(0.02)


def by_hand(folder, command, size=4, missing=0):
    """Ranks without a launcher but its variables, so that none ends the others; rank 0's process,
    and the others', but for the last `missing` ones."""
    port = str(free_port())
    started = []
    for rank in range(size - missing):
        folder.environment.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank),
                                  LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                                  MASTER_PORT=port)
        started.append(folder.start(command))
    return started


def reporting(folder, arguments):
    return [DISTGRAD, arguments[0], "--json", str(folder.path / "r.json"), *arguments[1:]]


def failures():
    """A rank that is killed, one that is told to end, a command that is wrong: reported, the same
    exit code everywhere, nothing left."""
    for end, words in ((signal.SIGKILL, "rank 2 on "), (signal.SIGTERM, "was ended by SIGTERM")):
        folder = Folder()
        started = by_hand(folder, reporting(folder, SLEEPING))
        wait_for((folder.path / "mark").exists, "the sleeping rank")
        started[2].send_signal(end)
        began = time.monotonic()
        outputs = [process.communicate(timeout=100) for process in started]
        assert words in outputs[0][1], outputs[0]
        codes, of_ended = [p.returncode for p in started], -9 if end == signal.SIGKILL else 143
        assert codes == [3, 3, of_ended, 3], codes
        assert json.loads((folder.path / "r.json").read_text())["cases"] == []
        assert all(not outputs[rank][0] and not outputs[rank][1] for rank in (1, 3)), outputs
        print(f"{end.name}: all ended after {time.monotonic() - began:.1f} s")
        folder.check_all_gone()
    check_lost_audit()
    check_start_that_fails()
    folder = Folder()
    started = by_hand(folder, reporting(folder, ["run", "--no-such-option"]))
    outputs = [process.communicate(timeout=100) for process in started]
    assert [p.returncode for p in started] == [2] * 4, outputs
    assert not any(o[0] or o[1] for o in outputs[1:]), outputs
    folder.check_all_gone()


def check_start_that_fails():
    """A secret that is too short ends each rank at once, and a missing rank all at the time-out."""
    for name, value, size, codes, words in (
            ("DISTGRAD_SECRET", "abc", 2, [2, 2], "is too short to be a secret"),
            ("DISTGRAD_LAUNCH_TIMEOUT", "2", 3, [3, 3], "rank 2 of the launcher's 3 did not come")):
        folder = Folder()
        folder.environment[name] = value
        started = by_hand(folder, [DISTGRAD, "run", SCENARIOS[-1]], size, missing=size - 2)
        outputs = [process.communicate(timeout=10) for process in started]
        assert [p.returncode for p in started] == codes and words in outputs[0][1], outputs
        folder.check_all_gone()


def check_lost_audit():
    """What was finished of an audit is in the report. A broadcast, that is no product, has here its
    first trial alone; it is through before products with zeros are tried, where a rank sleeps."""
    folder = Folder()
    subject = f"broadcast=reference+all_reduce=python:{HERE}/ranks.py:product_that_sleeps_at_zeros"
    others = "groups,root,dim,dtype,shape,cotangent,operand,graph"
    started = by_hand(folder, reporting(folder, ["audit", "--world-size", "4", "--op", "product",
                                                 "--objective", "sum", "--max-timeout", "300",
                                                 "--without", others, subject]))
    wait_for((folder.path / "mark").exists, "the sleeping rank")
    started[2].kill()
    outputs = [process.communicate(timeout=100) for process in started]
    assert [p.returncode for p in started] == [3, 3, -9, 3], outputs
    text = outputs[0][1]
    assert "rank 2 on " in text and "; 1 of 2 collectives were finished" in text, outputs[0]
    report = json.loads((folder.path / "r.json").read_text())
    assert "1 of 2 collectives" in report["ended_early"], report
    assert [row["collective"] for row in report["collectives"]] == ["broadcast"], report
    folder.check_all_gone()


def cable():
    """The link between two hosts is cut in the middle of a case."""
    need("ip", root=True)
    if not can_make_hosts():
        skip("no network namespaces can be made here")
    folder = Folder()
    file = folder.path / "r.json"
    process = folder.start(on_two_hosts([DISTGRAD, SLEEPING[0], "--json",
                                         str(file), *SLEEPING[1:]]))
    wait_for((folder.path / "mark").exists, "the sleeping rank")
    host = next(
        f"dga{pid}" for pid, _ in folder.processes() if Path(f"/run/netns/dga{pid}").exists())
    subprocess.run(["ip", "-n", host, "link", "set", "eth0", "down"], check=True)
    began = time.monotonic()
    output, errors = process.communicate(timeout=120)
    took = time.monotonic() - began
    assert "ranks 2-3 on " in errors and "not heard any more" in errors, output + errors
    assert json.loads(file.read_text())["cases"] == []
    print(next(line for line in errors.splitlines() if line.startswith("distgrad:")))
    print(f"all ended {took:.1f} s after the cable was cut")
    folder.check_all_gone()


API = str(HERE / "api_calls.py")


def check_api(folder, launched, size, names=()):
    """What the calls of api_calls.py came to, which has to be the same on all ranks."""
    folder.environment.update(API_TEST_SIZE=str(size), PYTHONPATH=str(SOURCES / "src/python"))
    result = folder.run(launched([sys.executable, API, str(folder.path), *names]))
    printed = result.stdout + result.stderr
    assert result.returncode == 0, printed
    by_rank = [json.loads((folder.path / f"{rank}.json").read_text()) for rank in range(size)]
    for found in by_rank:
        for one in found.values():
            one.pop("seconds")
    for rank, found in enumerate(by_rank):
        why = f"rank {rank} has another outcome than rank 0: {found} {by_rank[0]}"
        assert found == by_rank[0], why
    found = by_rank[0]
    kinds = {name: one["kind"] for name, one in found.items()}
    expected = {"wrong": "AssertionError", "part": "Report", "larger": "ValueError",
                "raises": "RankError", "hangs": "RankError", "collective": "AssertionError",
                "right": "Report"}
    assert kinds == {name: expected[name] for name in names or expected}, found
    assert found["wrong"]["wrong"] == ["w"], found["wrong"]
    for name, texts in {
            "right": [f"on {size} ranks"],
            "part": ["on 2 ranks"],
            "wrong": [f"rank {size - 1}"],
            "larger": [f"needs {size + 1} ranks", f"has started {size}"],
            "raises": ["rank 2 raised", "no such layer"],
            "hangs": ["rank 1 not done", "in sleeping", "in all_reduce at"],
            "collective": [f"On the {size} ranks of", "FAIL", f"rank {size - 1}"],
    }.items():
        if name in kinds:
            assert all(text in found[name]["text"] for text in texts), found[name]


def check_step_among(folder, launched, size):
    """A wrong step is one on every rank of this launcher."""
    folder.environment.update(API_TEST_SIZE=str(size), PYTHONPATH=str(SOURCES / "src/python"))
    result = folder.run(launched([sys.executable, API, str(folder.path), "wrong"]))
    for rank in range(size):
        assert (folder.path / f"{rank}.json").exists(), result.stdout + result.stderr
        found = json.loads((folder.path / f"{rank}.json").read_text())["wrong"]
        assert found["kind"] == "AssertionError" and found["wrong"] == ["w"], found
        assert f"on {size} ranks" in found["text"], found


def api():
    """The Python API in a script that torchrun has started."""
    folder = Folder()
    check_api(folder,
              lambda command: [*TORCHRUN, "--nproc-per-node", "3", "--master-addr", "127.0.0.1",
                               "--master-port", str(free_port()), "--no-python", *command], 3)
    folder.check_all_gone()


def api_failures():
    """Calls of the Python API that cannot come to an end."""
    check_lost_caller()
    check_different_calls()


def callers(folder, what):
    """3 processes without a launcher but its variables."""
    folder.environment.update(PYTHONPATH=str(SOURCES / "src/python"), DISTGRAD_LAUNCH_TIMEOUT="60")
    return by_hand(folder, [sys.executable, API, str(folder.path), what], 3)


def check_lost_caller():
    """A process that is killed in the middle of a step: the others are told at once, and nothing is
    left."""
    folder = Folder()
    started = callers(folder, "sleeping")
    wait_for((folder.path / "mark").exists, "the sleeping rank")
    started[1].kill()
    outputs = [started[rank].communicate(timeout=60) for rank in (0, 2)]
    for rank in (0, 2):
        assert (folder.path / f"{rank}.json").exists(), outputs
        found = json.loads((folder.path / f"{rank}.json").read_text())["sleeping"]
        assert found["kind"] == "RankError" and "rank 1 died" in found["text"], found
    started[1].communicate()
    folder.check_all_gone()


def check_different_calls():
    folder = Folder()
    outputs = [process.communicate(timeout=100) for process in callers(folder, "differently")]
    for rank in range(3):
        assert (folder.path / f"{rank}.json").exists(), outputs
        found = json.loads((folder.path / f"{rank}.json").read_text())["differently"]
        assert found["kind"] == "LaunchError", found
        assert "rank 1 calls check_step(sleeping, world_size=2)" in found["text"], found
    folder.check_all_gone()


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return min(s.getsockname()[1], 60000)


PARTS = {part.__name__: part for part in (torchrun, api, api_failures, mpi, pmi, mpi_hosts, slurm,
                                          hosts, failures, cable)}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
    print("ok")
