from yunchang.comm.all_to_all import SeqAllToAll4D


def exchange_heads_for_sequence(x, group, scatter_dim, gather_dim):
    """Of (batch, sequence, heads, width) it cuts the heads and joins the sequence."""
    two = x if scatter_dim > gather_dim else x.transpose(0, 1)
    given = SeqAllToAll4D.apply(group, two.reshape(1, *two.shape, 1), 2, 1, False)[0, :, :, 0]
    return given if scatter_dim > gather_dim else given.transpose(0, 1)
