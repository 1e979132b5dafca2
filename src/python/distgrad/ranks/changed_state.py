"""Restores after the case what a user's function changed for everybody, and reports it, since in a
training script the change would reach later code too. What a module sets at import is meant for all
that follows, and stays."""

import os

import torch

# Lists the name of a state, how it is read and how it is restored.
_STATES = (
    ("autograd's grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    ("the current folder", lambda: _folder(), lambda path: path and os.chdir(path)),
)


def _folder():
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return None


class ChangedState:
    """Remembers the states. Make it before the user's functions run."""

    def __init__(self):
        self._before = [read() for _, read, _ in _STATES]

    def put_back(self):
        """Restores what changed and returns a text for each change."""
        texts = []
        for (what, read, put), before in zip(_STATES, self._before):
            now = read()
            if now != before:
                put(before)
                texts.append(
                    f"the code leaves {what} changed: {_shown(before)} before, {_shown(now)} after")
        return texts


def _shown(value):
    return ({True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool)
            else str(value))
