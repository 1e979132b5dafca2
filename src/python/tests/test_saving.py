"""save_gradients on four Gloo ranks, and what `distgrad compare` then says.

    DISTGRAD=build/release/bin/distgrad python src/python/tests/test_saving.py
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from gradchecks import ranks  # noqa: E402: it sets the path to distgrad

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from distgrad.saving import save_gradients  # noqa: E402

DISTGRAD = os.environ.get("DISTGRAD", "distgrad")
WORLD_SIZE = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x)))) * 1.0


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).double()


def make_input():
    torch.manual_seed(1)
    return torch.randn(8, 6, dtype=torch.float64)


def backward(model, x):
    model(x).square().mean().backward()


def data_parallel(rank, folder):
    """DDP; and, in other folders, as if it had not averaged, and twice the truth beside a mesh and
    process groups."""
    from torch.distributed.device_mesh import init_device_mesh

    part = make_input()[2 * rank : 2 * rank + 2]
    model = nn.parallel.DistributedDataParallel(make_model())
    backward(model, part)
    save_gradients(model, os.path.join(folder, "ddp"), step=3)
    own = make_model()
    backward(own, part)
    save_gradients(own, os.path.join(folder, "own"))
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    for pair in ([0, 3], [1, 2]):
        dist.new_group(pair)
    save_gradients({name: 2 * p.grad for name, p in model.named_parameters()},
                   os.path.join(folder, "doubled"))


def sharded(rank, folder):
    """FSDP2 over dp, tensor parallel over tp; one rank's piece scaled in another folder."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = make_model()
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    dp = mesh["dp"].get_local_rank()
    backward(model, make_input()[4 * dp : 4 * dp + 4])
    save_gradients(model, os.path.join(folder, "sharded"))
    if rank == 3:
        model[1].up.weight.grad.to_local().mul_(0.25)
    model[0].down.bias.grad = None
    save_gradients(model, os.path.join(folder, "spoilt"))


class Saving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        for body in (data_parallel, sharded):
            ranks.run(lambda body=body: body(dist.get_rank(), cls.folder), WORLD_SIZE)
        model = make_model()  # who has run autograd can start no ranks
        backward(model, make_input())
        save_gradients(model, os.path.join(cls.folder, "reference"))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def compare(self, observed, reference="reference"):
        """Exit code, and the JSON's parameters by name."""
        command = [DISTGRAD, "compare", "--json", "-", reference, observed]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, {p["name"]: p for p in json.loads(done.stdout)["parameters"]}

    def test_ddp_is_right(self):
        code, parameters = self.compare("ddp/step_3")
        self.assertEqual(code, 0)
        self.assertEqual(len(parameters), 12)

    def test_gradients_that_were_not_averaged(self):
        code, parameters = self.compare("own")
        self.assertEqual(code, 1)
        self.assertEqual({p["text"] for p in parameters.values()},
                         {"needs the average over ranks 0-3"})

    def test_fsdp_with_tensor_parallel_is_right(self):
        code, parameters = self.compare("sharded")
        self.assertEqual(code, 0)
        self.assertEqual(len(parameters), 12)
        self.assertEqual(parameters["0.down.weight"]["placements"],
                         {"dp": "Shard(0)", "tp": "Shard(1)"})

    def test_the_rank_that_was_spoilt_is_named(self):
        code, parameters = self.compare("spoilt")
        self.assertEqual(code, 1)
        wrong = {name: p for name, p in parameters.items() if not p["right"]}
        self.assertEqual(set(wrong), {"0.down.bias", "1.up.weight"})
        self.assertEqual(wrong["0.down.bias"]["verdict"], "missing")
        self.assertEqual(wrong["1.up.weight"]["ranks"], [3])
        self.assertIn("1/4 of the reference", wrong["1.up.weight"]["text"])

    def test_a_launchers_rank_without_a_process_group_is_known_by_its_environment(self):
        gradient = {"w": torch.ones(2)}
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, RANK="2", WORLD_SIZE="3"):
            self.assertEqual(os.path.basename(save_gradients(gradient, folder)),
                             "rank_2.safetensors")
            os.environ["RANK"] = "3"  # no rank of that world
            self.assertEqual(os.path.basename(save_gradients(gradient, folder)),
                             "rank_0.safetensors")

    def test_dicts_dtypes_and_layouts(self):
        tensors = {
            "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
            "brain": torch.tensor(0.5, dtype=torch.bfloat16),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "sparse": torch.tensor([[0.0, 2.0]]).to_sparse(),
            "empty": torch.zeros(0, 3),
            "none": None,
        }
        save_gradients(tensors, os.path.join(self.folder, "dict"))
        expected = {n: None if t is None else t.to_dense().tolist() for n, t in tensors.items()
                    if n != "empty"}
        with open(os.path.join(self.folder, "dict.json"), "w") as file:
            json.dump(expected, file)
        done = subprocess.run([DISTGRAD, "compare", "--full", "--rtol", "0", "dict.json", "dict"],
                              cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("tolerance", done.stdout)  # all of them bit for bit

    def test_what_cannot_be_saved_leaves_no_file(self):
        with self.assertRaisesRegex(TypeError, "gradient of w is torch.int64"):
            save_gradients({"w": torch.zeros(2, dtype=torch.int64)},
                           os.path.join(self.folder, "bad"))
        with self.assertRaisesRegex(TypeError,
                                    "the gradient of 'w' is a list, and neither a tensor nor None"):
            save_gradients({"w": [1.0]}, os.path.join(self.folder, "bad"))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "bad")))

    def test_what_lies_in_memory_otherwise_than_it_reads(self):
        value = torch.tensor([1 + 2j, 3 - 4j])
        for name, tensors in (("lazy", {"complex": value.conj(), "negative": value.conj().imag}),
                              ("plain", {"complex": torch.tensor([[1.0, -2.0], [3.0, 4.0]]),
                                         "negative": torch.tensor([-2.0, 4.0])})):
            save_gradients(tensors, os.path.join(self.folder, name))
        code, parameters = self.compare("lazy", "plain")
        self.assertEqual((code, len(parameters)), (0, 2))

    def test_axes_and_process_groups_are_known(self):
        code, parameters = self.compare("doubled")
        self.assertEqual({p["text"] for p in parameters.values()},
                         {"2 times the reference (2 = the size of outer or inner, or the number of"
                          " ranks of a process group) on every rank"})


if __name__ == "__main__":
    unittest.main()
