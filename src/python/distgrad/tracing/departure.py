"""What is said of where the ranks' run leaves the single run's."""

import dataclasses


@dataclasses.dataclass
class Departure:
    """stage: "forward", "frozen" (parameters), "cut" (an output needs no gradient), "loss",
    "weights" (of the ranks' losses), "term" (another one of the loss),
    "backward", "shares" (backward, or nobody adds them up behind it), "factor" (of the loss, or
    after backward), "parameters" (what backward gives to some is wrong), "after" backward, or
    "unknown". `module`: whose output, or output's gradient, is the first that is wrong; `before`:
    the last that is right; `calls`: what communicates, and the Functions, between both."""

    stage: str
    module: str = ""
    before: str = ""
    how: str = ""
    ranks: tuple = ()
    calls: list = dataclasses.field(default_factory=list)
    upstream: list = dataclasses.field(
        default_factory=list)  # wrong parameters whose gradient goes through there
    others: list = dataclasses.field(default_factory=list)  # wrong ones elsewhere
    tokens: list = dataclasses.field(default_factory=list)  # sentences on how the tokens count
    lost: list = dataclasses.field(
        default_factory=list)  # wrong ones without a gradient, though one reaches their modules
    also: list = dataclasses.field(default_factory=list)  # other outputs where backward departs
    # What is computed from `module`, whose gradient the ranks have shares of, and has another one
    unsummed_before: str = ""
    # Wrong ones elsewhere, where the ranks have shares of their modules' outputs' gradients
    unsummed: list = dataclasses.field(default_factory=list)
    # Whether the loss is computed from `module` also with no other between
    is_in_loss: bool = False
    # Where nothing communicates between both: what does since an earlier output that `module` is
    # computed from, too
    since: str = ""
    since_calls: list = dataclasses.field(default_factory=list)
    # Calls between the last module and the loss
    behind_modules: list = dataclasses.field(default_factory=list)
    # (output, how, calls): of whose gradient each rank has a share
    shared: list = dataclasses.field(default_factory=list)
    compared: int = 0  # modules
    # Outputs without a gradient that differ: what is computed from them is not known
    silent: list = dataclasses.field(default_factory=list)
    right: int = 0  # modules that are right as far as the stage says: in forward, or backward too
    # By rank: how many times the single run's its backward is
    factors: dict = dataclasses.field(default_factory=dict)
    are_calls: bool = False  # whether the factors are by micro-batch
    # Rows, that the losses which do not weigh alike are means over
    means_over: dict = dataclasses.field(default_factory=dict)
    is_cut: bool = False  # whether no gradient reaches `direct`
    direct: list = dataclasses.field(
        default_factory=list
    )  # wrong ones that backward gives another gradient, though it is right in all modules
    # What is odd about the data that the ranks compute with
    data: list = dataclasses.field(default_factory=list)
    losses: dict = dataclasses.field(default_factory=dict)
