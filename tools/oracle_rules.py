"""The collectives and backward rules of the oracle: pure functions over all ranks of a group.

A collective is a differentiable function from the operands to the outputs. A backward rule is a
function from operands, outputs and cotangents to the operands' cotangents; a subject is a table of
rules with its source. Written from the documents alone, like tools/oracle.py, which runs them.
"""

import torch


class Invalid(Exception):
    """The scenario is wrong; the message says where and why."""


class NotOffered(Exception):
    """The subject has no row for a collective of the program."""


class Raises(Exception):
    """The subject's backward raises."""


# ---------------------------------------------------------------------------------------------
# Collectives: each is a differentiable function from the operands of a group to its outputs.


def reduce_values(call, operands):
    op = call.options.get("op", "sum")
    stacked = torch.stack(operands)
    if op == "sum":
        return stacked.sum(0)
    if op == "avg":
        return stacked.sum(0) / len(operands)
    if op == "premul_sum":
        return stacked.sum(0) * call.options["factor"]
    if op == "product":
        return stacked.prod(0)
    if op == "min":
        return stacked.amin(0)
    if op == "max":
        return stacked.amax(0)
    raise Invalid(f"step {call.step}: unknown op {op!r}")


def cut(tensor, sizes, dim):
    if sum(sizes) != tensor.shape[dim]:
        raise Invalid(f"splits {sizes} do not add up to {tensor.shape[dim]}")
    return list(torch.split(tensor, sizes, dim))


def split_sizes(call, tensor, count, row=None):
    splits = call.options.get("splits")
    if splits is not None:
        return splits if row is None else splits[row]
    extent = tensor.shape[call.dim(0)]
    if extent % count:
        raise Invalid(f"step {call.step}: {extent} elements do not divide among {count} ranks")
    return [extent // count] * count


def join(tensors, dim):
    return torch.stack(tensors) if dim is None else torch.cat(tensors, dim)


def only_on(root, value, operands, like=None):
    return [value if i == root else torch.zeros_like(value if like is None else like[i])
            for i in range(len(operands))]


class Call:
    """One collective of one group: its kind and options, and the pure function it computes."""

    def __init__(self, step, kind, options):
        self.step, self.kind, self.options = step, kind, options

    def dim(self, default):
        return self.options.get("dim", default)

    def root(self):
        return self.options.get("root", 0)

    def judged(self, i, size):
        """Whether the cotangent of rank i's output counts: not where the result is zeros."""
        if self.kind in ("reduce", "gather"):
            return i == self.root()
        if self.kind == "send_recv":
            return any(d == i for _, d in self.options["pairs"])
        return True

    def forward(self, x):
        n, kind = len(x), self.kind
        if kind == "all_reduce":
            return [reduce_values(self, x)] * n
        if kind == "reduce":
            return only_on(self.root(), reduce_values(self, x), x)
        if kind == "broadcast":
            return [x[self.root()]] * n
        if kind == "all_gather":
            return [join(x, self.dim(None))] * n
        if kind == "gather":
            return only_on(self.root(), join(x, self.dim(None)), x)
        if kind == "reduce_scatter":
            total = reduce_values(self, x)
            return cut(total, split_sizes(self, total, n), self.dim(0))
        if kind == "scatter":
            source = x[self.root()]
            return cut(source, split_sizes(self, source, n), self.dim(0))
        if kind == "all_to_all":
            pieces = [cut(x[i], split_sizes(self, x[i], n, i), self.dim(0)) for i in range(n)]
            return [torch.cat([pieces[i][j] for i in range(n)], self.dim(0)) for j in range(n)]
        if kind == "send_recv":
            source = {d: s for s, d in self.options["pairs"]}
            return [x[source[i]] if i in source else torch.zeros_like(x[i]) for i in range(n)]
        if kind == "copy":
            return list(x)
        if kind == "slice":
            return [cut(x[i], split_sizes(self, x[i], n), self.dim(0))[i] for i in range(n)]
        raise Invalid(f"step {self.step}: unknown collective {kind!r}")


# ---------------------------------------------------------------------------------------------
# Backward rules: (call, operands, outputs, cotangents) of all ranks -> cotangents of the operands.


def adjoint(call, x, y, g):
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in x]
        outputs = call.forward(leaves)
        pairs = [(o, c) for o, c in zip(outputs, g) if o.requires_grad]
        grads = torch.autograd.grad([o for o, _ in pairs], leaves, [c for _, c in pairs],
                                    allow_unused=True)
    return [torch.zeros_like(t) if d is None else d for t, d in zip(x, grads)]


def identity(call, x, y, g):
    return list(g)


def identity_over_size(call, x, y, g):
    return [c / len(x) for c in g]


def as_sum(call):
    options = {k: v for k, v in call.options.items() if k not in ("op", "factor")}
    return Call(call.step, call.kind, options)


def forgotten_op(call, x, y, g):
    return adjoint(as_sum(call), x, y, g)


def same_op(call, x, y, g):
    """The op of the forward pass, applied to the cotangents."""
    return [reduce_values(call, g)] * len(g)


def sum_to_all(call, x, y, g):
    return [torch.stack(g).sum(0)] * len(g)


def own_slice(call, x, y, g):
    """Rank i's cotangent of its own slice; what the other ranks' losses saw of it is dropped."""
    dim = call.dim(None)
    if dim is None:
        return [g[i][i] for i in range(len(g))]
    sizes = [t.shape[dim] for t in x]
    return [torch.split(g[i], sizes, dim)[i] for i in range(len(g))]


