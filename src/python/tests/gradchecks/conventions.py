"""Lists layers whose right gradient depends on the objective that the ranks' losses form, and on
which inputs are copies of one tensor."""

from functools import partial

import torch

from .parts import Case, function, matrix, n, reduced, right_sum

enter = function(lambda x: x.clone(), lambda g, x: reduced(g))
leave = function(reduced, lambda g, x: g.clone())
averaged_copy = function(lambda w: w.clone(), lambda g, w: reduced(g) / n())


def same(*shape):
    generator = torch.Generator().manual_seed(77)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64).requires_grad_()


def layer(x, a, b):
    return leave((enter(x) @ a).tanh() @ b)


def without_entering(x, a, b):
    return leave((x @ a).tanh() @ b)


def entered_twice(x, a, b):
    return leave((enter(enter(x)) @ a).tanh() @ b)


def summed_twice(x, a, b):
    return right_sum((enter(x) @ a).tanh() @ b)


def with_bias(x, a, b, c):
    return x + layer(x, a, b) + c


def bias_in_each_part(x, a, b, c):
    """Adds the bias on each rank, so that it counts as often as there are ranks."""
    return leave((enter(x) @ a).tanh() @ b + c)


def bias_of_pieces(x, a, b, c):
    return leave((enter(x) @ a + c).tanh() @ b)


def latent_attention(x, wq, wk, wpe, wo, entering):
    """Takes x and wpe as copies on all ranks, and the others as this rank's heads."""
    q = (enter(x) @ wq).view(-1, 2, 4)
    own = (enter(x) @ wk).view(-1, 2, 2)
    shared = entering(x @ wpe)
    k = torch.cat([own, shared[:, None, :].expand(-1, 2, 2)], -1)
    weights = torch.einsum("she,the->hst", q, k).softmax(-1)
    return leave(torch.einsum("hst,the->she", weights, k).reshape(-1, 8) @ wo)


def of_attention():
    return same(2, 3), matrix(3, 8), matrix(3, 4), same(3, 2), matrix(8, 3)


def of_layer():
    return same(2, 3), matrix(3, 2), matrix(2, 3)


def of_biased():
    return *of_layer(), zeros(2)


def of_data():
    return matrix(2, 3).detach(), same(3, 2)


def squares(x, w):
    return ((x @ averaged_copy(w)) ** 2).sum(-1)


def replicated(name, function, inputs, finding=None, words=(), copies=None, **more):
    return Case(name, function, inputs, finding, words=words,
                options={"objective": "replicated", "copies": copies, "directions": 4}, **more)


ASSUMED = "copies of one tensor on each rank: x (assumed, as they are equal on all ranks)"

CASES = [
    replicated("attention that shares a part of its keys",
               partial(latent_attention, entering=enter), of_attention,
               words=("x, wpe (assumed", "grad(wpe)_r = Σ_k J_kᵀ ȳ", "grad(wq)_r = J_rᵀ ȳ")),
    replicated("attention, the shared part not entered",
               partial(latent_attention, entering=lambda shared: shared), of_attention,
               "unsynchronised", ("gradcheck: wrong", "unsynchronised y -> x",
                                  "missing-reduction y -> wpe"), alone=False,
               absent=("-> wq", "-> wk", "-> wo")),
    replicated("attention, its copies named", partial(latent_attention, entering=enter),
               of_attention,
               copies=("x", "wpe"), words=("copies of one tensor on each rank: x, wpe",),
               absent=("assumed",)),
    replicated("a layer", layer, of_layer, words=(ASSUMED, "x̄_r = Σ_k J_kᵀ ȳ", "ā_r = J_rᵀ ȳ")),
    replicated("a layer without entering", without_entering, of_layer, "missing-reduction",
               ("y -> x", "measured x̄_r = J_rᵀ ȳ right x̄_r = Σ_k J_kᵀ ȳ")),
    replicated("a layer that is entered twice", entered_twice, of_layer, "double-reduction",
               ("y -> x", "3 times the right one")),
    replicated("a layer with the sum of many losses", summed_twice, of_layer, "double-reduction",
               ("y -> x", "y -> a, b"), alone=False),
    replicated("a layer and its bias", with_bias, lambda: (*of_layer(), same(3)),
               words=("x, c (assumed",)),
    replicated("a layer and its bias, all 0", with_bias, lambda: (*of_layer(), zeros(3)),
               words=("x, c (assumed",)),
    replicated("a bias of pieces, all 0", bias_of_pieces, of_biased, verdict="undecided",
               words=("c is 0 on all ranks, beside inputs that differ",), absent=("x is 0",),
               alone=False),
    replicated("a bias of pieces, all 0, and x not entered",
               lambda x, a, b, c: leave((x @ a + c).tanh() @ b), of_biased, "missing-reduction",
               ("gradcheck: wrong", "y -> x", "c is 0 on all ranks"), absent=("-> c",),
               alone=False),
    replicated("a bias of pieces, its copies named", bias_of_pieces, of_biased, copies=("x",),
               absent=("is 0 on all ranks",)),
    replicated("a bias in each part", bias_in_each_part, lambda: (*of_layer(), same(3)),
               "missing-reduction", ("y -> c",)),
    replicated("a sum of the ranks' own", leave, matrix, absent=("copies",)),
    replicated("a sum that is halved", function(reduced, lambda g, x: g / 2), matrix, "scaled",
               ("1/2 times the right one",)),
    replicated("a sum without a gradient", function(reduced, lambda g, x: torch.zeros_like(g)),
               matrix, "no-gradient"),
    replicated("a part of the columns", lambda x, a: enter(x) @ a, lambda: of_layer()[:2],
               words=("by the one tensor x",)),
    replicated("a part of the columns without entering", lambda x, a: x @ a,
               lambda: of_layer()[:2], "missing-reduction", ("y -> x",)),
    Case("a large layer", layer, lambda: (same(20, 30), matrix(30, 20), matrix(20, 30)),
         options={"objective": "replicated", "basis": False}),
    Case("averaged over the ranks' data", squares, of_data,
         options={"objective": "mean"}, words=("divided by the 3 ranks",)),
    Case("summed, and averaged is meant", right_sum, matrix, "double-reduction",
         options={"objective": "mean"}, words=("3 times the right one",),
         absent=("as if the forward",)),
    Case("averaged, and summed is meant", squares, of_data, "scaled",
         options={"objective": "sum"}, words=("1/3 times the right one",)),
    Case("summed over the ranks' data", lambda x, w: ((x @ enter(w)) ** 2).sum(-1), of_data,
         options={"copies": "w"}),
    Case("copies that are none", right_sum, matrix, verdict="error",
         options={"copies": "x"}, words=("copies: x is not equal on all ranks",)),
    Case("copies of no name", leave, matrix, verdict="error",
         options={"copies": ("w", "v")}, words=("copies: there is no input w that",)),
]
