"""Lists functions that leave a term out of autograd. Nobody can know whether that is meant or a
mistake unless it is declared."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .parts import (Case, function, gathered, group, matrix, max_of, me, n, reduced, right_gather,
                    right_sum)

identity = function(reduced, lambda g, x: g.clone())
half = function(lambda x: x.clone(), lambda g, x: g / 2)
whole_max = function(max_of, lambda g, x: reduced(g) * (x == max_of(x)))
nothing_back = function(lambda x: x, lambda g, x: torch.zeros_like(g))
average_in_a_function = function(lambda x: reduced(x.detach()), lambda g, x: g / n())


def own_labels(x):
    return torch.arange(len(x)) + len(x) * me()


def momentum_keys(q, k):
    with torch.no_grad():
        rows = gathered(k).flatten(0, 1)
    return F.cross_entropy(q @ rows.T, own_labels(q))


def keys_of_a_function(q, k):
    with torch.no_grad():
        rows = right_gather.__self__.apply(k).flatten(0, 1)  # Callers of a class look apply up.
    return F.cross_entropy(q @ rows.T, own_labels(q))


def predicts_target(a, b):
    return (a - b.detach()).square().sum()


def softmax_over_ranks(x):
    """Detaches the denominator, which depends on x."""
    e = x.exp()
    with torch.no_grad():
        s = reduced(e.sum())
    return e / s


def logsumexp_over_ranks(x):
    """Counts the maximum's own gradient in addition."""
    m = whole_max(x)
    return m + right_sum((x - m.detach()).exp()).log()


def right_logsumexp(x):
    m = whole_max(x).detach()
    return m + right_sum((x - m).exp()).log()


def own_row_kept(x, own=lambda x: x):
    with torch.no_grad():
        rows = list(gathered(x))
    rows[me()] = own(x)
    return torch.cat(rows).square().sum()


def plain_gather(x):
    """Detaches nothing, but its collective has no gradient."""
    rows = list(gathered(x.clone()))
    rows[me()] = x
    return torch.cat(rows).square().sum()


def only_own_requires_grad(x):
    """Keeps the others' parts as constants, as SimCSE does."""
    parts = list(gathered(x.detach()).unbind(0))
    parts[me()] = x
    return parts


def all_gathered(x):
    return gathered(x.detach()).flatten(0, 1)


@torch.no_grad()
def squares(x):
    return reduced(x.square().sum())


def global_norm(x):
    return x / squares(x).sqrt()


def norm_by_item(x):
    size = x.square().sum()
    assert size.item() > 0  # This changes nothing, so the report must not name this line.
    return right_sum(x) * size.sqrt().item()


def weighted_by_data(x):
    return right_sum(x * x.data)


def both_ways(p, z):
    """Computes SimSiam's loss."""
    return -F.cosine_similarity(p, z.detach(), -1) - F.cosine_similarity(z, p.detach(), -1)


def centred_teacher(s, t):
    """Computes DINO's loss, whose centre is that of all ranks."""
    with torch.no_grad():
        centre = reduced(t.mean(0, keepdim=True)) / n()
        shares = ((t - centre) / 0.5).softmax(-1)
    return -(shares * s.log_softmax(-1)).sum(-1)


def codes(x):
    """Computes SwaV's assignments, which all ranks balance."""
    scores = x.tanh()
    with torch.no_grad():
        shares = torch.exp(scores.detach() / 0.5)
        shares = shares / reduced(shares.sum(0))
    return -(shares * torch.log_softmax(scores, 1)).sum(1)


def codes_beside_a_sum(x):
    return codes(x) + function(reduced, lambda g, x: g * x)(x).sum()


def keys_of_the_own(x):
    with torch.no_grad():
        keys = gathered(x.tanh()).flatten(0, 1)
    return (x.sin() @ keys.T).logsumexp(1)


def straight_through(x):
    return x + (x.round() - x).detach()


def reduced_under_no_grad(x):
    """Reduces in place, so that nothing is detached and the gradient is the identity's."""
    y = x.clone()
    with torch.no_grad():
        dist.all_reduce(y, group=group())
    return y


def wrong_sum_and_target(x, t):
    return (identity(x) - t.detach()).square()


def wrong_sum_of_keys(x, w):
    with torch.no_grad():
        keys = gathered(x).flatten(0, 1)
    return identity(x @ w).sum() + (x @ keys.T).logsumexp(1).sum()


def two():
    return matrix(), matrix(low=0.1)


def x_and_w():
    return matrix(2, 3), matrix(3, 2)


def disputed(name, function, inputs, *words, **more):
    words = ("right if what it detaches is a constant, else wrong", "detached at", *words)
    return Case(name, function, inputs, verdict="disputed", words=words, **more)


