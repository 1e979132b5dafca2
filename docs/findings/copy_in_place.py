import sys
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def copy_of(package):
    """Its copy into a model parallel region, on the world's group."""
    world = dist.group.WORLD
    if package == "xformers":
        from xformers.ops.differentiable_collectives import copy_to_model_parallel_region
        return lambda x: copy_to_model_parallel_region(x, world)
    if package == "fairscale":
        from fairscale.nn.model_parallel import initialize, mappings
        initialize._MODEL_PARALLEL_GROUP = world
        return mappings.copy_to_model_parallel_region
    if package == "megatron-core":
        from megatron.core.tensor_parallel import mappings
        return lambda x: mappings.copy_to_tensor_model_parallel_region(x, world)
    if package == "colossalai":
        from colossalai.shardformer.layer._operation import reduce_backward
        return lambda x: reduce_backward(x, world)
    if package == "deepspeed":
        from deepspeed.module_inject import layers
        layers.dist = layers.pg_utils.dist = dist  # what deepspeed.comm calls
        return lambda x: layers.ColumnParallel.apply(world, x)
    if package == "nanotron":
        from nanotron.parallel.tensor_parallel import distributed_differentiable_primitives as parts
        return lambda x: parts.differentiable_identity(x, world)
    if package == "transformers":
        from transformers.distributed.parallel_utils import _AllReduceBackward
        return lambda x: _AllReduceBackward.apply(x, world)
    if package == "anemoi-models":
        from anemoi.models.distributed.graph import sync_tensor
        return lambda x: sync_tensor(x, 0, None, world, gather_in_fwd=False)
    if package == "neuraloperator":
        from neuralop.mpu import mappings
        mappings.get_model_parallel_group = lambda: world
        return mappings.copy_to_model_parallel_region
    if package == "SwissArmyTransformer":
        from sat.mpu import initialize, mappings
        initialize._MODEL_PARALLEL_GROUP = world
        return mappings.copy_to_model_parallel_region
    from physicsnemo.distributed import DistributedManager, mappings
    DistributedManager.initialize()
    DistributedManager()._groups["tensor"] = world
    return lambda x: mappings.copy_to_parallel_region(x, "tensor")


def main(rank, store, package):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
    copy = copy_of(package)
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    u = 2 * x  # its cotangent is the one that the copy's backward gets
    ((u + copy(3 * x)) * (rank + 1)).sum().backward()
    print(f"rank {rank}: {x.grad.tolist()}, right {[2.0 * (rank + 1) + 3 * (1 + 2 + 3)] * 2}")
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__, sys.argv[1])
    mp.spawn(main, (tempfile.mktemp(), sys.argv[1]), 3)
