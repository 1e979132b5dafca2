"""Joins the processes of torchrun, Slurm or MPI that call the Python API together. Rank 0's leads:
all return or raise what it does. Both ends of a connection prove that they know the job's secret
(docs/clusters.md) before anything is read that could do harm."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import time
from multiprocessing import connection

from .driver import executable
from .words import ranks_text

_PROOF_S = 5  # for a client to prove itself
_CONNECT_S = 2
_RETRY_S = 0.1
_POLL_S = 0.01

_unknown = object()
_team = _unknown


class LaunchError(RuntimeError):
    """The launcher's processes did not meet, one is gone, or they do not make the same call."""


def team():
    """Returns the Team of this process's launcher, or None if no launcher has started several
    processes. The first call waits for all of them. DISTGRAD_LAUNCHER=none makes a process no rank
    for distgrad. Raises LaunchError."""
    global _team
    if _team is _unknown:
        place = _asked_of_driver()
        _team = None if place is None else Team(place)
    return _team


def ranks_by_default():
    """Returns 4, or the number of processes that a launcher has started."""
    there = team()
    return there.size if there else 4


def _asked_of_driver(*words):
    ran = subprocess.run([os.path.abspath(executable()), "--launched-place", *words],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode:
        raise LaunchError(ran.stderr.strip().removeprefix("distgrad: "))
    return json.loads(ran.stdout)


class Team:
    def __init__(self, place):
        self.rank, self.size, self.launcher = place["rank"], place["size"], place["launcher"]
        self.local_rank = place["local_rank"] if place["local_rank"] >= 0 else self.rank
        self.local_size = place["local_size"] or self.size
        self._wait_s = place["wait_s"]
        self._lost = None  # why this process can no longer reach the others
        self._connections = _others(place) if self.rank == 0 else {0: _leader(place)}
        # Holds the addresses of this process, and of rank 0 as seen from here.
        self.own, self.store = self._share_addresses()
        self.interface = _asked_of_driver(self.own)

    def agree(self, call, lead, follow):
        """Runs lead() on rank 0 and follow.take(message), follow.turn(), follow.end() on the
        others, which all `call` the same. Returns or raises everywhere what lead returns or raises.
        Raises LaunchError if a process is lost or calls something else."""
        __tracebackhide__ = True
        if self._lost:
            self.close()
            raise LaunchError(self._lost)
        try:
            return self._lead(call, lead) if self.rank == 0 else self._follow(call, follow)
        except (OSError, EOFError, LaunchError) as error:
            if not isinstance(error, LaunchError):
                error = _lost("another rank" if self.rank == 0 else "rank 0", error)
            self._lost = str(error)
            self.close()
            raise error from None

    def send(self, rank, message):
        """Sends to a rank that may be gone: receive() reports that."""
        if rank in self._connections:
            with contextlib.suppress(OSError):
                self._connections[rank].send(message)

    def receive(self, seconds):
        """Returns [(rank, message)] of the others. A message of None means that the process is
        gone."""
        found = []
        rank_of = {there: rank for rank, there in self._connections.items()}
        for there in connection.wait(list(rank_of), seconds):
            try:
                found.append((rank_of[there], there.recv()))
            except (OSError, EOFError):
                found.append((rank_of[there], None))
                self._lost = str(_lost(f"rank {rank_of[there]}", EOFError()))
                there.close()
                del self._connections[rank_of[there]]
        return found

    def close(self):
        for there in self._connections.values():
            there.close()
        self._connections = {}

    def _lead(self, call, lead):
        __tracebackhide__ = True
        try:
            self._await_calls(call)
            result = lead()
        except BaseException as error:
            self._send_all(("raised", error))
            raise
        self._send_all(("result", result))
        return result

    def _send_all(self, message):
        for rank in list(self._connections):
            try:
                self.send(rank, message)
            except Exception:  # an exception that cannot be pickled
                self.send(rank, ("raised", LaunchError(f"rank 0 raised {type(message[1]).__name__}:"
                                                       f" {message[1]}")))

    def _await_calls(self, call):
        missing = set(self._connections)
        end = time.monotonic() + self._wait_s
        while missing:
            if time.monotonic() > end:
                raise LaunchError(f"{ranks_text(sorted(missing))} did not call {call[0]} within"
                                  f" {self._wait_s} s, as rank 0 has: call it on all ranks, or set"
                                  " DISTGRAD_LAUNCHER=none, and each process that calls it starts"
                                  " its own")
            for rank, message in self.receive(1):
                if message is None:
                    raise LaunchError(self._lost)
                if message[0] != "call":  # sent before the previous call ended
                    continue
                if message[1] != call:
                    raise LaunchError(f"rank {rank} calls {_call_text(message[1])} and rank 0"
                                      f" {_call_text(call)}: all processes of a launcher are to"
                                      " make the same calls in the same order")
                missing.discard(rank)

    def _follow(self, call, follow):
        __tracebackhide__ = True
        rank0 = self._connections[0]
        rank0.send(("call", call))
        try:
            while True:
                if rank0.poll(_POLL_S):
                    message = rank0.recv()
                    if message[0] == "result":
                        return message[1]
                    if message[0] == "raised":
                        raise message[1]
                    follow.take(message)
                follow.turn()
        finally:
            follow.end()

    def _share_addresses(self):
        if self.rank:
            try:
                told = self._connections[0].recv()
            except (OSError, EOFError) as error:
                raise _lost("rank 0", error) from None
            if isinstance(told, LaunchError):
                raise told
            return told
        ends = {}
        for rank, there in self._connections.items():
            with contextlib.suppress(OSError):  # the first to talk to it reports that
                ends[rank] = _ends(there)
        if not ends:
            raise _lost(ranks_text(sorted(self._connections)), EOFError())
        own = next((ours for ours, theirs in ends.values() if not _is_loopback(theirs)),
                   next(iter(ends.values()))[0])
        for rank, (ours, theirs) in ends.items():
            # A process on this machine may have come by an address that means nothing elsewhere.
            self.send(rank, (own, own) if _is_loopback(theirs) else (theirs, ours))
        return own, own


def _call_text(call):
    return f"{call[0]}({', '.join(map(str, call[1:]))})"


def _lost(who, error):
    """Returns the error for a process that cannot be reached any more."""
    reset = isinstance(error, (EOFError, ConnectionResetError, BrokenPipeError))
    why = "its process has ended, or was killed" if reset else str(error)
    return LaunchError(f"{who} is lost: {why}. What it printed last, in the launcher's output or"
                       " its log of that rank, says more")


def _is_loopback(address):
    return address.startswith("127.") or address == "::1"


def _ends(there):
    with socket.socket(fileno=os.dup(there.fileno())) as held:
        return held.getsockname()[0], held.getpeername()[0]


def _others(place):
    """Listens until all others have come. Returns {rank: connection}."""
    listening = _listening(place)
    found = {}
    end = time.monotonic() + place["wait_s"]
    with listening:
        while len(found) < place["size"] - 1:
            listening.settimeout(max(0.01, end - time.monotonic()))
            try:
                held, _ = listening.accept()
            except TimeoutError:
                raise _not_come(found, place) from None
            there = _proven(held, place, asks=True)
            if there:
                with contextlib.suppress(OSError, EOFError):  # the process ended at once
                    found[there.recv()] = there
    return found


def _not_come(found, place):
    """Tells those who have come who is missing, as they wait for an answer. Returns the error."""
    missing = sorted(set(range(1, place["size"])) - set(found))
    error = LaunchError(f"{ranks_text(missing)} did not come to rank 0 within {place['wait_s']} s:"
                        f" {'it has' if len(missing) == 1 else 'they have'} ended before, as the"
                        " launcher's output may say, or did not call distgrad: call it on all"
                        " ranks, or set DISTGRAD_LAUNCHER=none, and each process that calls it"
                        " starts its own")
    for there in found.values():
        with contextlib.suppress(OSError):
            there.send(error)
    return error


def _listening(place):
    family = socket.AF_INET6 if ":" in place["listen"] else socket.AF_INET
    for port in range(place["first_port"], place["first_port"] + place["ports"]):
        with contextlib.suppress(OSError):
            return socket.create_server((place["listen"], port), family=family,
                                        backlog=socket.SOMAXCONN)
    raise LaunchError(
        f"rank 0 can listen at no port from {place['first_port']} to {port} of {place['listen']}")


def _leader(place):
    end, stranger = time.monotonic() + place["wait_s"], ""
    while time.monotonic() < end:
        for address in place["addresses"]:
            for port in range(place["first_port"], place["first_port"] + place["ports"]):
                try:
                    held = socket.create_connection((address, port), _CONNECT_S)
                except OSError:
                    continue
                # The socket connected to itself: both ends took the same port.
                if held.getsockname() == held.getpeername():
                    held.close()
                    continue
                there = _proven(held, place, asks=False)
                if there:
                    there.send(place["rank"])
                    return there
                stranger = ("; who listens there does not know this job's secret: set"
                            " DISTGRAD_SECRET to the same for all ranks")
        time.sleep(_RETRY_S)
    raise LaunchError(f"rank {place['rank']} found no rank 0 at {' or '.join(place['addresses'])},"
                      f" ports {place['first_port']} to {place['first_port'] + place['ports'] - 1},"
                      f" within {place['wait_s']} s{stranger}")


def _proven(held, place, asks):
    """Returns a connection whose other side knows the key, too, or None. Closes `held`."""
    with held:
        held.settimeout(None)
        _watch(held)
        _limit_waiting(held, _PROOF_S)
        there = connection.Connection(os.dup(held.fileno()))
        key = place["key"].encode()
        steps = (connection.deliver_challenge, connection.answer_challenge)
        try:
            for step in steps if asks else reversed(steps):
                step(there, key)
        except Exception:  # whatever a stranger sends
            there.close()
            return None
        _limit_waiting(held, 0)
        return there


def _limit_waiting(held, seconds):
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _watch(held):
    """Makes the loss of a host or network show within about five seconds, as the driver does
    (launched/addresses.h)."""
    held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1),
                          (socket.TCP_KEEPCNT, 4), (socket.TCP_USER_TIMEOUT, 5000)):
        held.setsockopt(socket.IPPROTO_TCP, option, value)
