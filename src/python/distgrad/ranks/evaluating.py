"""Says whether this process's one thread runs an expression of a program, in the library, and not
code of the user's that it calls."""

is_on = False