def gather_cotangents(call, x, y, g):
    return [torch.cat(g, call.dim(0))] * len(g)


def divided(call, x, y, g):
    return [d / len(x) for d in adjoint(call, x, y, g)]


def multiplied(call, x, y, g):
    return [d * len(x) for d in adjoint(call, x, y, g)]


def own_out_over_x(call, x, y, g):
    return [torch.where(t == 0, torch.zeros_like(t), c * o / t) for t, o, c in zip(x, y, g)]


def sum_out_over_x(call, x, y, g):
    total = torch.stack([c * o for c, o in zip(g, y)]).sum(0)
    return [total / t for t in x]


def own_full_to_ties(call, x, y, g):
    return [torch.where(t == o, c, torch.zeros_like(c)) for t, o, c in zip(x, y, g)]


def sum_full_to_ties(call, x, y, g):
    total = torch.stack(g).sum(0)
    return [torch.where(t == o, total, torch.zeros_like(total)) for t, o in zip(x, y)]


def none(call, x, y, g):
    raise AssertionError("handled where the outputs are detached")


def raises(call, x, y, g):
    raise Raises(f"{call.kind} has no backward")


def unpredictable(call, x, y, g):
    raise Raises("not emulated: the result depends on the backend")


# Kind, or kind/op, -> rule; the more specific key wins. "*" stands for every other kind.
LOCAL = {"copy": adjoint, "slice": adjoint}
SUBJECTS = {
    "reference": {"*": adjoint},
    # Emulated as measured on Gloo: the clone's gradient passes through (avg divides in place, which
    # autograd records); what is received into fresh buffers has no gradient.
    "in_place": {"all_reduce/avg": identity_over_size, "all_reduce": identity,
                 "broadcast": identity, "reduce/avg": identity_over_size, "reduce": identity,
                 "all_gather": none, "gather": none,
                 "*": unpredictable},
    "simclr": {"all_gather": own_slice},
    "simcse": {"all_gather": own_slice},
    "vissl": {"all_gather": adjoint},
    "barlowtwins": {"all_gather": adjoint},
    "diffdist": {"send_recv": adjoint, "gather": adjoint, "scatter": adjoint,
                 "all_gather": adjoint, "broadcast": unpredictable, "all_reduce": raises,
                 "reduce": raises},
    "fvcore": {"all_reduce/sum": adjoint, "all_gather": adjoint},
    "torch_nn": {"all_reduce": same_op, "reduce": forgotten_op, "reduce_scatter": forgotten_op,
                 "broadcast": adjoint, "scatter": adjoint, "gather": adjoint,
                 "all_gather": adjoint, "all_to_all": adjoint},
    "megatron": {"copy": sum_to_all, "all_reduce/sum": identity, "all_gather": own_slice,
                 "slice": gather_cotangents, "reduce_scatter/sum": adjoint,
                 "all_to_all": adjoint},
    "flash_attention": {"all_reduce/sum": identity},
    "mpi4jax": {"all_reduce/sum": identity},
    "deepspeed": {"all_reduce/sum": identity},
    "mpi4torch": {"all_reduce/sum": adjoint, "all_reduce": raises},
    "tensorflow": {"all_reduce/sum": adjoint, "all_reduce": raises},
    "jax_pmap": {"all_reduce/sum": adjoint, "all_reduce/avg": adjoint, "all_reduce/max": raises,
                 "all_reduce/min": raises},
    "torch_xla": {"all_reduce/sum": identity, "all_reduce/product": own_out_over_x,
                  "all_reduce/min": own_full_to_ties, "all_reduce/max": own_full_to_ties},
    "mindspore": {"all_reduce/sum": adjoint, "all_reduce/product": sum_out_over_x,
                  "all_reduce/min": sum_full_to_ties, "all_reduce/max": sum_full_to_ties,
                  "broadcast": identity},
    "horovod": {"all_reduce": same_op, "all_gather": divided, "reduce_scatter/sum": multiplied},
}

REPLAYS = {
    "identity-backward": (identity, ("all_reduce", "reduce", "broadcast")),
    "same-op-backward": (same_op, ("all_reduce",)),
    "forgotten-op": (forgotten_op, ("all_reduce", "reduce", "reduce_scatter")),
    "own-slice": (own_slice, ("all_gather",)),
}


def rule_of(subject, call):
    rows = SUBJECTS[subject]
    op = call.options.get("op", "sum")
    for key in (f"{call.kind}/{op}", call.kind):
        if key in rows:
            return rows[key]
    if call.kind in LOCAL and "*" not in rows:
        return LOCAL[call.kind]
    if "*" in rows:
        return LOCAL.get(call.kind, rows["*"]) if subject == "in_place" else rows["*"]
    raise NotOffered(f"{subject} does not offer {call.kind} {op}")


class Joint(torch.autograd.Function):
    """One node for all ranks of a group, so that every rank's backward reaches the collective."""

    @staticmethod
    def forward(ctx, call, rule, *operands):
        outputs = [o.clone() for o in call.forward(list(operands))]
        ctx.call, ctx.rule = call, rule
        ctx.save_for_backward(*operands, *outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *cotangents):
        saved, n = ctx.saved_tensors, len(cotangents)
        g = [c if ctx.call.judged(i, n) else torch.zeros_like(c)
             for i, c in enumerate(cotangents)]
        return (None, None, *ctx.rule(ctx.call, saved[:n], saved[n:], g))
