"""Tests that check_step's `Where:` says what was measured, on steps about which it once said
something false, and on similar ones."""

import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import distgrad  # noqa: E402


def report_of(parallel, single, world_size, **options):
    """Returns check_step's report, also if the step is wrong."""
    try:
        return distgrad.check_step(parallel, single, world_size, timeout_s=200, **options)
    except AssertionError as error:
        return error.report


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def numbers(*shape, seed=2, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---- tokens that repeat: nobody knows which rank computes which of their rows


ROWS = [17, 9, 14]
TOKENS = torch.randint(0, 24, (40,), generator=torch.Generator().manual_seed(3))
LABELS = torch.randint(0, 8, (40,), generator=torch.Generator().manual_seed(4))


def tagger(dtype):
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(30, 4), nn.Linear(4, 8)).to(dtype)


def tag(rank, tokens, dtype, skipped=(), times=1):
    model, at = tagger(dtype), sum(ROWS[:rank])
    mine = [i for i in range(at, at + ROWS[rank]) if i not in skipped]
    (F.cross_entropy(model(tokens[mine]), LABELS[mine], reduction="sum") / 40).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    model[1].bias.grad *= times
    return gradients(model)


def tag_all(tokens, dtype):
    model = tagger(dtype)
    losses = F.cross_entropy(model(tokens), LABELS, reduction="none")
    losses.mean().backward()
    return gradients(model), losses.detach()  # Such losses have no graph, and tell nothing.


class Rows(unittest.TestCase):
    def report(self, tokens, dtype=torch.float64, **mistake):
        return str(report_of(lambda rank: tag(rank, tokens, dtype, **mistake),
                             lambda: tag_all(tokens, dtype), 3))

    def test_of_tokens_that_repeat_no_row_is_said_to_be_missing(self):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            text = " ".join(self.report(TOKENS, dtype, times=3).split())
            self.assertIn("Backward was not measured, as the step computes in bfloat16."
                          if dtype == torch.bfloat16 else
                          "1.bias: the single run's gradient is what backward brought, added up"
                          " over all ranks; p.grad is 3 times what backward brought", text)
            self.assertNotIn("computed by no rank", text)

    def test_rows_that_are_missing_are_said_where_no_other_is_like_them(self):
        tokens = TOKENS.clone()
        tokens[20:22] = torch.tensor([28, 29])  # These tokens occur once.
        text = self.report(tokens, skipped=(20, 21))
        self.assertIn("rows 20-21 of 40 of the output of 0 are computed by no rank", text)
        self.assertNotIn("right in all", text)

    def test_of_rows_that_are_missing_among_such_as_are_like_them_none_is_named(self):
        skipped = next(i for i in range(17, 26) if int((TOKENS == TOKENS[i]).sum()) > 1)
        text = self.report(TOKENS, skipped=(skipped,))
        self.assertNotIn("computed by no rank", text)
        self.assertNotIn("right in all", text)


# ---- three stages; the last receives all micro-batches into one buffer


X = numbers(8, 4)


def stages():
    torch.manual_seed(1)
    return nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 5), "c": nn.Linear(5, 3)}
                        ).double()


def staged(rank, stale):
    model, width = stages(), (4, 4, 5)[rank]
    name, received, sent = "abc"[rank], [], []
    for x in X.chunk(4):
        if rank > 0:
            is_new = not (stale and rank == 2 and received)
            x = torch.empty(2, width, dtype=torch.float64) if is_new else received[-1]
            dist.recv(x, rank - 1)
            received.append(x)
        elif rank == 0:
            received.append(x)
        if rank < 2:
            with torch.no_grad():
                dist.send(model[name](x).tanh(), rank + 1)
    model = stages()  # Forward runs again, now with a graph.
    for x in received:
        x = x.clone().requires_grad_(rank > 0)
        y = model[name](x)
        if rank == 2:
            y.square().sum().backward()
        else:
            y, cotangent = y.tanh(), torch.empty(2, (4, 5)[rank], dtype=torch.float64)
            dist.recv(cotangent, rank + 1)
            y.backward(cotangent)
        if rank > 0:
            dist.send(x.grad, rank - 1)
        sent.append(y)
    return gradients(model)


