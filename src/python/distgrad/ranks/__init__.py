"""A rank program in Python: runs scenarios in the user's own interpreter, with the user's own
torch.

It speaks docs/protocol.md with distgrad's driver, which starts it and forks ranks from it.
"""
