import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def double_sum(x):
    y = 2 * x
    dist.all_reduce(y)
    return y


def gradient(function):
    x = torch.ones(2, 3, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    print(f"rank {rank}: eager {gradient(double_sum)}")
    print(f"rank {rank}: compiled {gradient(torch.compile(double_sum, backend='aot_eager'))}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