def not_staged():
    model = stages()
    model["c"](model["b"](model["a"](X).tanh()).tanh()).square().sum().backward()
    return gradients(model)


class Stages(unittest.TestCase):
    def test_a_stage_that_has_one_micro_batch_four_times_is_not_right_in_forward(self):
        report = report_of(lambda rank: staged(rank, True), not_staged, 3,
                           partly_held=["a.*", "b.*", "c.*"])
        text = " ".join(str(report).split())
        self.assertIn("(1 backward), and to 1.38357 on the ranks (4 backwards)", text)
        self.assertIn("In forward, rows 0-5 of 8 of the output of c are computed by no rank", text)
        self.assertNotIn("right in all", text)


# ---- what is not recorded


def complex_step(rank, ranks, keeps_imaginary):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.complex64),
                          nn.Linear(4, 1, dtype=torch.complex64))
    x = numbers(9, 3, dtype=torch.complex64).chunk(ranks)[rank]
    model(x).abs().square().mean().backward()
    for p in model.parameters():
        whole = torch.view_as_real(p.grad).clone()
        if ranks > 1:
            dist.all_reduce(whole)
        whole /= ranks
        p.grad = torch.complex(whole[..., 0], whole[..., 1] * keeps_imaginary)
    return gradients(model)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()

    def loss(self, x):
        h = F.linear(x, self.up.weight, self.up.bias).tanh()
        return F.linear(h, self.down.weight, self.down.bias).square().mean()


def bare(rank, ranks, reduces):
    model = Bare()
    model.loss(numbers(9, 4).chunk(ranks)[rank]).backward()
    for name, p in model.named_parameters():
        if ranks > 1 and reduces in name:
            dist.all_reduce(p.grad)
            p.grad /= ranks
    return gradients(model)


class WithoutModules(unittest.TestCase):
    def test_complex_outputs_are_moved(self):
        text = " ".join(str(report_of(lambda rank: complex_step(rank, 3, 0),
                                      lambda: complex_step(0, 1, 1), 3)).split())
        self.assertIn("added up over all ranks; p.grad is no sum of that", text)
        self.assertNotIn("departs", text)

    def test_nothing_is_said_of_weights_that_are_used_without_their_module(self):
        report = report_of(lambda rank: bare(rank, 3, "up"), lambda: bare(0, 1, "up"), 3)
        self.assertEqual(report.where["text"], ["No output of a module could be measured."])


# ---- an embedding that is cut by rows


def embedded(rank, ranks, times):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)).double()
    if ranks > 1:
        plan = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
        parallelize_module(model, init_device_mesh("cpu", (ranks,)), {"0": plan})
    (model(torch.arange(9)).square().sum() * times).backward()
    return gradients(model)


class Embeddings(unittest.TestCase):
    def test_an_embedding_that_is_cut_by_rows_is_watched(self):
        report = report_of(lambda rank: embedded(rank, 3, 2), lambda: embedded(0, 1, 1), 3)
        text = " ".join(str(report).split())
        self.assertIn("3 of 3 gradients are wrong", text)
        self.assertIn("27.9414 on the ranks: on average 2 times as much", text)
        self.assertNotIn("AssertionError", text)


# ---- modules that write into their input; modules that are called several times


def activated(rank, ranks, slope=0.0):
    model = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(slope, inplace=True), nn.Linear(6, 2))
    torch.manual_seed(2)
    for p in model.parameters():
        nn.init.normal_(p)
    model(numbers(9, 4, dtype=torch.float32).chunk(ranks)[rank]).square().sum().backward()
    for p in model.parameters() if ranks > 1 else ():
        dist.all_reduce(p.grad)
    return gradients(model)


