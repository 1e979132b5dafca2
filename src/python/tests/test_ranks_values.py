"""Inputs as a rank in Python makes them: bit for bit those of docs/scenarios.md."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small_driver import message_of  # noqa: E402

from distgrad.ranks.program import Program  # noqa: E402

MASK = (1 << 64) - 1


def by_the_book(kind, low, high, text, count):
    """The generator as the page words it, on Python's integers."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK

    def bits(i):
        z = (h + (i + 1) * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def unit(i):
        return (bits(i) >> 11) * 2.0**-53

    if kind == "integers":
        return [float(low + bits(i) % (high - low + 1)) for i in range(count)]
    if kind == "uniform":
        return [low + (high - low) * unit(i) for i in range(count)]
    values = []
    for i in range(count):
        total = 0.0
        for k in range(12):
            total += unit(12 * i + k)
        values.append(total - 6)
    return values


def value_on(program, item, rank):
    what = {**program, "inputs": [item], "steps": [], "loss": {"text": "x.sum()"}}
    return Program(message_of(what), None).value_on("x", rank)


def program(world_size=1, groups=(), dtype="float64"):
    return {"world_size": world_size, "dtype": dtype, "groups": list(groups)}


def item(layout=None, **value):
    return {"name": "x", "pointer": "", "layout": layout or [{"axis": "", "kind": "local"}],
            **value}


class Random(unittest.TestCase):
    def test_is_the_generator_of_the_documentation(self):
        for kind, low, high in (("integers", -4, 4), ("integers", 0, 2**40),
                                ("uniform", -1.5, 2.25), ("normal", -4, 4)):
            for seed in (0, 12345678901234):
                spec = {"shape": [7, 9], "kind": kind, "low": low, "high": high, "seed": seed}
                for rank in (0, 3):
                    got = value_on(program(4), item(random=spec), rank)
                    self.assertEqual(got.reshape(-1).tolist(),
                                     by_the_book(kind, low, high, f"{seed}/x/{rank}", 63))

    def test_first_values(self):
        spec = {"shape": [8], "kind": "integers", "low": -4, "high": 4, "seed": 0}
        self.assertEqual(value_on(program(), item(random=spec), 0).tolist(),
                         [3, -2, 3, 3, -1, 4, 4, 1])

    def test_is_one_tensor_where_the_layout_is_not_local(self):
        spec = {"shape": [4], "kind": "normal", "low": -4, "high": 4, "seed": 7}
        got = value_on(program(2), item([{"axis": "", "kind": "replicate"}], random=spec), 1)
        self.assertEqual(got.tolist(), by_the_book("normal", -4, 4, "7/x/", 4))

    def test_shape_by_rank_and_no_element(self):
        spec = {"shape": [{"text": "rank"}, 2], "kind": "normal", "low": -4, "high": 4, "seed": 7}
        self.assertEqual(list(value_on(program(3), item(random=spec), 2).shape), [2, 2])
        self.assertEqual(list(value_on(program(3), item(random=spec), 0).shape), [0, 2])


class Layouts(unittest.TestCase):
    def test_shards_are_of_the_same_length_but_the_last_ones(self):
        for length in range(8):
            for size in (1, 2, 3, 5):
                layout = [{"axis": "", "kind": "shard", "dim": -1}]
                value = item(layout, expr={"text": f"torch.arange({length}.0)"})
                pieces = [value_on(program(size), value, r) for r in range(size)]
                self.assertEqual(torch.cat(pieces).tolist(), list(range(length)))
                each = -(-length // size)
                self.assertEqual([len(p) for p in pieces],
                                 [max(0, min(each, length - r * each)) for r in range(size)])

    def test_axes_of_a_mesh_are_applied_in_their_order(self):
        mesh = [
            {"name": "dp", "partition": [[0, 3], [1, 4], [2, 5]], "is_mesh_axis": True},
            {"name": "tp", "partition": [[0, 1, 2], [3, 4, 5]], "is_mesh_axis": True},
        ]
        layout = [{"axis": "dp", "kind": "shard", "dim": 0},
                  {"axis": "tp", "kind": "shard", "dim": 0}]
        value = item(layout, expr={"text": "torch.arange(7.0)"})
        pieces = [value_on(program(6, mesh), value, r).tolist() for r in range(6)]
        self.assertEqual(pieces, [[0, 1], [2, 3], [], [4], [5], [6]])

    def test_a_rank_changes_nobody_elses_copy(self):
        value = item([{"axis": "", "kind": "replicate"}], value=torch.zeros(3))
        run = Program(message_of({**program(2), "inputs": [value], "steps": [],
                                  "loss": {"text": "x.sum()"}}), None)
        run.value_on("x", 0).add_(1)
        self.assertEqual(run.value_on("x", 1).tolist(), [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
