import json
import pathlib

import pytest

GOLDEN = pathlib.Path("golden/scenarios/debate/all_reduce_sum.json")
CASES = json.loads(GOLDEN.read_text())["cases"]


def gradients(world_size):
    """The implementation under test: y = Σ_r (r + 2) x_r at x = 1, every rank's loss y², summed."""
    weights = [rank + 2 for rank in range(world_size)]
    y = sum(weights)
    cotangent = world_size * 2 * y  # each rank's loss sends 2y back
    return [float(weight * cotangent) for weight in weights]


def pairs(value, wanted, bound):
    """Every element with its wanted value and its bound: one number, or shaped as the values."""
    if not isinstance(wanted, list):
        return [(float(value), float(wanted), float(bound))]
    assert len(value) == len(wanted)
    bounds = bound if isinstance(bound, list) else [bound] * len(wanted)
    return [pair for triple in zip(value, wanted, bounds) for pair in pairs(*triple)]


def name(case):
    return f"{case['objective']}-{case['world_size']}-{case['dtype']}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_gradients(case):
    golden = case["gradients"]["x"]
    observed = gradients(case["world_size"])
    for value, wanted, bound in pairs(observed, golden["by_rank"], golden["bound"]):
        assert value == wanted or abs(value - wanted) <= bound