def repeated(rank, ranks, third=1.0):
    torch.manual_seed(2)
    model = nn.ModuleDict({"cell": nn.Linear(4, 4), "head": nn.Linear(4, 2)}).double()
    h = numbers(9, 4).chunk(ranks)[rank]
    for factor in (1.0, 1.0, third):
        h = model["cell"](h * factor).tanh()
    model["head"](h).square().sum().backward()
    for p in model.parameters() if ranks > 1 else ():
        dist.all_reduce(p.grad)
    return gradients(model)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def reduced_late(rank, ranks, times=1.0):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    Same.bound = getattr(Same, "bound", Same.apply)  # as a module may bind it when imported
    Same.bound(model(numbers(9, 4).chunk(ranks)[rank])).square().sum().backward()
    for p in model.parameters() if ranks > 1 else ():
        dist.all_reduce(p.grad)
        p.grad *= times
    return gradients(model)


class Outputs(unittest.TestCase):
    def forward(self, step, **mistake):
        report = report_of(lambda rank: step(rank, 3, **(mistake if rank == 1 else {})),
                           lambda: step(0, 1), 3)
        return " ".join(str(report).split())

    def test_a_module_that_writes_into_its_input_has_an_output(self):
        self.assertIn("Forward is right up to the output of 0, and departs in that of 1, on rank 1",
                      self.forward(activated, slope=0.5))

    def test_what_communicates_after_backward_is_of_the_first_run_alone(self):
        text = self.forward(reduced_late, times=2.0)
        self.assertRegex(text, r"from the last backward on: allreduce in \S+:\d+, 4 times\.")

    def test_calls_of_one_module_are_told_apart(self):
        self.assertIn("Forward is right up to the output of cell (call 2), and departs in that of"
                      " cell (call 3), on rank 1", self.forward(repeated, third=2.0))


# ---- a gradient that is zero on paper; clipping by hand


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (2, 4)).transpose(1, 2) for m in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attention(rank, ranks, times=1.0, of_bias=1.0, clips=""):
    model = Attention()
    (model(numbers(6, 5, 8, dtype=torch.float32).chunk(ranks)[rank]).square().mean()
     * times).backward()
    if ranks > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= ranks
    model.q.bias.grad *= of_bias
    if clips == "by hand":
        norm = sum(float(p.grad.square().sum()) for p in model.parameters())**0.5
        for p in model.parameters():
            p.grad *= 0.01 / norm
    elif clips:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return gradients(model)


class Attentions(unittest.TestCase):
    def text(self, **mistake):
        clips = {"clips": "it"} if "clips" in mistake else {}
        return " ".join(str(report_of(lambda rank: attention(rank, 3, **mistake),
                                      lambda: attention(0, 1, **clips), 3)).split())

    def test_the_keys_bias_is_rounding_in_a_model_that_is_scaled(self):
        text = self.text(times=1024.0)
        self.assertIn("7 of 8 gradients are wrong", text)
        self.assertNotIn("k.bias", text.replace("q.bias", ""))

    def test_the_keys_bias_is_not_what_backward_gives_wrongly(self):
        text = self.text(of_bias=1.5)
        self.assertIn("q.bias 3/2 times the reference", text)
        self.assertIn("q.bias: the single run's gradient is 0.3333 times what backward brought,"
                      " added up over all ranks; p.grad is 0.5 times what backward", text)
        self.assertNotIn("k.bias", text)

    def test_who_clips_by_hand_is_not_said_not_to_clip(self):
        self.assertNotIn("clip_grad_norm_", self.text(of_bias=1.5, clips="by hand"))



# ---- what one rank, or one run, detaches; modules whose output depends on no data


