"""Sends standard output and error of a process that runs users' code into a file that cannot
grow."""

import io
import os
import sys


class _File(io.RawIOBase):
    """Writes to a file of a fixed size. What does not fit goes to its beginning, since of much
    output the end counts."""

    def __init__(self, fd):
        self._fd = fd

    def fileno(self):
        return self._fd

    def writable(self):
        return True

    def write(self, data):
        try:
            return os.write(self._fd, data)
        except PermissionError:  # the file is full
            os.lseek(self._fd, 0, os.SEEK_SET)
            return os.write(self._fd, data)


def print_into(fd):
    """Redirects both streams to `fd`. They write each line at once, so a crash loses nothing and
    lines keep their order."""
    for name, target in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        os.dup2(fd, target)
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(_File(target)), encoding="utf-8",
                                            errors="backslashreplace", line_buffering=True))
