"""What the calls of right.py and wrong.py mean, for all ranks at once."""

import torch


def all_sum(xs, ws):
    total = sum(x * w for x, w in zip(xs, ws))
    return [total for _ in xs]


def plain(xs, ws):
    return [torch.tanh(total) for total in all_sum(xs, ws)]


def squares_in_float32(xs, ws):
    total = sum(x * w for x, w in zip(xs, ws))
    return [total.float() ** 2 + x for x in xs]


def cut_off(xs, ws):
    with torch.no_grad():
        return plain(xs, ws)