class Tagger(nn.Module):
    def __init__(self, detaches):
        super().__init__()
        torch.manual_seed(1)
        self.token, self.place = nn.Embedding(12, 4), nn.Embedding(3, 4)
        self.body, self.head, self.detaches = nn.Linear(4, 4), nn.Linear(4, 5), detaches

    def forward(self, x):
        hidden = torch.tanh(self.body(self.token(x) + self.place(torch.arange(3))))
        aside = self.head(hidden.detach() if self.detaches else hidden)
        return self.head(hidden) + 0.3 * aside.flip(1)


IDS = torch.randint(0, 12, (6, 3), generator=torch.Generator().manual_seed(6))
TAGS = torch.randint(0, 5, (6, 3), generator=torch.Generator().manual_seed(7))


def tagged(rank, ranks, change=None, detaches=False, most=None, has_all=False):
    model = Tagger(detaches).double()
    if change:
        change(model, rank)
    x, y = (IDS, TAGS) if has_all else (z.chunk(ranks)[rank] for z in (IDS, TAGS))
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    for p in model.parameters() if ranks > 1 else ():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.grad /= ranks
    if most:
        nn.utils.clip_grad_norm_(model.parameters(), most)
    return gradients(model)


def detach_on_rank_1(model, rank):
    if rank == 1:
        model.body.register_forward_hook(lambda module, given, x: x.detach())


def double_in_backward(model, rank):
    model.body.register_full_backward_hook(lambda module, given, made: (2 * given[0],))


class Spoilt(nn.Embedding):
    def forward(self, x):
        return 1.5 * super().forward(x)


def spoil_tokens(model, rank):
    model.token.__class__ = Spoilt


class Tags(unittest.TestCase):
    def text(self, of_single=None, **mistake):
        return " ".join(str(report_of(lambda rank: tagged(rank, 3, **mistake), lambda: tagged(
            0, 1, **(of_single or {})), 3)).split())

    def test_what_one_rank_detaches_is_no_mistake_after_backward(self):
        text = self.text(change=detach_on_rank_1)
        self.assertIn("and body: the cotangent is right at the first, and 0 times what it is to be"
                      " at the second, on rank 1.", text)
        self.assertRegex(text, r"With what is detached at test_where_says.py:\d+ as a constant, it"
                               " is right at all of these outputs")

    def test_what_the_single_run_alone_detaches_is_said(self):
        text = self.text(of_single={"detaches": True})
        self.assertRegex(text, r"The single run detaches at test_where_says.py:\d+, and the ranks"
                               " do not")
        self.assertNotIn("the mistake lies between", text)

    def test_what_requires_no_gradient_on_the_ranks_is_said(self):
        text = self.text(change=lambda model, rank: model.place.requires_grad_(False))
        self.assertIn("place.weight requires no gradient on the ranks.", text)
        self.assertNotIn("the mistake lies between", text)

    def test_an_output_that_depends_on_no_data_is_no_copy(self):
        text = self.text(change=double_in_backward)
        self.assertRegex(text, "and (token|place): the cotangent is right at the first, and 2 ")
        text = self.text(most=0.05)
        self.assertNotIn("and place:", text)
        self.assertRegex(text, r"clip_grad_norm_ in test_where_says.py:\d+ multiplies p.grad by"
                               r" 0\.\d+ on the ranks; no such call was seen in the single run")

    def test_a_module_on_another_way_is_not_passed_over(self):
        text = self.text(change=spoil_tokens, has_all=True)
        self.assertIn("The output of token is not the single run's on ranks 0, 1, 2. That of place"
                      " is, and that of body is not.", text)

    def test_another_norm_to_clip_to_is_said(self):
        text = self.text(most=0.05, of_single={"most": 0.1})
        self.assertRegex(text, r"clip_grad_norm_ in test_where_says.py:\d+ clips to 0.05, 0.05,"
                               " 0.05 on the ranks, to 0.1 in the single run")

    def test_of_gradients_that_are_off_by_very_little_no_place_is_said(self):
        def text_of(factor):
            def off(model, rank):
                model.body.register_full_backward_hook(
                    lambda module, given, made: (factor * given[0],))

            return self.text(change=off)

        self.assertIn("and place: the cotangent is right at the first, and 1.004 times",
                      text_of(1.004))
        self.assertIn("p.grad is off by too little to tell where", text_of(1.00005))


