import comm

def all_reduce(x, group):
    return comm.compressed_sum(x, bits=8, group=group)
