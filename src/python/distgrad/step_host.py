"""Starts a step's processes on this machine. Without a launcher these are all. With one, each rank
is a child of the launcher's process of the same number, and the single run is a child of rank 0's,
where all results come together."""

import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

from .nesting import IN_RANK

START_S = 120  # for importing torch on a busy machine
_GRACE_S = 1.0  # for others' failures after the first, which may be an echo
_STACKS_S = 5.0  # for the stacks of all if one hangs
_POLL_S = 0.01
_PROGRAM = ("import json, sys; sys.path[:] = json.loads(sys.argv[3]); from distgrad.step_process"
            " import main; main(sys.argv[1], sys.argv[2])")


_runs = itertools.count()


class StartError(RuntimeError):
    """The process that starts the ranks failed."""


def write_request(folder, request):
    """Writes what step_process.main reads."""
    with open(os.path.join(folder, "request"), "wb") as file:
        pickle.dump(request, file)


class StepProcess:
    """Runs step_process.main in a new process. However it ends, no process is left."""

    def __init__(self, folder, request, kept=()):
        """`kept` holds descriptors that the ranks inherit."""
        self._folder = folder
        write_request(folder, request)
        environment = dict(os.environ, **{IN_RANK: "1"})
        environment.setdefault("OMP_NUM_THREADS", "1")
        path = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))] + sys.path
        command = [sys.executable, "-c", _PROGRAM, folder, str(os.getpid()), json.dumps(path)]
        with open(self._path("printed"), "wb") as printed:
            # It gets its own session, as Ctrl-C is for this process to handle.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed,
                                             stderr=subprocess.STDOUT, env=environment,
                                             pass_fds=kept, start_new_session=True)

    def wait(self, seconds):
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StartError(
                f"the process that starts the ranks was not done after {START_S} s more") from None

    def is_over(self):
        return self._process.poll() is not None

    def has(self, name):
        return os.path.exists(self._path(name))

    def tell(self, word):
        """Makes the file that child_processes.py looks for."""
        open(self._path(word), "w").close()

    def failures(self):
        """Returns what failed, once the process is over. Raises StartError if it failed itself."""
        if not self.has("outcome"):
            with open(self._path("printed"), errors="replace") as file:
                raise StartError("the process that starts the ranks failed:\n" +
                                 file.read().strip())
        with open(self._path("outcome")) as file:
            return json.load(file)

    def end(self):
        if self._process.poll() is None:
            self._process.terminate()  # it ends its children, and waits for them
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its children are killed with it
                self._process.wait()

    def _path(self, name):
        return os.path.join(self._folder, name)


def run_here(folder, request):
    """Runs all of a step's processes here and returns what failed. Raises StartError."""
    process = StepProcess(folder, request)
    try:
        process.wait(request["timeout_s"] + START_S)
    finally:
        process.end()
    return process.failures()


class Member:
    """Runs this process's part in the step of a launcher's ranks: its rank, and on rank 0 also the
    single run."""

    def __init__(self, team, folder, request, port, listening=None):
        self.rank = team.rank
        self._folder, self._is_reported = folder, False
        self._names = [f"rank-{self.rank}"]
        if self.rank == 0 and request["single"] is not None:
            self._names.append("single")
        place = {"host": team.store, "port": port, "interface": team.interface,
                 "local_rank": team.local_rank, "local_size": team.local_size,
                 "listening": listening}
        self._process = StepProcess(folder, {**request, "names": self._names, "place": place},
                                    [] if listening is None else [listening])

    def news(self):
        """Returns (what failed, the files {name: bytes} for rank 0) once, when it is there; else
        None."""
        if self._is_reported:
            return None
        if self._process.has("outcome") or self._process.is_over():
            failures = self._outcome()
            self._is_reported = True
            return failures, {} if failures else self._files()
        return None

    def be_late(self):
        """Makes processes that are not done report where they are."""
        self._process.tell("late")

    def end(self):
        self._process.end()

    def _outcome(self):
        try:
            return self._process.failures()
        except StartError as error:
            return [{"process": self._names[0], "kind": "crash", "text": str(error), "output": ""}]

    def _files(self):
        if self.rank == 0:
            return {}
        name = os.path.join("ranks", f"rank_{self.rank}.safetensors")
        return {name: Path(self._folder, name).read_bytes()} if self._process.has(name) else {}


