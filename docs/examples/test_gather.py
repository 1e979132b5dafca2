import distgrad
from losses import GatherLayer


def test_gather():
    distgrad.check(GatherLayer.apply, "all_gather", world_size=4)


if __name__ == "__main__":
    test_gather()
