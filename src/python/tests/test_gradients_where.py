"""Tests what check_gradients says of steps as others write them: where backward departs, and what
is beside it. Each was told falsely, or not at all, before.

    python src/python/tests/test_gradients_where.py
"""

import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import ranks  # noqa: E402

import distgrad  # noqa: E402

RANKS = 4


class Exchange(torch.autograd.Function):
    """An all_to_all of experts' tokens. Its backward may be the identity, or receive into memory of
    the cotangent's strides, which all_to_all_single takes for contiguous."""

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake, out = mistake, torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        if ctx.mistake == "identity":
            return g, None
        out = torch.empty_like(g, memory_format=torch.preserve_format
                               if ctx.mistake == "strides" else torch.contiguous_format)
        dist.all_to_all_single(out, g.contiguous())
        return out, None


class Transposing(torch.autograd.Function):
    """Gives the cotangent the strides of a transposed tensor, as an einsum's backward does."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.t().contiguous().t()


class Experts(nn.Module):
    def __init__(self, mistake):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.gate, self.head = nn.Linear(4, 5), nn.Linear(5, 1), nn.Linear(5, 2)
        torch.manual_seed(10 + dist.get_rank())
        self.expert, self.mistake = nn.Linear(5, 5), mistake

    def forward(self, x):
        h = self.inner(x)
        gate = self.gate(h).sigmoid()
        y = torch.tanh(self.expert(Exchange.apply(h, self.mistake)))
        back = Exchange.apply(y, self.mistake if self.mistake == "strides" else "")
        return self.head(h + gate * Transposing.apply(back))


class Loss(torch.autograd.Function):
    """The sum of squares, with another one's backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum(1)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g[:, None] * (2 * x + x.abs())


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(8, 4, generator=generator).to(dtype)


def layers(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def averaged(model, loss_of, dtype=torch.float64, change=lambda: None, alone=()):
    """Returns a step with gradients that are averaged over the ranks, but those in `alone`.
    loss_of(outputs) returns a loss, or (the one that is returned, the one that backward has)."""
    x = data(dtype)

    def step():
        model.zero_grad()
        loss = loss_of(model(x))
        returned, begun = loss if isinstance(loss, tuple) else (loss, loss)
        begun.backward()
        for name, p in model.named_parameters():
            if name not in alone:
                dist.all_reduce(p.grad)
                p.grad /= RANKS
        change()
        return returned

    return step


def squares(y):
    return y.square().mean()


def rank_2_forgets(y):
    whole = squares(y) + squares(y.square())
    return whole.detach(), squares(y) if dist.get_rank() == 2 else whole


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.one, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.one(h), self.other(h)


def of_experts(mistake):
    model = Experts(mistake).double()
    x = data()

    def step():
        model.zero_grad()
        loss = squares(model(x))
        loss.backward()
        for name, p in model.named_parameters():
            if "expert" not in name:
                dist.all_reduce(p.grad)
            p.grad /= RANKS
        return loss

    return model, step


def of_blocks(on_rank):
    """Each rank has layers of its own; one rank's cotangent is doubled on the way."""
    model = layers(seed=20 + dist.get_rank())
    if dist.get_rank() == on_rank:
        model[1].register_full_backward_hook(lambda module, given, made: (2 * given[0],))
    return model, unreduced(model)


def unreduced(model):
    x = data()

    def step():
        model.zero_grad()
        loss = squares(model(x))
        loss.backward()
        return loss

    return step


def in_pairs():
    """Averages over pairs of ranks where all train together."""
    pairs = [dist.new_group(pair) for pair in ([0, 3], [1, 2])]
    mine, model, x = pairs[dist.get_rank() in (1, 2)], layers(), data()

    def step():
        model.zero_grad()
        loss = squares(model(x))
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mine)
            p.grad /= 2
        return loss

    return model, step


