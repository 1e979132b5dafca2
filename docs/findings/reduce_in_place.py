import sys
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def reduce_of(package):
    """Its all-reduce out of a model parallel region, on the world's group."""
    world = dist.group.WORLD
    if package == "xformers":
        from xformers.ops.differentiable_collectives import reduce_from_model_parallel_region
        return lambda x: reduce_from_model_parallel_region(x, world)
    if package == "fairscale":
        from fairscale.nn.model_parallel import initialize, mappings
        initialize._MODEL_PARALLEL_GROUP = world
        return mappings.reduce_from_model_parallel_region
    if package == "megatron-core":
        from megatron.core.tensor_parallel import mappings
        return lambda x: mappings.reduce_from_tensor_model_parallel_region(x, world)
    if package == "colossalai":
        from colossalai.shardformer.layer._operation import reduce_forward
        return lambda x: reduce_forward(x, world)
    if package == "deepspeed":
        from deepspeed.module_inject import layers
        layers.dist = layers.pg_utils.dist = dist  # what deepspeed.comm calls
        return lambda x: layers.RowParallel.apply(world, x, False)
    if package == "nanotron":
        from nanotron.parallel.tensor_parallel import distributed_differentiable_primitives as parts
        return lambda x: parts.differentiable_all_reduce_sum(x, world)
    if package == "transformers":
        from transformers.distributed.parallel_utils import _AllReduceForward
        return lambda x: _AllReduceForward.apply(x, world)
    if package == "anemoi-models":
        from anemoi.models.distributed.graph import reduce_tensor
        return lambda x: reduce_tensor(x, world)
    if package == "neuraloperator":
        from neuralop.mpu import mappings
        mappings.get_model_parallel_group = lambda: world
        return mappings.reduce_from_model_parallel_region
    if package == "SwissArmyTransformer":
        from sat.mpu import initialize, mappings
        initialize._MODEL_PARALLEL_GROUP = world
        return mappings.reduce_from_model_parallel_region
    from physicsnemo.distributed import DistributedManager, mappings
    DistributedManager.initialize()
    DistributedManager()._groups["tensor"] = world
    return lambda x: mappings.reduce_from_parallel_region(x, "tensor")


def main(rank, store, package):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
    reduce = reduce_of(package)
    x = torch.tensor([0.5, -0.25]) * (rank + 1)
    x.requires_grad_()
    y = torch.tanh(x)  # autograd keeps y, to compute 1 - y² of it
    right = (1 - y.detach() ** 2).tolist()
    try:
        reduce(y).sum().backward()
        print(f"rank {rank}: {x.grad.tolist()}, right {right}")
    except RuntimeError as error:
        print(f"rank {rank}: raises: {str(error)[:80]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__, sys.argv[1])
    mp.spawn(main, (tempfile.mktemp(), sys.argv[1]), 3)
