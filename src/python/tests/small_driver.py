"""A small driver for tests: starts the rank program and speaks docs/protocol.md with it, without
any patience."""

import os
import socket
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "distgrad" / "ranks" / "__main__.py"
sys.path.insert(0, str(PROGRAM.parents[2]))

import torch  # noqa: E402

from distgrad.ranks.messages import Message, MessageWriter  # noqa: E402
from small_frames import Channel, packed  # noqa: E402

OUTPUT_BYTES = 16 << 20

BOARD_BYTES = 8 + (24 + 4096) * 1024


def memfd(size):
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Driver:
    """Starts the rank program."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "--zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        theirs.close()
        self.socket = ours
        self.control = Channel(os.dup(ours.fileno()))
        self.ready = self.event()

    def event(self):
        return receive(self.control)

    def send(self, descriptors=(), **request):
        socket.send_fds(self.socket, [packed(request, len(descriptors))], list(descriptors))

    def fork(self, worker, rank, world_size, board, role="rank"):
        ours, theirs = socket.socketpair()
        output = memfd(OUTPUT_BYTES)
        descriptors = [theirs.fileno(), board, output]
        self.send(descriptors, kind="fork", worker=worker, role=role, rank=rank,
                  world_size=world_size)
        theirs.close()
        return Rank(ours, output, self.event())

    def team(self, size):
        board = memfd(BOARD_BYTES)
        return [self.fork(i + 1, i, size, board) for i in range(size)], board

    def run(self, size, cases):
        """The replies to `cases`, each a dict for Rank.request: a list by case, by rank. On new
        ranks, which end with it."""
        ranks, _ = self.team(size)
        replies = []
        for case in cases:  # one at a time: after an error nothing more is read
            for rank in ranks:
                rank.request(**case)
            replies.append([Reply(*rank.reply()) for rank in ranks])
            errors = [reply["error"] for reply in replies[-1] if "error" in reply]
            assert not errors, (case["subject"], errors)
        self.end(ranks)
        return replies

    def end(self, ranks):
        for rank in ranks:
            rank.channel.close()
        for _ in ranks:
            assert self.event()["kind"] == "exited"

    def close(self):
        self.control.close()
        self.socket.close()
        return self.process.wait(timeout=20)


class Rank:
    def __init__(self, data_socket, output, forked):
        self.socket, self.output, self.forked = data_socket, output, forked
        self.channel = Channel(data_socket.detach())
        self.id = 0

    def request(self, program, subject="python:reference", weights=None, **more):
        """In `program` tensors may stand for themselves."""
        self.id += 1
        writer = MessageWriter()
        weights = torch.tensor(weights or [1.0] * program["world_size"])
        header = {"kind": "run", "id": self.id, "program": program, "subject": subject,
                  "backend": "gloo", "weights": weights, **more}
        os.write(self.channel.fileno(), packed(placed(header, writer), 0, writer))

    def reply(self):
        """(header, frame)."""
        frame = receive_frame(self.channel)
        return frame.header, frame


class Reply:
    """The header, its tensors in their places."""

    def __init__(self, header, frame):
        self._header = {"output": "", **header}
        self._frame = frame

    def __getitem__(self, key):
        return self._read(self._header[key])

    def __contains__(self, key):
        return key in self._header

    def _read(self, value):
        if isinstance(value, dict) and value.keys() == {"shape", "at"}:
            return self._frame.tensor(value)
        if isinstance(value, dict):
            return {key: self._read(v) for key, v in value.items()}
        return [self._read(v) for v in value] if isinstance(value, list) else value


def message_of(program):
    """A request for a case of `program`, as a rank gets it."""
    writer = MessageWriter()
    header = {"kind": "run", "id": 1, "subject": "", "backend": "gloo", "program": program,
              "weights": torch.ones(program["world_size"])}
    return Message(*writer.message(placed(header, writer)))


def placed(value, writer):
    if isinstance(value, torch.Tensor):
        return writer.tensor(value)
    if isinstance(value, dict):
        value = {"pointer": "", **value} if "text" in value else value
        return {key: placed(v, writer) for key, v in value.items()}
    return [placed(v, writer) for v in value] if isinstance(value, (list, tuple)) else value


def receive_frame(channel):
    while (frame := channel.next()) is None:
        if channel.receive(wait=True) is None:
            raise EOFError
    return frame


def receive(channel):
    return receive_frame(channel).header


class DriverTest(unittest.TestCase):
    """Tests that share one rank program."""

    @classmethod
    def setUpClass(cls):
        cls.driver = Driver()

    @classmethod
    def tearDownClass(cls):
        assert cls.driver.close() == 0
