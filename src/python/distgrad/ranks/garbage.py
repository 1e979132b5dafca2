"""Stops garbage collection while modules are imported. What they make stays, and looking through it
costs a sixth to a quarter of the time."""

import contextlib
import gc


@contextlib.contextmanager
def left_alone(for_good=False):
    """Disables garbage collection inside the block. `for_good` also exempts forever what exists at
    its end, since in processes that are forked later a collection would copy every page."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if for_good:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
