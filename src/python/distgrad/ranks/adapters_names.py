"""Lists the names of collectives in people's code, and the names of parameters that ask for a part
of the call.

Parameters are mapped by name alone. A name that could mean two things is not in these tables: the
user then writes an adapter of one line, which is better than a verdict on a call that was not
meant.
"""

import re

from .collectives import MODULES, TRAITS, kinds_of_shape, kinds_with

ROOTED = kinds_with("root")
REDUCING = kinds_with("op")
GATHERING = kinds_of_shape("joined")
CUTTING = kinds_of_shape("chunk")
EXCHANGING = kinds_of_shape("exchanged")
# These may write their result over the operand.
IN_PLACE = tuple(kind for kind in kinds_of_shape("operand", "sender") if TRAITS[kind].communicates)
WITH_DIM = kinds_with("dim")

# Maps a kind to names of functions: torch's first, old ones after new ones, in lower case with
# underscores. Classes are found under the same words (`AllGather`, `_AllGatherFunc`,
# `GatherLayer`).
KIND_NAMES = {kind: module.NAMES for kind, module in MODULES.items()}
KINDS = tuple(KIND_NAMES)

_CLASS_ENDINGS = re.compile(r"_(layer|func|function|op|fn|autograd)$")


def plain_name(name):
    """Reduces `_AllGatherFunc`, `AllGather` and `all_gather` to one name: `all_gather`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower()
    if words in ("gather_layer",):  # everybody's name for an all_gather with a gradient
        return words
    return _CLASS_ENDINGS.sub("", words)


def kind_called(name):
    """Returns the kind whose own name, or torch's name for it, is `name`; None if there is none.
    Class names do not count here."""
    for kind, names in KIND_NAMES.items():
        if name == kind or (name.lstrip("_") in names and name.lstrip("_").startswith(kind)):
            return kind
    return None


# Lists what a parameter asks for ("source") and the names that ask for it, as a regular expression
# on the lower-case name.
_ANYWHERE = (
    ("group", r"(.*_)?(group|pg)|comm_group|processgroup"),
    ("group_name", r"group_name"),
    ("ranks", r"ranks|group_ranks"),
    ("size", r"(.*_)?(world_size|group_size|num_ranks|nranks|n_ranks)|ws|worldsize"),
    ("rank", r"rank|group_rank"),
    ("global_rank", r"global_rank"),
    ("async", r"async_op|is_async|async"),
)
_BY_KIND = (
    (REDUCING, "op", r"op|reduce_?op|red_op|reduction|reduce_operation|op_type"),
    (REDUCING, "average", r"average|avg|mean"),
    (REDUCING, "factor", r"factor"),
    (ROOTED, "root", r"root|group_src|group_dst|group_root"),
    (ROOTED, "global_root", r"src|dst|src_rank|dst_rank|global_src|global_dst"),
    (ROOTED, "world_root", r"root_rank|source|dest|destination|target|source_rank|dest_rank"),
    (WITH_DIM, "dim", r"dim|axis|gather_dim|scatter_dim|cat_dim|concat_dim|split_dim|tensor_dim|"
                      r"shard_dim|gather_axis|scatter_axis|gather_idx|scatter_idx|dimension"),
    (CUTTING, "splits", r"splits|split_sizes|sizes|input_split_sizes|input_splits"),
    (EXCHANGING, "splits", r"splits"),
    (EXCHANGING, "input_splits",
     r"(input|in|send|scatter)_(split_sizes|splits|split|sizes|counts)"),
    (EXCHANGING, "output_splits",
     r"(output|out|recv|receive|gather)_(split_sizes|splits|split|sizes|counts)"),
    (("send_recv",), "pairs", r"pairs"),
    (("scatter",), "scatter_list", r"scatter_list"),
    (GATHERING, "labels", r"labels?|targets?"),
    (("gather",), "outputs", r"gather_list"),
)
_LIST = re.compile(r"(input_)?tensors|(input_)?tensor_list|input_list|input_tensor_list|xs|chunks|"
                   r"inputs_list")
_OUTPUT = re.compile(r"out|output|out_.*|output_.*|outputs|recv_.*|tensor_list|gather_list|"
                     r"gathered")
_INPUT = re.compile(r"in|inp|input|inputs|x|t|data|tensor|tensors|in_.*|input_.*|send_.*|input_")


def source_of(name, kind):
    """Returns what a parameter `name` of an implementation of `kind` asks for, or None."""
    name = name.lower().strip("_")
    for source, pattern in _ANYWHERE:
        if re.fullmatch(pattern, name):
            return source
    for kinds, source, pattern in _BY_KIND:
        if kind in kinds and re.fullmatch(pattern, name):
            return source
    return None


def is_list(name):
    """Returns whether a tensor parameter of this name takes a list of one chunk per rank."""
    return bool(_LIST.fullmatch(name.lower()))


def is_input(name):
    """Returns whether the name is an operand's. Asked if the position does not tell."""
    return bool(_INPUT.fullmatch(name.lower()) or _LIST.fullmatch(name.lower()))


def is_gather_dim(name):
    """Returns whether, of an all_to_all's two dimensions, this names the one along which the
    received pieces are joined."""
    return bool(re.fullmatch(r"(gather|concat|cat)_(dim|axis|idx)", name.lower().strip("_")))


def is_output(name, later):
    """Returns whether the parameter is a buffer to fill, as in c10d: its name is an output's and
    one of the names in `later` is an input's."""
    return bool(_OUTPUT.fullmatch(name.lower())) and any(_INPUT.fullmatch(n.lower()) for n in later)
