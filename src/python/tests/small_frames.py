"""Frames of docs/protocol.md for the small driver."""

import ctypes
import fcntl
import json
import math
import mmap
import os
import socket
import struct
from collections import deque

import torch

# Packs magic, flags, bytes of the header, descriptors, bytes of tensor data.
_PREFIX = struct.Struct("<4sIIIQ")
_MAGIC = b"DGF1"
_SHARED = 1
_MOST_HEADER = 64 << 20
_MOST_INLINE = 64 << 20
_MOST_DESCRIPTORS = 16
_SHARE_FROM = 1 << 20
_RECEIVE = 256 << 10
_CONTROL = socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)
# From linux/fcntl.h. Python's fcntl has these names only if its C library had them.
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SIZE_SEALS = 0x2 | 0x4  # shrink, grow
_SEALS = _SIZE_SEALS | 0x8  # write


class BadFrame(Exception):
    """The bytes are no frame. Nothing on this stream can be trusted any more."""


class Frame:
    """Holds a received frame. Its tensors are views that share its memory, which nobody else can
    access."""

    def __init__(self, header, data, descriptors):
        self.header = header
        self.descriptors = descriptors
        self._numbers = (torch.frombuffer(data, dtype=torch.float64) if len(data)
                         else torch.zeros(0, dtype=torch.float64))

    def tensor(self, place):
        """Returns the float64 tensor that {"shape", "at"} describes. Raises BadFrame."""
        shape, at = place["shape"], place["at"]
        count = math.prod(shape)
        if at < 0 or count < 0 or at + count > self._numbers.numel():
            raise BadFrame("a tensor lies beyond the end of the frame's data")
        return self._numbers[at : at + count].reshape(shape)

    def numbers(self, place):
        return self.tensor(place).tolist()


class FrameWriter:
    """Collects the tensors of one frame while its header is made."""

    def __init__(self):
        self._tensors = []
        self._count = 0

    def tensor(self, x):
        """Copies `x`, of any dtype and layout, into the frame's data as float64, and returns what
        stands for it in the header."""
        packed = x.detach().cpu().to(torch.float64, copy=True).contiguous()
        place = {"shape": list(x.shape), "at": self._count}
        self._tensors.append(packed)
        self._count += packed.numel()
        return place

    def frame(self, header):
        """Returns (bytes, descriptor or None). The caller closes the descriptor once the bytes are
        sent."""
        text = _utf8(json.dumps(header, allow_nan=False, ensure_ascii=False))
        size = 8 * self._count
        if size < _SHARE_FROM:
            prefix = _PREFIX.pack(_MAGIC, 0, len(text), 0, size)
            return b"".join([prefix, text, *map(_bytes_of, self._tensors)]), None
        prefix = _PREFIX.pack(_MAGIC, _SHARED, len(text), 1, size)
        return prefix + text, _sealed_file(self._tensors)


def _utf8(text):
    """Encodes as UTF-8, with U+FFFD for half a surrogate pair, which a user's exception may
    contain."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _bytes_of(packed):
    return ctypes.string_at(packed.data_ptr(), 8 * packed.numel()) if packed.numel() else b""


def _sealed_file(tensors):
    fd = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    for packed in tensors:
        if not packed.numel():
            continue
        left = memoryview((ctypes.c_char * (8 * packed.numel())).from_address(packed.data_ptr()))
        while len(left):
            left = left[os.write(fd, left) :]
    fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    return fd


class Channel:
    """Carries frames over one end of a stream socket pair. Not thread-safe."""

    def __init__(self, fd):
        self._socket = socket.socket(fileno=fd)
        self._received = bytearray()
        self._descriptors = deque()
        self._queued = []
        self.queued_bytes = 0

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
        self._socket.close()

    def send(self, frame):
        self.queue(frame)
        self.flush()

    def queue(self, frame):
        """Queues what FrameWriter.frame returned."""
        self._queued.append(frame)
        self.queued_bytes += len(frame[0])

    def flush(self):
        """Sends what is queued. Raises OSError (BrokenPipeError) if the other side is gone."""
        queued, self._queued, self.queued_bytes = self._queued, [], 0
        plain = []
        for data, fd in queued:
            if fd is None:
                plain.append(data)
                continue
            self._socket.sendall(b"".join(plain))
            plain = []
            self._send_with(fd, data)
        self._socket.sendall(b"".join(plain))

    def _send_with(self, fd, data):
        try:
            sent = socket.send_fds(self._socket, [data], [fd])
        finally:
            os.close(fd)
        self._socket.sendall(memoryview(data)[sent:])

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
        header = _parsed(self._received[_PREFIX.size : data_at])
        data = self._received[data_at:end]
        del self._received[:end]
        own = [self._descriptors.popleft() for _ in range(descriptors)]
        if shared and data_bytes:
            data = _mapped(own.pop(0), data_bytes)
        return Frame(header, data, own)

    @staticmethod
    def _check(magic, flags, header_bytes, descriptors, data_bytes):
        shared = flags & _SHARED
        if magic != _MAGIC or flags & ~_SHARED:
            raise BadFrame("this is not a frame")
        if header_bytes > _MOST_HEADER or descriptors > _MOST_DESCRIPTORS or data_bytes % 8:
            raise BadFrame("a frame's sizes are impossible")
        if (shared and descriptors == 0) or (not shared and data_bytes > _MOST_INLINE):
            raise BadFrame("a frame's data is not where it should be")


def _parsed(text):
    try:
        header = json.loads(text)
    except ValueError as error:
        raise BadFrame(f"a frame's header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadFrame("a frame's header is no object")
    return header


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