def alike_in_pairs():
    """Gives ranks 0 and 1, and 2 and 3, the same data, and reduces all but one bias."""
    model = layers()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(dist.get_rank() // 2)).double()

    def step():
        model.zero_grad()
        loss = squares(model(x))
        loss.backward()
        for name, p in model.named_parameters():
            if name != "2.bias":
                dist.all_reduce(p.grad)
                p.grad /= RANKS
        return loss

    for ranks_of_group in ([0, 1], [2, 3]):
        dist.new_group(ranks_of_group)
    return model, step


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.made, self.judge = layers(seed=1), nn.Linear(3, 1).double()


def of_adversaries():
    """Trains two networks in one step, which returns the loss of one of them."""
    model, x, real = Adversaries(), data(), data()[:, :3]

    def step():
        model.zero_grad()
        made = model.made(x)
        of_judge = squares(model.judge(real) - 1) + squares(model.judge(made.detach()))
        of_judge.backward()
        judging = [p.grad.clone() for p in model.judge.parameters()]
        loss = squares(model.judge(made) - 1)
        loss.backward()
        for p, g in zip(model.judge.parameters(), judging):
            p.grad = g
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= RANKS
        return loss

    return model, step


def pipeline(divisor):
    """Has a stage on each rank, and two micro-batches; rank 2 divides what it sends back."""
    rank, batches = dist.get_rank(), data().chunk(2)
    torch.manual_seed(rank)
    model = nn.Sequential()
    model.add_module(f"stage{rank}", nn.Linear(4, 4).double())

    def step():
        model.zero_grad()
        given, made, total = [], [], 0.0
        for batch in batches:
            x = batch.clone() if rank == 0 else torch.empty(4, 4).double()
            if rank:
                dist.recv(x, rank - 1)
            given.append(x.requires_grad_())
            made.append(torch.tanh(model(given[-1])))
            if rank < RANKS - 1:
                dist.send(made[-1].detach(), rank + 1)
        for x, y in zip(given, made):
            g = torch.empty(4, 4).double()
            if rank < RANKS - 1:
                dist.recv(g, rank + 1)
                y.backward(g)
            else:
                loss = squares(y) / 2
                loss.backward()
                total += loss.item()
            if rank:
                dist.send(x.grad / (divisor if rank == 2 else 1), rank - 1)
        return total if rank == RANKS - 1 else None

    return model, step


def under_autocast():
    model, x, generator = layers(torch.float32), data(torch.float32), torch.Generator()
    y = torch.randint(0, 3, (8,), generator=generator.manual_seed(dist.get_rank()))

    def step():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        loss = cross_entropy(out.float(), y)
        loss.backward()
        for name, p in model.named_parameters():
            if name != "2.weight":
                dist.all_reduce(p.grad)
                p.grad /= RANKS
        return loss

    return model, step


def with_spectral_norm():
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
    model = DistributedDataParallel(nn.Sequential(normed, nn.Tanh(), nn.Linear(8, 3)).double(),
                                    broadcast_buffers=False)
    return model, unreduced(model)


def clamping(model, most):
    """Clamps a bias in each step, as CLIP's logit scale is, far off its values, or at these."""
    step, weight = averaged(model, squares), model[2].bias.detach()
    most = float(weight.max()) if most is None else most

    def clamped():
        weight.clamp_(-most, most)
        return step()

    return clamped


def halve(model):
    for p in model.parameters():
        p.grad /= 2


def scaled_head():
    model = layers(torch.float32)

    def change():
        model[2].weight.grad *= 1024

    return model, averaged(model, squares, torch.float32, change)


def everything():
    found = {}

    def check(name, model, step, objective="mean", **options):
        report = distgrad.check_gradients(model, step, objective, raise_exception=False, **options)
        found[name] = {**report.to_dict(), "text": " ".join(str(report).split()),
                       "lines": str(report)}

    for mistake in ("", "identity", "strides"):
        check("experts " + mistake, *of_experts(mistake))
    check("blocks", *of_blocks(1), objective="sum")
    model = layers()
    check("rank 2 forgets", model, averaged(model, rank_2_forgets))
    check("own loss", model, averaged(model, lambda y: Loss.apply(y).mean()))
    check("constant", model, averaged(model, lambda y: (torch.tensor(2.0), squares(y))))
    two = TwoHeads().double()
    two.other.requires_grad_(False)
    check("two heads", two, averaged(two, lambda y: (squares(y[0]) + squares(y[1]),
                                                     squares(y[0])), alone=("other.weight",
                                                                            "other.bias")))
    check("under autocast", *under_autocast())
    check("in pairs", *in_pairs())
    check("alike in pairs", *alike_in_pairs())
    check("adversaries", *of_adversaries())
    check("pipeline", *pipeline(4), objective="sum")
    check("divided by a group", model, averaged(model, squares, change=lambda: halve(model)))
    check("spectral norm", *with_spectral_norm())
    check("1024 times", *scaled_head())
    for name, most in (("clamped far off", 100.0), ("clamped to its values", None)):
        own = layers()
        check(name, own, clamping(own, most))
    unlike = layers(seed=dist.get_rank())
    check("seeded by rank", unlike, averaged(unlike, squares))
    check("no such line", model, averaged(model, squares), detached="nothing.py:7")
    found["bad"] = [_refused(model, averaged(model, squares), **options) for options in (
        {"objective": "sum" if dist.get_rank() == 1 else "mean"}, {"copies": "no.such*"},
        {"pieces": ("0.weight", "1.weight")}, {"detached": "all"}, {"scale": 0.0},
        {"objective": lambda losses: None})]
    return found


def _refused(model, step, **options):
    try:
        distgrad.check_gradients(model, step, **options)
    except (ValueError, TypeError) as error:
        return str(error)
    return "nothing was refused"


class Where(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = ranks.run(everything, RANKS)

    def report(self, name, verdict="wrong"):
        for found in self.found:  # Every rank has the same, to the letter.
            self.assertEqual(found[name], self.found[0][name])
        self.assertEqual(self.found[0][name]["verdict"], verdict, self.found[0][name]["lines"])
        return self.found[0][name]["text"]

    def test_a_function_behind_the_output_is_named_though_the_next_lies_on_another_way(self):
        self.report("experts ", "right")
        text = self.report("experts identity")
        self.assertIn("outputs of gate and inner: the cotangent is right at the first, and wrong at"
                      " the second", text)
        self.assertRegex(text, r"Exchange in test_gradients_where.py:\d+, called after inner, is"
                               " wrong by itself: identity-backward")

    def test_a_backward_that_takes_all_strides_for_contiguous_is_not_called_right(self):
        text = self.report("experts strides")
        self.assertRegex(text, r"Exchange in test_gradients_where.py:\d+, called there, measured by"
                               " itself with contiguous cotangents, which the step's are not: x̄_r")

    def test_the_rank_is_named_on_which_the_cotangent_is_wrong(self):
        self.assertIn("outputs of 1 and 0: the cotangent is right at the first, and 2 times what it"
                      " is to be at the second, on rank 1.", self.report("blocks"))
        self.assertIn("between the loss and the output of 2, the first that could be measured on"
                      " the way back: the cotangent is wrong there, on rank 2.",
                      self.report("rank 2 forgets"))

    def test_a_loss_with_a_backward_of_its_own_is_measured(self):
        text = self.report("own loss")
        self.assertIn("between the loss and the output of 2", text)
        self.assertRegex(text, r"Loss in test_gradients_where.py:\d+, called there, is wrong by"
                               " itself")

    def test_an_output_that_backward_does_not_reach_is_looked_at(self):
        text = self.report("two heads")
        self.assertIn("between the loss and the output of other, the first that"
                      " could be measured on the way back: the cotangent is 0 times", text)

    def test_copies_that_differ_are_wrong_however_rough_the_loss_is(self):
        self.report("under autocast")
        wrong, = self.found[0]["under autocast"]["wrong"]
        self.assertEqual(wrong["parameters"], ["2.weight"])

    def test_groups_of_ranks_are_known(self):
        self.assertIn("It is the mean of what backward brought over ranks 0, 3 or ranks 1, 2."
                      " The mean of p.grad over ranks 0, 1, 2, 3 is the derivative",
                      self.report("in pairs"))
        self.assertIn("p.grad is 0.5 times the derivative of the loss: 1 over the number of ranks"
                      " in a group.", self.report("divided by a group"))

    def test_what_nothing_reduces_is_no_mean_over_ranks_that_have_it_alike(self):
        self.assertIn("It is what backward brought. The mean of p.grad over ranks 0, 1, 2, 3 is",
                      self.report("alike in pairs"))

    def test_outputs_of_which_nothing_is_known_are_no_right_ones(self):
        text = self.report("adversaries")
        self.assertRegex(text, r"others of modules? judge could not be|those of module judge could")
        self.assertNotIn("the mistake lies between", text)

    def test_the_stages_of_a_pipeline_between_which_backward_departs_are_named(self):
        # Which of the right stages comes before it depends on how micro-batches overtake.
        self.assertRegex(self.report("pipeline"), r"the outputs of stage[23]( \(call 2\))? and"
                         r" stage1 \(call 2\): the cotangent is right at the first, and 0.25 times")

    def test_what_a_module_inside_ddp_computes_under_no_grad_is_the_steps(self):
        self.assertIn("p.grad is the derivative of the loss if what step() detaches is a constant",
                      self.report("spectral norm", "disputed"))

    def test_a_large_factor_is_told_in_float32(self):
        self.assertIn("2.weight p.grad is 1024 times", self.report("1024 times"))

    def test_writing_the_same_values_to_a_parameter_is_nothing(self):
        self.report("clamped far off", "right")
        self.assertIn("step() writes to parameters (2.bias)",
                      self.report("clamped to its values", "undecided"))

    def test_what_else_a_reader_should_know(self):
        self.assertIn("the loss that step() returned was the same however parameters were moved",
                      self.report("constant"))
        self.assertIn("0.weight, 0.bias, 2.weight, 2.bias: the values differ from rank to rank, so"
                      " each is taken for a piece of its own; p.grad is the same on all ranks",
                      self.report("seeded by rank"))
        self.assertIn("nothing was detached at nothing.py:7", self.report("no such line", "right"))

    def test_options_that_cannot_be_meant_are_refused_on_all_ranks(self):
        texts = ["objective is 'mean' on rank 0, and 'sum' on rank 1: all ranks are to give the"
                 " same", "copies: no parameter is named 'no.such*'",
                 "pieces: no parameter is named '1.weight'",
                 "detached: 'all' is not a line, such as byol.py:12; True stands for whatever is"
                 " detached", "scale is to be what gradients are multiplied by, not 0.0",
                 "objective(losses) returned a NoneType: it is to return one number"]
        for found in self.found:
            self.assertEqual(found["bad"], texts)


if __name__ == "__main__":
    unittest.main()