# ---- a pipeline whose last stage sends gradients back in another order


def piped(rank):
    torch.manual_seed(1)
    first, last = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()
    if rank == 1:
        model, losses = nn.ModuleDict({"last": last}), []
        for _ in range(4):
            x = torch.empty(2, 4, dtype=torch.float64)
            dist.recv(x, 0)
            losses.append((x.requires_grad_(), model["last"](x).square().mean() / 4))
        for x, loss in losses:
            loss.backward()
            dist.send(x.grad, 0)
        return gradients(model)
    model = nn.ModuleDict({"first": first})
    outputs = [model["first"](x) for x in X.chunk(4)]
    for x in outputs:
        dist.send(x.detach(), 1)
    for x in reversed(outputs):
        g = torch.empty_like(x)
        dist.recv(g, 1)
        x.backward(g)
    return gradients(model)


def not_piped():
    torch.manual_seed(1)
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "last": nn.Linear(4, 3)}).double()
    model["last"](model["first"](X)).square().mean().backward()
    return gradients(model)


class Pipes(unittest.TestCase):
    def test_gradients_of_other_micro_batches_depart_at_the_stage(self):
        text = " ".join(str(report_of(piped, not_piped, 2)).split())
        self.assertRegex(text, r"Backward departs between the outputs of last .*and first .*: the"
                               " cotangent is right at the first, and wrong at the second")


# ---- a function that sums in a subgroup is not judged by itself


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class SumTwice(Copy):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group, x = group, x.clone()
        dist.all_reduce(x, group=group)
        return x