class Follower:
    """Does the other ranks' part while rank 0 leads a check_step."""

    def __init__(self, team, folder, request):
        self._team, self._folder, self._request, self._run = team, folder, request, 0
        self._member = None

    def take(self, message):
        if message[0] == "late" and self._member:
            return self._member.be_late()
        self.end()
        if message[0] == "run":
            self._start(*message[1:])

    def _start(self, run, port, more):
        self._run = run
        folder = os.path.join(self._folder, str(run))
        os.mkdir(folder)
        self._member = Member(self._team, folder, {**self._request, **more}, port)

    def turn(self):
        news = self._member and self._member.news()
        if news:
            self._team.send(0, ("outcome", self._run, *news))

    def end(self):
        if self._member:
            self._member.end()
        self._member = None


class Lead:
    """Leads one run on rank 0: finds what failed on any rank, and collects the files of all in its
    folder."""

    def __init__(self, team, folder, request):
        self._team, self._folder, self._request = team, folder, request
        self._run = next(_runs)
        self._pending = set(range(request["world_size"]))
        self._failures, self._ending, self._since = [], None, 0.0

    def run(self):
        family = socket.AF_INET6 if ":" in self._team.store else socket.AF_INET
        listening = socket.create_server((self._team.store, 0), family=family,
                                         backlog=socket.SOMAXCONN)
        with listening:
            port = listening.getsockname()[1]
            more = {key: self._request[key] for key in ("wrong", "right", "timeout_s")
                    if key in self._request}
            self._send(("run", self._run, port, more))
            self._member = Member(self._team, self._folder, self._request, port, listening.fileno())
        try:
            self._watch()
        finally:
            self._send(("end",))
            self._member.end()
        return self._with_finished()

    def _watch(self):
        end = time.monotonic() + self._request["timeout_s"] + START_S
        while self._pending:
            news = self._member.news()
            if news:
                self._take(0, *news)
            for rank, message in self._team.receive(_POLL_S):
                if message is None:
                    if rank < self._request["world_size"]:
                        self._take(rank, [_gone(rank)], {})
                elif message[:2] == ("outcome", self._run):  # not of the previous run
                    self._take(rank, *message[2:])
            if self._failures and not self._ending:
                self._ending = ("late" if all(f["kind"] == "hang" for f in self._failures)
                                else "grace")
                end = min(end,
                          time.monotonic() + (_STACKS_S if self._ending == "late" else _GRACE_S))
                if self._ending == "late":
                    self._tell_to_be_late()
            if time.monotonic() > end:
                if self._ending != "grace":
                    break
                # The others report where they are, since the failed one may have waited for them.
                self._ending, end = "others", time.monotonic() + _STACKS_S
                self._tell_to_be_late()
        if self._pending and not self._failures:
            raise StartError(f"ranks {sorted(self._pending)} were not done after {START_S} s more")

    def _tell_to_be_late(self):
        self._send(("late",))
        self._member.be_late()

    def _take(self, rank, failures, files):
        self._pending.discard(rank)
        if self._ending == "others":  # ended because another failed
            failures = [{**f, "kind": "unfinished"} if f["kind"] == "hang" else f
                        for f in failures if f["process"] != "single"]
        self._failures += failures
        for name, content in files.items():
            path = os.path.join(self._folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + "~", "wb") as file:
                file.write(content)
            os.rename(path + "~", path)

    def _send(self, message):
        for rank in range(1, self._request["world_size"]):
            self._team.send(rank, message)

    def _with_finished(self):
        """Adds who has finished, which only rank 0 knows."""
        failed = {failure["process"] for failure in self._failures}
        done = [f"rank-{rank}" for rank in range(self._request["world_size"])
                if rank not in self._pending and f"rank-{rank}" not in failed]
        hangs = [failure for failure in self._failures if failure["kind"] == "hang"]
        for failure in hangs:  # those that were told to be late began later than the first
            failure.update(finished=done, seconds=max(one["seconds"] for one in hangs))
        return self._failures


def _gone(rank):
    return {"process": f"rank-{rank}", "kind": "crash", "output": "",
            "text": "the launcher's process has ended, or its host is not reached any more"}
