"""What each collective takes and gives: kCollectives of src/model/collective_kind.h, which says
what the words mean, as collective_kind_test writes it here."""

from collections import namedtuple

Traits = namedtuple("Traits", "options shape communicates only_on_root has_async")

TRAITS = {
    "all_reduce": Traits(options=("op",), shape="operand", communicates=True,
        only_on_root=False, has_async=True),
    "reduce": Traits(options=("op", "root"), shape="operand", communicates=True,
        only_on_root=True, has_async=True),
    "broadcast": Traits(options=("root",), shape="operand", communicates=True,
        only_on_root=False, has_async=True),
    "all_gather": Traits(options=("dim",), shape="joined", communicates=True,
        only_on_root=False, has_async=True),
    "gather": Traits(options=("root", "dim"), shape="joined", communicates=True,
        only_on_root=True, has_async=True),
    "reduce_scatter": Traits(options=("op", "dim", "splits"), shape="chunk", communicates=True,
        only_on_root=False, has_async=True),
    "scatter": Traits(options=("root", "dim", "splits"), shape="chunk", communicates=True,
        only_on_root=False, has_async=True),
    "all_to_all": Traits(options=("dim", "splits"), shape="exchanged", communicates=True,
        only_on_root=False, has_async=True),
    "send_recv": Traits(options=("pairs",), shape="sender", communicates=True,
        only_on_root=False, has_async=False),
    "copy": Traits(options=(), shape="operand", communicates=False,
        only_on_root=False, has_async=False),
    "slice": Traits(options=("dim", "splits"), shape="chunk", communicates=False,
        only_on_root=False, has_async=False),
}