def in_pairs(rank, ranks):
    torch.manual_seed(1)
    model = nn.ModuleDict({"norm": nn.LayerNorm(4), "up": nn.Linear(4, 4, bias=False),
                           "down": nn.Linear(4, 3, bias=False), "head": nn.Linear(3, 2)}).double()
    up, down = model["up"].weight, model["down"].weight
    x = model["norm"](X.chunk(2)[rank // 2] if ranks > 1 else X)
    if ranks > 1:
        group = [dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2]
        across = [dist.new_group(pair) for pair in ([0, 2], [1, 3])][rank % 2]
        up, down = up.chunk(2)[rank % 2], down.chunk(2, 1)[rank % 2]
        x = Copy.apply(x, group)
    y = F.linear(torch.tanh(F.linear(x, up)), down)
    y = SumTwice.apply(y, group) if ranks > 1 else y
    model["head"](y).square().mean().backward()
    found = {n: p.grad for n, p in model.named_parameters() if n.startswith(("norm", "head"))}
    for g in found.values() if ranks > 1 else ():
        dist.all_reduce(g, group=across)
        g /= 2
    return found


class Subgroups(unittest.TestCase):
    def test_functions_are_not_wrong_by_themselves(self):
        text = str(report_of(lambda rank: in_pairs(rank, 4), lambda: in_pairs(0, 1), 4))
        self.assertIn("SumTwice in ", text)
        self.assertIn("called there, measured by itself: ", text)
        self.assertNotIn("is wrong by itself", text)


# ---- what parameters with right gradients show


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, a, b):
        return (F.normalize(self.image(a), dim=-1), F.normalize(self.text(b), dim=-1),
                self.scale.exp())


def contrast(images, texts, scale):
    logits = scale * images @ texts.T
    return F.cross_entropy(logits, torch.arange(9)) + F.cross_entropy(logits.T, torch.arange(9))


def towers(rank=0, ranks=1, mistake=""):
    torch.manual_seed(4)
    model = Towers().double()
    a, b = (numbers(9, n).chunk(ranks)[rank] for n in (6, 5))
    if ranks == 1:
        contrast(*model(a, b)).backward()
        return gradients(model)

    def gathered(x):
        if mistake != "own slice":
            return torch.cat(dist.nn.functional.all_gather(x))
        every = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(every, x.detach())
        every[rank] = x
        return torch.cat(every)

    wrapped = nn.parallel.DistributedDataParallel(model)  # It reduces as long as it lives.
    images, texts, scale = wrapped(a, b)
    contrast(gathered(images), gathered(texts), scale).backward()
    if mistake == "scale summed":
        dist.all_reduce(model.scale.grad)
    return gradients(model)


class Shift(torch.autograd.Function):
    """Gets rank r's x on rank r + k, and leaves the cotangent where it is."""

    @staticmethod
    def forward(ctx, x, k):
        every = [torch.empty_like(x) for _ in range(3)]
        dist.all_gather(every, x.contiguous())
        return every[(dist.get_rank() - k) % 3].clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


class Attending(nn.Module):
    """Hands on what `mean` gave, which goes into `head`, too."""

    def __init__(self):
        super().__init__()
        self.into, self.keys, self.mean = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.head = nn.Linear(2, 3)

    def forward(self, x, ranks):
        x = self.into(x)
        keys = self.keys(x)
        keys = torch.cat([keys] + [Shift.apply(keys, k) for k in range(1, ranks)], 1)
        mean = self.mean(x + (x @ keys.mT).softmax(-1) @ keys)
        return self.head(torch.tanh(mean)), mean


def attend(rank=0, ranks=1):
    torch.manual_seed(1)
    model, x = Attending().double(), numbers(2, 9, 3).chunk(ranks, 1)[rank]
    out, mean = model(x, ranks)
    ((F.mse_loss(out, x) + 0.1 * mean.square().mean()) / ranks).backward()
    for p in model.parameters() if ranks > 1 else ():
        dist.all_reduce(p.grad)
    return gradients(model)


def gated(rank=0, ranks=1, mistake=""):
    torch.manual_seed(1)
    model = nn.ModuleDict({"into": nn.Linear(6, 4), "router": nn.Linear(4, 2),
                           "expert": nn.Linear(4, 2)}).double()
    x = model["into"](numbers(6, 6).chunk(ranks)[rank])
    gate = model["router"](x)
    gate = gate.detach() if mistake == "gate" else gate
    (gate.sigmoid() * model["expert"](x)).square().mean().backward()
    found = gradients(model)
    for name, p in model.named_parameters():
        if ranks > 1:
            found[name] = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(found[name])
            found[name] /= ranks
    return found


class RightParameters(unittest.TestCase):
    def towers(self, mistake):
        return " ".join(str(report_of(lambda rank: towers(rank, 3, mistake), towers, 3)).split())

    def test_a_cotangent_before_a_mean_may_be_a_multiple(self):
        text = self.towers("scale summed")
        self.assertIn("FAIL scale 3 times the reference", text)
        self.assertNotIn("Backward departs", text)

    def test_what_a_mean_leaves_too_small_is_not_called_right(self):
        text = self.towers("own slice")
        self.assertIn("a mean, as DDP takes, would need them 3 times as large", text)
        self.assertNotIn("the mistake lies between there and p.grad", text)

    def test_a_detached_gate_is_named_by_its_line(self):
        text = " ".join(str(report_of(lambda rank: gated(rank, 2, "gate"), gated, 2)).split())
        self.assertRegex(text, r"With what is detached at test_where_says.py:\d+ as a constant, it"
                               " is right at all of these outputs")

    def test_a_tensor_that_is_handed_on_has_the_cotangent_of_all_its_uses(self):
        text = " ".join(str(report_of(lambda rank: attend(rank, 3), attend, 3)).split())
        self.assertIn("Backward departs between the outputs of mean and keys", text)
        self.assertRegex(text, r"Shift in \S+, called there, is wrong by itself: identity-backward")


if __name__ == "__main__":
    unittest.main()
