"""How torch's own functions are called, as Python source: the lines that do what adapters_torch does."""

_NN = "torch.distributed.nn.functional"
_FC = "torch.distributed._functional_collectives"
_GATHERS = ("all_gather_single", "all_gather_tensor", "all_gather_single_autograd", "all_gather_tensor_autograd")
_SCATTERS = ("reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd")
_EXCHANGES = ("all_to_all_single", "all_to_all_single_autograd")


def torch_lines(binding, call, written, imports):
    """A function's body: of the operand `x`, and `group`. `written` is how the call is spelled (call_source.Written)."""
    is_nn = binding.function.__module__ == _NN
    module = "nn" if is_nn else "fc"
    imports.torch_module(_NN if is_nn else _FC, module)
    name, kind = binding.function.__name__, call["kind"]
    if kind == "all_to_all" and call["splits"] and name == "all_to_all":
        name = "all_to_all_single"  # the list form takes pieces of one size
    function = f"{module}.{name}"
    if binding.mode == "compile":
        function = f"compiled({function})"
    lines = (_nn_lines if is_nn else _fc_lines)(name, function, call, written)
    if binding.mode == "async":  # of a functional collective; else any use of its result waits
        lines = [line.replace(".clone()  # clone waits", ".wait()") for line in lines]
    return lines


def _exchange_lines(call, written):
    """What all_to_all_single is given."""
    dim, sizes = call["dim"] or 0, written.even_sizes()
    sent = f"{call['splits']}[{written.rank}]" if call["splits"] else sizes
    received = f"[row[{written.rank}] for row in {call['splits']}]" if call["splits"] else sizes
    return [f"operand, sent, received = x.movedim({dim}, 0).contiguous(), {sent}, {received}"]


def _nn_lines(name, f, call, written):
    kind, dim, group, rank = call["kind"], call["dim"], written.process_group, written.rank
    op, root, off_root = written.reduce_op, written.global_root, f"torch.where(torch.tensor(False), y, torch.zeros_like(y.detach()))"
    joined = "torch.stack(list(y))" if dim is None else f"torch.cat(list(y), {dim})"
    chunks = f"[chunk.contiguous() for chunk in {written.chunks()}]"
    if name == "_all_gather_base":
        operand = "x.unsqueeze(0)" if dim is None else f"x.movedim({dim}, 0)"
        return [f"operand = {operand}.contiguous()",
                f"output = operand.new_empty(({written.size} * operand.shape[0], *operand.shape[1:]))",
                f"return {f}(output, operand, group={group})" + ("" if dim is None else f".movedim(0, {dim})")]
    if name == "all_to_all_single":
        return [*_exchange_lines(call, written), "output = operand.new_empty((sum(received), *operand.shape[1:]))",
                f"return {f}(output, operand, received, sent, group={group}).movedim(0, {dim or 0})"]
    return {
        "all_reduce": [f"return {f}(x, op={op}, group={group})"],
        "broadcast": [f"return {f}(x, {root}, group={group})"],
        "all_gather": [f"y = {f}(x, group={group})", f"return {joined}"],
        "reduce_scatter": [f"chunks = {chunks}", f"return {f}(torch.empty_like(chunks[{rank}]), chunks, op={op}, group={group})"],
        "scatter": [f"return {f}({chunks}, src={root}, group={group})"],
        "reduce": [f"y = {f}(x, {root}, op={op}, group={group})", f"return y if {rank} == {call['root']} else {off_root}"],
        "gather": [f"y = {f}(x, dst={root}, group={group})", f"y = {joined}",
                   f"return y if {rank} == {call['root']} else {off_root}"],
        "all_to_all": [f"chunks = {chunks}", f"y = {f}([torch.empty_like(chunk) for chunk in chunks], chunks, group={group})",
                       f"return torch.cat(y, {dim or 0})"],
    }[name]


def _halves(operand, dim):
    """Two tensors for a coalesced collective, one where there is little to cut."""
    return (f"halves = {operand}.split([1, {operand}.shape[{dim}] - 1], {dim})"
            f" if {operand}.dim() > {dim} and {operand}.shape[{dim}] > 1 else [{operand}]")


def _coalesced_lines(f, call, written):
    dim, group = call["dim"], written.process_group
    given = "[half.contiguous() for half in halves]"
    if call["kind"] == "all_gather":
        operand = "x.unsqueeze(0)" if dim is None else f"x.movedim({dim}, 0)"
        joined = "y.squeeze(1)" if dim is None else f"y.flatten(0, 1).movedim(0, {dim})"
        return [f"operand = {operand}", _halves("operand", 0), f"y = {f}({given}, {group})",
                f"y = torch.cat([value.clone().unflatten(0, ({written.size}, -1)) for value in y], 1)", f"return {joined}"]
    op = written.reduce_op if call["op"] == "premul_sum" else repr(call["op"])
    scatters = call["kind"] == "reduce_scatter"
    lines = [f"dim = {dim or 0} % x.dim()", "cut = 1 if dim == 0 else 0"] if scatters else ["cut = 0"]
    dims = "[dim] * len(halves), " if scatters else ""
    return [*lines, _halves("x", "cut"), f"y = [value.clone() for value in {f}({given}, {op}, {dims}{group})]",
            "return torch.cat(y, cut) if len(y) > 1 else y[0]"]


def _fc_lines(name, f, call, written):
    dim, group = call["dim"], written.process_group
    if name.endswith("_coalesced"):
        return _coalesced_lines(f, call, written)
    if name == "permute_tensor":
        destinations = [destination for _, destination in sorted(call["pairs"])]
        return [f"return {f}(x.reshape(-1), {destinations}, {group}).clone().reshape(x.shape)"]
    if name in _GATHERS:
        operand = "x.unsqueeze(0).contiguous()" if dim is None else "x.contiguous()"
        return [f"return {f}({operand}, {dim or 0}, {group}).clone()  # clone waits"]
    if name in _SCATTERS:
        return [f"return {f}(x.contiguous(), {call['op']!r}, {dim or 0}, {group}).clone()  # clone waits"]
    if name in _EXCHANGES:
        return [*_exchange_lines(call, written), f"y = {f}(operand, received, sent, {group}).clone()  # clone waits",
                f"return y.movedim(0, {dim or 0})"]
    if name == "broadcast":
        return [f"return {f}(x, {written.global_root}, {group}).clone()  # clone waits"]
    op = written.reduce_op if call["op"] == "premul_sum" else repr(call["op"])
    return [f"return {f}(x, {op}, {group}).clone()  # clone waits"]
