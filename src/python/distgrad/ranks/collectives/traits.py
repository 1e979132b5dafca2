"""What each collective takes: kCollectives of src/model/collective_kind.h, as collective_kind_test
writes it here. `stacks`: dim may be left out. `has_async`: torch's own call takes async_op."""

from collections import namedtuple

Traits = namedtuple("Traits", "options stacks has_async")

TRAITS = {
    "all_reduce": Traits(options=("op",), stacks=False, has_async=True),
    "reduce": Traits(options=("op", "root"), stacks=False, has_async=True),
    "broadcast": Traits(options=("root",), stacks=False, has_async=True),
    "all_gather": Traits(options=("dim",), stacks=True, has_async=True),
    "gather": Traits(options=("root", "dim"), stacks=True, has_async=True),
    "reduce_scatter": Traits(options=("op", "dim", "splits"), stacks=False, has_async=True),
    "scatter": Traits(options=("root", "dim", "splits"), stacks=False, has_async=True),
    "all_to_all": Traits(options=("dim", "splits"), stacks=False, has_async=True),
    "send_recv": Traits(options=("pairs",), stacks=False, has_async=False),
    "copy": Traits(options=(), stacks=False, has_async=False),
    "slice": Traits(options=("dim", "splits"), stacks=False, has_async=False),
}
