"""Frames of docs/protocol.md for the small driver."""

import ctypes
import fcntl
import math
import mmap
import os
import socket
import struct
from collections import deque

import torch

from distgrad.ranks.messages import Message, MessageWriter

# Packs magic, flags, bytes of the header, descriptors, bytes of tensor data.
_PREFIX = struct.Struct("<4sIIIQ")
_MAGIC = b"DGF1"
_SHARED = 1
_MOST_HEADER = 64 << 20
_MOST_INLINE = 64 << 20
_MOST_DESCRIPTORS = 16
_RECEIVE = 256 << 10
_CONTROL = socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)
# From linux/fcntl.h. Python's fcntl has the name only if its C library had it.
_F_GET_SEALS, _SEALS = 1034, 0x2 | 0x4 | 0x8  # shrink, grow, write


class BadFrame(Exception):
    """The bytes are no frame. Nothing on this stream can be trusted any more."""


class Frame(Message):
    """A received message with its descriptors."""

    def __init__(self, text, data, descriptors):
        super().__init__(bytes(text), torch.frombuffer(data, dtype=torch.float64) if len(data)
                         else torch.zeros(0, dtype=torch.float64))
        self.descriptors = descriptors

    def tensor(self, place):
        if place["at"] < 0 or place["at"] + math.prod(place["shape"]) > self.data.numel():
            raise BadFrame("a tensor lies beyond the end of the frame's data")
        return super().tensor(place)


def packed(header, descriptors=0, writer=None):
    """The bytes of a frame whose data follow the header."""
    text, data = (writer or MessageWriter()).message(header)
    prefix = _PREFIX.pack(_MAGIC, 0, len(text), descriptors, 8 * data.numel())
    return prefix + text + ctypes.string_at(data.data_ptr(), 8 * data.numel())


class Channel:
    """Carries frames over one end of a stream socket pair. Not thread-safe."""

    def __init__(self, fd):
        self._socket = socket.socket(fileno=fd)
        self._received = bytearray()
        self._descriptors = deque()

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
        self._socket.close()

    def receive(self, wait):
        """Reads once what is there. Returns True if something came, False if nothing yet, None if
        the stream has ended."""
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            # Not socket.recv_fds, which drops the flags in some versions of Python.
            data, control, _, _ = self._socket.recvmsg(_RECEIVE, _CONTROL, flags)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return None
        self._received += data
        for level, kind, content in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(
                    struct.unpack(f"={len(content) // 4}i", content[:len(content) // 4 * 4]))
        return True if data else None

    def next(self):
        """Returns the next Frame that has arrived whole, or None. Raises BadFrame."""
        if len(self._received) < _PREFIX.size:
            return None
        magic, flags, header_bytes, descriptors, data_bytes = _PREFIX.unpack_from(self._received)
        shared = flags & _SHARED
        self._check(magic, flags, header_bytes, descriptors, data_bytes)
        data_at = _PREFIX.size + header_bytes
        end = data_at + (0 if shared else data_bytes)
        if len(self._received) < end:
            return None
        if len(self._descriptors) < descriptors:
            raise BadFrame("descriptors are missing")
        text = self._received[_PREFIX.size : data_at]
        data = self._received[data_at:end]
        del self._received[:end]
        own = [self._descriptors.popleft() for _ in range(descriptors)]
        if shared and data_bytes:
            data = _mapped(own.pop(0), data_bytes)
        return Frame(text, data, own)

    @staticmethod
    def _check(magic, flags, header_bytes, descriptors, data_bytes):
        shared = flags & _SHARED
        if magic != _MAGIC or flags & ~_SHARED:
            raise BadFrame("this is not a frame")
        if header_bytes > _MOST_HEADER or descriptors > _MOST_DESCRIPTORS or data_bytes % 8:
            raise BadFrame("a frame's sizes are impossible")
        if (shared and descriptors == 0) or (not shared and data_bytes > _MOST_INLINE):
            raise BadFrame("a frame's data is not where it should be")


def _mapped(fd, size):
    try:
        sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS == _SEALS
        if not sealed or os.fstat(fd).st_size < size:
            raise BadFrame("a frame's shared memory is not sealed, or too short")
        # Private and writable, since torch wants writable memory, and nobody else sees a write to
        # it.
        return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
