import torch.distributed as dist
from open_clip import loss


def gathered(x):
    return loss.gather_features(x, x.detach(), gather_with_grad=True, rank=dist.get_rank(), world_size=dist.get_world_size())[0]


def gathered_without_grad(x):
    return loss.gather_features(x, x.detach(), rank=dist.get_rank(), world_size=dist.get_world_size())[0]


def gathered_with_local_loss(x):
    return loss.gather_features(x, x.detach(), True, False, dist.get_rank(), dist.get_world_size())[0]


def exchanged(x, pairs, rank, group):
    to = {source: target for source, target in pairs}[rank]
    come_from = {target: source for source, target in pairs}[rank]
    return loss.neighbour_exchange_with_grad(come_from, to, x, group)
