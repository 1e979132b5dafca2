from ring_attention_pytorch import distributed


def gathered(x, dim=0):
    return distributed.AllGather(dim=dim)(x)[0]


def gathered_variable(x, dim=0):
    return distributed.all_gather_variable_dim(x, dim)[0]
