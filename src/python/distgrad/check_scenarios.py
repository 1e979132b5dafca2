"""The small programs that check() runs for one collective: scenario files, as dicts."""

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "reduce_scatter", "scatter", "all_to_all", "send_recv",
               "copy", "slice")
OPS = ("sum", "avg", "product", "min", "max", "premul_sum")

_TAKES_OP = {"all_reduce", "reduce", "reduce_scatter"}
_TAKES_ROOT = {"reduce", "broadcast", "gather", "scatter"}
_STACKS = {"all_gather", "gather"}  # without dim
_CUTS = {"reduce_scatter", "scatter", "all_to_all", "slice"}
_ALL_RANKS_AGREE = {"all_reduce", "all_gather", "broadcast"}
_REPLICATED_OPERAND = {"copy", "slice"}

# An element's weight in the loss is its number: cotangents that are mixed up show.
_WEIGHTED = "({0} * torch.arange({0}.numel()).reshape({0}.shape)).sum()"


def scenarios_for(collective, world_size, op, objective):
    """{name: scenario without subjects and objective}. "needs_all_reduce" marks those that close with an all_reduce of the
    loss, whose backward passes the cotangent on: one loss, computed on every rank."""
    n = world_size
    made = _Maker(collective, n, op, objective)
    made.add("basic", "x", [n, 1], loss=f"(y * y).sum() + {_WEIGHTED.format('y')}")
    made.add("transposed_cotangent", "x", [2 * n, 3], after=[{"t": "y.transpose(-1, -2)"}], loss=_WEIGHTED.format("t"))
    made.add("expanded_cotangent", "x", [2 * n, 3], loss="3.0 * y.sum()")
    made.add("transposed_operand", "x.transpose(0, 1)", [3, 2 * n])
    made.add("expanded_operand", f"x.expand({2 * n}, 3)", [1, 3])
    made.add("four_dims", "x", [2 * n, 2, 1, 3])
    # Small integers are the same in bfloat16; these are not.
    made.add("many_digits", "x", [2 * n, 3], normal=True, dtype="float32", loss=f"(y * y).sum() + {_WEIGHTED.format('y')}")
    made.add("two_calls", "x", [2 * n, 3], second="2 * x - 1", loss=f"{_WEIGHTED.format('y')} + (y * z).sum()")
    if objective != "replicated":
        made.add("one_loss_counts", "x", [2 * n, 3], loss=f"{_WEIGHTED.format('y')} * (1.0 if rank == {n - 1} else 0.0)")
    if collective in _STACKS | _CUTS:
        for dim in ([0, 1] if collective in _STACKS else [1]):
            made.add(f"dim_{dim}", "x", [2 * n, 2 * n], dim=dim)
    if collective in _TAKES_ROOT and n > 1:
        made.add("last_root", "x", [2 * n, 3], root=n - 1)
    if n > 2 and n % 2 == 0 and collective != "send_recv" and objective == "sum":
        made.add("subgroups", "x", [2 * n, 3], groups={"g": {"size": n // 2}}, group="g")
    return made.scenarios


class _Maker:
    def __init__(self, collective, world_size, op, objective):
        self._collective = collective
        self._world_size = world_size
        self._op = op
        self._one_loss = objective == "replicated"
        self.scenarios = {}

    def add(self, name, operand, shape, *, loss=_WEIGHTED.format("y"), after=(), second=None, groups=None, normal=False, dtype=None,
            **options):
        scenario = {"world_size": self._world_size, "inputs": {"x": self._input(shape, normal)},
                    "steps": [{"y": self._call(operand, options)}]}
        if dtype:
            scenario["dtype"] = dtype
        if groups:
            scenario["groups"] = groups
        if second:
            scenario["steps"].append({"z": self._call(second, options)})
        scenario["steps"] += after
        if not self._one_loss:
            loss = f"({loss}) * (rank + 1)"
        elif self._collective not in _ALL_RANKS_AGREE:
            scenario["steps"].append({"total": {"all_reduce": f"({loss}) * (rank + 1)"}})
            scenario["needs_all_reduce"], loss = True, "total"
        self.scenarios[name] = dict(scenario, loss=loss)

    def _call(self, operand, options):
        call = {self._collective: operand}
        if self._collective in _TAKES_OP:
            call["op"] = self._op
            if self._op == "premul_sum":
                call["factor"] = 0.5
        if self._collective == "send_recv":
            call["pairs"] = [[r, (r + 1) % self._world_size] for r in range(self._world_size)]
        return {**call, **options}

    def _input(self, shape, normal):
        if normal or (self._op in ("min", "max") and self._collective in _TAKES_OP):  # without ties
            drawn = {"random": {"shape": shape, "kind": "normal"}}
        else:  # sums of integers are exact in any order
            low = 1 if self._op == "product" else -3
            drawn = {"random": {"shape": shape, "kind": "integers", "low": low, "high": 3}}
        if self._one_loss and self._collective in _REPLICATED_OPERAND:
            drawn["layout"] = "invariant"
        return drawn
