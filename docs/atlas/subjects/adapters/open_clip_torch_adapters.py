import torch.distributed as dist
from open_clip import loss


def _place():
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}


def gathered(x):
    return loss.gather_features(x, x.detach(), gather_with_grad=True, **_place())[0]


def gathered_without_grad(x):
    return loss.gather_features(x, x.detach(), **_place())[0]


def gathered_with_local_loss(x):
    return loss.gather_features(x, x.detach(), True, False, **_place())[0]


def exchanged(x, pairs, rank, group):
    to = {source: target for source, target in pairs}[rank]
    come_from = {target: source for source, target in pairs}[rank]
    return loss.neighbour_exchange_with_grad(come_from, to, x, group)
