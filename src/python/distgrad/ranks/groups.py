"""Makes the process groups of one rank: torch.distributed's default group, and one for each group
of the programs.

They are real groups, made by torch.distributed, and live as long as the rank. To find each other,
the ranks use rank 0's store, which listens on loopback; its port is published on the board. If
ranks are on several hosts, the environment has the addresses (docs/protocol.md).
"""

import contextlib
import datetime
import os
import socket
import sys
import time

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import board as places
from . import times
from .call import RankGroup
from .transport import Transport

# The driver watches the clock. torch's own timeout is only the last resort against a rank left
# alone.
_TIMEOUT = datetime.timedelta(hours=24)
_WAIT_S = 0.0002
_HOST = os.environ.get("DISTGRAD_STORE_HOST", "127.0.0.1")
_LISTEN = os.environ.get("DISTGRAD_STORE_LISTEN", "127.0.0.1")


class Groups:
    def __init__(self, rank, world_size, board):
        self._rank = rank
        self._world = tuple(range(world_size))
        self._board = board
        self._process_groups = {}  # ranks in group order -> ProcessGroup
        self.transport = None  # known with the first case

    def use(self, backend, device):
        """Selects the backend and device. Call it first in every case; the first call decides.
        Raises NotOffered if this torch lacks them, RuntimeError if the backend changes."""
        if self.transport is None:
            self.transport = Transport(backend, device, self._rank, len(self._world))
        if self.transport.backend != backend:
            raise RuntimeError(
                f"this rank is connected by {self.transport.backend}, not by {backend}")

    def of(self, name, ranks):
        """Returns the group of these global ranks, of which this rank is one. All of them must ask
        in the same order."""
        ranks = tuple(ranks)
        if ranks not in self._process_groups:
            self._board.set_phase(places.CONNECT)
            with times.spent_in("connect"):
                self._connect()
                if ranks not in self._process_groups:
                    self._process_groups[ranks] = _subgroup(ranks, self._rank)
        return RankGroup(name, ranks, ranks.index(self._rank), self._process_groups[ranks])

    def world(self):
        return self.of("", self._world)

    def _connect(self):
        if dist.is_initialized():
            return
        store = self._store()
        dist.init_process_group(self.transport.backend, store=store, rank=self._rank,
                                world_size=len(self._world), timeout=_TIMEOUT)
        self._process_groups[self._world] = dist.group.WORLD

    def _store(self):
        serves = self._rank == 0
        while not serves and self._board.store_port == 0:
            # Rank 0 is up within milliseconds. If it never comes, the driver ends this process.
            time.sleep(_WAIT_S)
        with _muted_errors():
            store = _serving_store() if serves else _client_of(self._board.store_port)
        if serves:
            self._board.store_port = store.port
        # The user's code may look at them, as under torchrun.
        os.environ.update(MASTER_ADDR=_HOST, MASTER_PORT=str(store.port))
        return store


@contextlib.contextmanager
def _muted_errors():
    """Discards standard error: c10d complains there of hosts that have an address and no name. Real
    failures raise."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _client_of(port):
    return dist.TCPStore(_HOST, port, None, False, _TIMEOUT, wait_for_workers=False)


def _serving_store():
    """Listens on one address only. A TCPStore by itself listens on every address, for whoever
    comes."""
    family = socket.AF_INET6 if ":" in _LISTEN else socket.AF_INET
    listening = socket.create_server((_LISTEN, 0), family=family, backlog=socket.SOMAXCONN)
    port = listening.getsockname()[1]
    return dist.TCPStore(_HOST, port, None, True, _TIMEOUT, wait_for_workers=False,
                         master_listen_fd=listening.detach())


def _subgroup(ranks, rank):
    """Makes a group whose ranks are numbered in the order of `ranks`. Only its members call it.

    It replaces new_group, which sorts the ranks before torch 2.12 or so, and puts into the group's
    name how many groups this process has. Members with different numbers of groups would wait for
    each other under different names."""
    backend, store = c10d._world.pg_map[dist.group.WORLD]
    group, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(rank),
        list(ranks),
        c10d.Backend(backend),
        store,
        "distgrad " + "_".join(map(str, ranks)),
        timeout=_TIMEOUT,
    )
    c10d._world.pg_group_ranks[group] = {global_rank: place
                                         for place, global_rank in enumerate(ranks)}
    return group
