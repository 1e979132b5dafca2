"""What each collective takes and gives, for tools that need no torch: the table that the ranks in
Python have, which follows src/model/collective_kind.h."""

import os
import runpy

TRAITS = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src",
                                     "python", "distgrad", "ranks", "collectives",
                                     "traits.py"))["TRAITS"]
KINDS = tuple(TRAITS)
COMMUNICATES = tuple(kind for kind in KINDS if TRAITS[kind].communicates)


def with_option(option):
    return tuple(kind for kind in KINDS if option in TRAITS[kind].options)


def of_shape(*shapes):
    return tuple(kind for kind in KINDS if TRAITS[kind].shape in shapes)


REDUCING = with_option("op")
ROOTED = with_option("root")
CUTTING = with_option("splits")
JOINING = of_shape("joined")
KEEPS_SHAPE = of_shape("operand")
