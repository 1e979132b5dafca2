"""Reads and writes what a message of docs/protocol.md holds: a JSON header, and float64 tensor
data."""

import json
import math

import torch


class Message:
    """Holds a received message: the header, also as it came, and the data, of which its tensors are
    views."""

    def __init__(self, text, data):
        self.text = text.decode()
        self.header = json.loads(text)
        self.data = data

    def tensor(self, place):
        """Returns the float64 tensor that {"shape", "at"} describes."""
        shape, at = place["shape"], place["at"]
        return self.data[at : at + math.prod(shape)].reshape(shape)

    def numbers(self, place):
        return self.tensor(place).tolist()


class MessageWriter:
    """Collects the tensors of one message while its header is made."""

    def __init__(self):
        self._tensors = []
        self._count = 0

    def tensor(self, x):
        """Copies `x`, of any dtype and layout, into the data as float64, and returns what stands
        for it in the header."""
        packed = x.detach().cpu().to(torch.float64, copy=True).reshape(-1)
        place = {"shape": list(x.shape), "at": self._count}
        self._tensors.append(packed)
        self._count += packed.numel()
        return place

    def message(self, header):
        """Returns the header's text in UTF-8, with U+FFFD for half a surrogate pair, which a user's
        exception may contain, and the data."""
        text = json.dumps(header, allow_nan=False, ensure_ascii=False)
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            encoded = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        return encoded, torch.cat(self._tensors) if self._tensors else torch.zeros(0)
