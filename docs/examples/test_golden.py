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
    return [weight * cotangent for weight in weights]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["dtype"])
def test_gradients(case):
    golden = case["gradients"]["x"]
    observed = gradients(case["world_size"])
    assert len(observed) == len(golden["by_rank"])
    for value, wanted in zip(observed, golden["by_rank"]):
        assert abs(value - wanted) <= golden["bound"]
