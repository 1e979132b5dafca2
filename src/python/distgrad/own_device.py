"""Keeps distgrad's own tensors on the CPU if the user has another default device
(torch.set_default_device). The user's code still finds its own default."""

import contextlib

import torch

_users = []  # the devices, of nested calls


@contextlib.contextmanager
def own_device():
    """Makes the CPU the default device. For distgrad's own code."""
    device = torch.get_default_device()
    if device.type == "cpu" and not _users:
        yield
        return
    _users.append(device)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _users.pop()


def users_device():
    """Restores the user's default device. For the user's code inside own_device()."""
    return _users[-1] if _users else contextlib.nullcontext()
