"""Runs a `distgrad` command in a launcher's processes together: rank 0's is the driver, the others'
are its ranks."""

import contextlib
import os
import shutil
import subprocess

from .driver import rank_of_launcher, start

_END_S = 10


def on_all(team, call, lead):
    """Runs lead() here. If a launcher has started several processes, rank 0 runs it for all of
    them."""
    __tracebackhide__ = True
    return team.agree(call, lead, _Follower()) if team else lead()


def others_start(team, folder=None):
    """Returns a function for driver.call that makes the others take part and sends them the files
    of `folder`, if it exists. Returns None without a launcher."""
    if team is None:
        return None

    def tell():
        files = {}
        if folder and os.path.isdir(folder):
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "rb") as file:
                    files[name] = file.read()
        for rank in range(1, team.size):
            team.send(rank, ("command", folder, files))

    return tell


class _Follower:
    def __init__(self):
        self._process, self._made = None, None

    def take(self, message):
        _, folder, files = message
        if files:
            self._bring(folder, files)
        self._process = start(rank_of_launcher(), True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)

    def turn(self):
        pass

    def end(self):
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            if self._process.poll() is None:
                self._process.terminate()  # it ends its rank
                self._process.wait()
        if self._made:
            shutil.rmtree(self._made, ignore_errors=True)

    def _bring(self, folder, files):
        """Writes the files to rank 0's folder, as subjects are found at the same paths on all
        hosts. It exists already on rank 0's host."""
        top = os.path.dirname(folder)
        try:
            os.mkdir(top, 0o700)
            self._made = top
        except FileExistsError:
            if os.stat(top).st_uid != os.geteuid():
                raise
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            path = os.path.join(folder, name)
            if not os.path.exists(path):
                with open(f"{path}.{os.getpid()}", "wb") as file:
                    file.write(content)
                os.rename(f"{path}.{os.getpid()}", path)
