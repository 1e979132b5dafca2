"""Ranks for the tests of gradcheck: forked once from a process that has imported torch, they do what a function says.

    results = run(body, world_size)      # by rank, what body() returned: picklable
"""

import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distgrad.ranks import process  # noqa: E402


def run(body, world_size=4, timeout_s=280, may_die=()):
    """What body() returned on each rank; RuntimeError with the traceback where one raised or is not done. None for a rank
    that may die."""
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        needed = [rank for rank in range(world_size) if rank not in may_die]
        ranks = {_fork(body, rank, world_size, port, folder, needed): rank for rank in range(world_size)}
        waited = {pid for pid, rank in ranks.items() if rank in needed}
        try:
            _wait_for(waited, time.monotonic() + timeout_s)
        finally:
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        outcomes = [None if rank in may_die else _result(folder, rank) for rank in range(world_size)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, RuntimeError)]
    if errors:
        raise RuntimeError("\n".join(map(str, sorted(errors, key=lambda e: "Connection closed" in str(e)))))
    return outcomes


def _fork(body, rank, world_size, port, folder, needed):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        process.wait_for_a_free_core()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        try:
            outcome = body()
        except BaseException:
            outcome = RuntimeError(f"rank {rank}: {traceback.format_exc()}")
        with open(os.path.join(folder, f"{rank}~"), "wb") as file:
            pickle.dump(outcome, file)
        os.rename(os.path.join(folder, f"{rank}~"), os.path.join(folder, str(rank)))
        _wait_for_files(folder, needed)  # others may need this end of their connections
        status = 0
    finally:
        os._exit(status)


def _wait_for_files(folder, ranks):
    end = time.monotonic() + 100
    while time.monotonic() < end and not all(os.path.exists(os.path.join(folder, str(r))) for r in ranks):
        time.sleep(0.01)


def _wait_for(pids, end):
    while pids and time.monotonic() < end:
        for pid in list(pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                pids.discard(pid)
        time.sleep(0.01)


def _result(folder, rank):
    try:
        with open(os.path.join(folder, str(rank)), "rb") as file:
            outcome = pickle.load(file)
    except FileNotFoundError:
        return RuntimeError(f"rank {rank} is not done, or died")
    return outcome


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