def right(name, function, inputs, **more):
    """Returns a right case whose report must not mention what is detached."""
    return Case(name, function, inputs, absent=("detached", "constant"), **more)


CASES = [
    disputed("keys of a momentum encoder", momentum_keys, two, "y -> k", "k̄_r = 0",
             "all_gather under no_grad", "a usual mistake of contrastive losses",
             'constant=("k",), on the command line --constant instead of --input for k'),
    right("keys of a momentum encoder, declared", momentum_keys, two, options={"constant": "k"}),
    right("keys of a momentum encoder, all declared", momentum_keys, two,
          options={"detached": True}, ranks=(2,)),
    Case("keys: no such input", momentum_keys, two, verdict="error",
         options={"constant": ("k", "keys")}, words=("there is no input keys",)),
    Case("keys: no such line", momentum_keys, two, verdict="error",
         options={"detached": "constants.py:1"},
         words=("the function detaches nothing at constants.py:1; it does at parts.py:",)),
    right("nothing is detached, all declared", right_sum, matrix, options={"detached": True},
          words=("The function detaches nothing.",)),
    disputed("keys that a Function gathers under no_grad", keys_of_a_function, two, "y -> k",
             "no_grad", ranks=(2,)),
    disputed("a target", predicts_target, two, "y -> b", "at constants.py:", "detach()",
             "if not b̄_r = D_rᵀ ȳ_r", "if not no-gradient: on every rank"),
    disputed("a denominator under no_grad", softmax_over_ranks, matrix),
    Case("a denominator under no_grad: twice", lambda x: half(softmax_over_ranks(x)), matrix,
         "scaled", words=("1/2 times the right one",)),
    disputed("a maximum counted twice", logsumexp_over_ranks, matrix, "detach()"),
    right("a maximum that is detached everywhere", right_logsumexp, matrix),
    disputed("own rows among those gathered under no_grad", own_row_kept, matrix,
             "if not identity-backward", "a usual mistake of contrastive losses", ranks=(3, 4)),
    Case("half of the own rows among those", lambda x: own_row_kept(x, half), matrix, "scaled",
         words=("1/2 times the right one",)),
    Case("own rows among those of a plain gather", plain_gather, matrix, "identity-backward"),
    disputed("own rows among those that are detached", only_own_requires_grad, matrix,
             "if not own-slice", "x̄_r = ȳ_r[r]"),
    disputed("nothing of what is gathered", all_gathered, matrix, "if not no-gradient"),
    disputed("a norm of all ranks in a no_grad function", global_norm, matrix),
    disputed("a number of the input", norm_by_item, matrix, ".item()"),
    disputed("weights by .data", weighted_by_data, matrix, ".data", "if not scaled"),
    disputed("both ways", both_ways, two),
    disputed("a teacher with a centre", centred_teacher, two, 'constant=("t",)'),
    disputed("codes", codes, matrix),
    disputed("keys under no_grad in float32", keys_of_the_own,
             lambda: matrix(dtype=torch.float32)),
    disputed("straight through", lambda x: right_sum(straight_through(x)), matrix),
    Case("codes beside a wrong sum", codes_beside_a_sum, matrix, "other-backward"),
    Case("straight through, and identity", lambda x: identity(straight_through(x)), matrix,
         "identity-backward", ("x̄_r = ȳ_r",), ("x̄_r = Σ_k ȳ_k",),
         words=("detached at constants.py:",)),
    Case("straight through, and half", lambda x: right_sum(half(straight_through(x))), matrix,
         "scaled", ("x̄_r = 1/2 Σ_k ȳ_k",), ("x̄_r = Σ_k ȳ_k",),
         words=("detached at constants.py:",)),
    Case("reduced in place under no_grad", reduced_under_no_grad, matrix, "identity-backward"),
    Case("an average inside a Function that detaches", average_in_a_function, matrix,
         "other-backward"),
    Case("a Function that returns its input, and zeros", lambda x: right_sum(nothing_back(x).sin()),
         matrix, "no-gradient", ("x̄_r = 0",)),
    Case("beside a Function that returns its input: own",
         lambda x: x + right_sum(nothing_back(x).sin()), matrix, "identity-backward",
         ("x̄_r = ȳ_r",)),
    Case("a wrong sum and a target", wrong_sum_and_target, two, "missing-reduction",
         words=("y -> x", "y -> t: the backward is right, with that as a constant")),
    Case("a wrong sum and keys", wrong_sum_of_keys, x_and_w, "missing-reduction", alone=False,
         words=("identity-backward y -> w",)),
    Case("a wrong sum and keys, all declared", wrong_sum_of_keys, x_and_w, "missing-reduction",
         alone=False, options={"detached": True}),
]
