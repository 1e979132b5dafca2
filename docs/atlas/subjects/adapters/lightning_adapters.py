from lightning.fabric.utilities import distributed


def gathered(x, group):
    return distributed._all_gather_ddp_if_available(x, group=group, sync_grads=True)
