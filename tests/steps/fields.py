"""Defines steps whose data is not cut by rows: a convolutional network whose field is cut along its
height, with rows of the neighbours; a recommender whose tables lie on the ranks, by table and by
row; a graph network whose nodes are cut; adapters of frozen layers under tensor parallelism."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import made

# --- A field that is cut along its height

HEIGHT, FIELD_WIDTH, IMAGES, CHANNELS = 16, 8, 3, 6


class Halo(torch.autograd.Function):
    """Adds the neighbours' rows above and below, and zeros at the field's ends."""

    @staticmethod
    def swapped(up, down, wraps=False):
        """Returns what the neighbours send: (the upper one's `down`, the lower one's `up`)."""
        rank, n = dist.get_rank(), dist.get_world_size()
        above, below = torch.zeros_like(up), torch.zeros_like(down)
        calls = []
        if rank > 0 or wraps:
            calls += [dist.P2POp(dist.isend, up.contiguous(), (rank - 1) % n, tag=1),
                      dist.P2POp(dist.irecv, above, (rank - 1) % n, tag=2)]
        if rank < n - 1 or wraps:
            calls += [dist.P2POp(dist.isend, down.contiguous(), (rank + 1) % n, tag=2),
                      dist.P2POp(dist.irecv, below, (rank + 1) % n, tag=1)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return above, below

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        above, below = Halo.swapped(x[:, :, :1], x[:, :, -1:], mistake == "the field is a ring")
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx, grad):
        own = grad[:, :, 1:-1].clone()
        if ctx.mistake == "neighbours' rows have no gradient":
            return own, None
        from_above, from_below = Halo.swapped(grad[:, :, :1], grad[:, :, -1:])
        if ctx.mistake == "rows come back at the other edge":
            from_above, from_below = from_below, from_above
        if ctx.mistake == "rows come back instead of the own":
            own[:, :, :1], own[:, :, -1:] = from_above, from_below
        else:
            own[:, :, :1] += from_above
            own[:, :, -1:] += from_below
        return own, None


class SumOfField(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake, x = mistake, x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad / (dist.get_world_size() if ctx.mistake == "moments averaged in backward"
                       else 1), None


class Padded(nn.Conv2d):
    """Convolves over 3 rows of a field whose rows lie on the ranks."""

    def __init__(self, inward, outward):
        super().__init__(inward, outward, 3, padding=(0, 1))
        self.is_cut, self.mistake = False, None

    def forward(self, x):
        x = Halo.apply(x, self.mistake) if self.is_cut else F.pad(x, (0, 0, 1, 1))
        return super().forward(x)


class FieldNorm(nn.Module):
    """Normalises over a channel's whole field."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.is_cut, self.mistake = False, None

    def mean(self, x):
        total, n = x.sum((2, 3), keepdim=True), x[0, 0].numel()
        if self.is_cut and self.mistake != "moments of the own rows":
            total, n = SumOfField.apply(total, self.mistake), n * dist.get_world_size()
        return total / n

    def forward(self, x):
        x = x - self.mean(x)
        x = x * torch.rsqrt(self.mean(x.square()) + 1e-3)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class FieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.enter_norm = Padded(3, CHANNELS), FieldNorm(CHANNELS)
        self.down = nn.Conv2d(CHANNELS, 2 * CHANNELS, 2, stride=2)
        self.middle, self.middle_norm = Padded(2 * CHANNELS, 2 * CHANNELS), FieldNorm(2 * CHANNELS)
        self.up = nn.ConvTranspose2d(2 * CHANNELS, CHANNELS, 2, stride=2)
        self.merge, self.leave = Padded(2 * CHANNELS, CHANNELS), nn.Conv2d(CHANNELS, 2, 1)

    def forward(self, x):
        x = F.gelu(self.enter_norm(self.enter(x)))
        inner = F.gelu(self.middle_norm(self.middle(F.gelu(self.down(x)))))
        return self.leave(F.gelu(self.merge(torch.cat([x, self.up(inner)], 1))))


def field(run, rows=slice(None), local_rows=False):
    """Returns the input, two measured channels and the height, and the field to predict."""
    generator = torch.Generator().manual_seed(300 + run.seed)
    x = torch.randn(IMAGES, 2, HEIGHT, FIELD_WIDTH, generator=generator)
    y = torch.randn(IMAGES, 2, HEIGHT, FIELD_WIDTH, generator=generator)
    x, y = x[:, :, rows], y[:, :, rows]
    height = torch.linspace(0, 1, HEIGHT)[rows] if not local_rows else torch.linspace(
        0, 1, x.shape[2])
    height = height[:, None].expand(IMAGES, 1, -1, FIELD_WIDTH)
    return torch.cat([x, height], 1).to(run.dtype), y.to(run.dtype)


def trained(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def averaged(parameters, group=None):
    """Averages gradients over the ranks by hand; a missing one counts as zero."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


def whole_field_net(run):
    model = made(FieldNet, run.seed, run.dtype)
    x, y = field(run)
    F.mse_loss(model(x), y).backward()
    return trained(model)


def field_net(run, mistake=None):
    model = made(FieldNet, run.seed, run.dtype)
    for module in model.modules():
        if isinstance(module, (Padded, FieldNorm)):
            module.is_cut, module.mistake = True, mistake
    n = HEIGHT // run.world_size
    x, y = field(run, slice(run.rank * n, (run.rank + 1) * n),
                 mistake == "heights of the own rows")
    F.mse_loss(model(x), y).backward()
    averaged(model.parameters())
    return trained(model)


# --- A recommender

TABLES, ROWS, DEEP, CLICKS = 8, 12, 6, 16


class PooledExchange(torch.autograd.Function):
    """Exchanges [own tables, all rows, deep] for [all tables, own rows, deep]."""

    @staticmethod
    def to_rows(x):
        n = dist.get_world_size()
        out = [torch.empty_like(c).contiguous() for c in x.chunk(n, 1)]
        dist.all_to_all(out, [c.contiguous() for c in x.chunk(n, 1)])
        return torch.cat(out)

    @staticmethod
    def to_tables(x):
        n = dist.get_world_size()
        out = [torch.empty_like(c).contiguous() for c in x.chunk(n)]
        dist.all_to_all(out, [c.contiguous() for c in x.chunk(n)])
        return torch.cat(out, 1)

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        return PooledExchange.to_rows(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.mistake == "pooled gradients stay":
            return torch.cat(grad.chunk(dist.get_world_size()), 1), None
        return PooledExchange.to_tables(grad), None


class ScatterRows(torch.autograd.Function):
    """Returns each rank's own rows of the sum over ranks."""

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake, x = mistake, x.clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size())[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, grad):
        pieces = [torch.zeros_like(grad) for _ in range(dist.get_world_size())]
        if ctx.mistake == "sums' gradient of the own rows":
            pieces[dist.get_rank()] = grad
        else:
            dist.all_gather(pieces, grad.contiguous())
        return torch.cat(pieces), None


class RowTable(nn.Module):
    """Holds a table whose rows lie on the ranks."""

    def __init__(self):
        super().__init__()
        self.weight, self.mistake = nn.Parameter(torch.randn(4 * ROWS, DEEP)), None

    def cut(self, rank, n, mistake):
        self.weight = nn.Parameter(self.weight.detach().chunk(n)[rank].clone())
        self.mistake = mistake

    def forward(self, index):
        if len(self.weight) == 4 * ROWS:
            return F.embedding(index, self.weight).sum(1)
        local = index - dist.get_rank() * len(self.weight)
        has = (local >= 0) & (local < len(self.weight))
        found = F.embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        if self.mistake != "other ranks' rows not masked":
            found = found * has[..., None]
        return ScatterRows.apply(found.sum(1), self.mistake)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, DEEP))
        self.tables = nn.ModuleDict({
            str(i): nn.EmbeddingBag(ROWS + i // 4, DEEP, mode="mean") for i in range(TABLES)})
        self.big = RowTable()
        pairs = (TABLES + 2) * (TABLES + 1) // 2
        self.top = nn.Sequential(nn.Linear(pairs + DEEP, 24), nn.ReLU(), nn.Linear(24, 1))
        self.exchange = lambda pooled: pooled

    def forward(self, dense, sparse, rare):
        dense = self.bottom(dense)
        pooled = self.exchange(torch.stack([
            table(sparse[int(i)]) for i, table in self.tables.items()]))
        x = torch.stack([dense, self.big(rare), *pooled], 1)
        pairs = torch.bmm(x, x.transpose(1, 2))
        upper = torch.triu_indices(x.shape[1], x.shape[1], 1)
        return self.top(torch.cat([dense, pairs[:, upper[0], upper[1]]], 1))[:, 0]


def clicks(run):
    generator = torch.Generator().manual_seed(400 + run.seed)
    dense = torch.randn(CLICKS, 5, generator=generator).to(run.dtype)
    sparse = torch.randint(ROWS, (TABLES, CLICKS, 3), generator=generator)
    rare = torch.randint(4 * ROWS, (CLICKS, 3), generator=generator)
    return dense, sparse, rare, torch.randint(2, (CLICKS,), generator=generator).to(run.dtype)


def whole_recommender(run):
    model = made(Recommender, run.seed, run.dtype)
    dense, sparse, rare, clicked = clicks(run)
    F.binary_cross_entropy_with_logits(model(dense, sparse, rare), clicked).backward()
    return trained(model)


def recommender(run, mistake=None):
    """Spreads the tables over the ranks, each of which looks up all rows of the batch."""
    n = run.world_size
    model = made(Recommender, run.seed, run.dtype)
    own = [str(i) for i in range(TABLES) if i % n == run.rank]
    model.tables = nn.ModuleDict({i: model.tables[i] for i in own})
    model.big.cut(run.rank, n, mistake)
    if mistake == "tables broadcast at the beginning":
        for name in own:
            dist.broadcast(model.tables[name].weight.detach(), 0)

    def exchange(pooled):
        found = PooledExchange.apply(pooled, mistake)
        if mistake == "tables in the order of the ranks":
            return found
        return found.unflatten(0, (n, -1)).transpose(0, 1).flatten(0, 1)

    model.exchange = exchange
    dense, sparse, rare, clicked = clicks(run)
    dense, clicked = (t.chunk(n)[run.rank] for t in (dense, clicked))
    F.binary_cross_entropy_with_logits(model(dense, sparse, rare), clicked).backward()
    averaged([*model.bottom.parameters(), *model.top.parameters()])
    if mistake != "big table not divided":
        model.big.weight.grad /= n
    for p in model.tables.parameters():
        if mistake == "tables reduced like the rest":
            dist.all_reduce(p.grad)
        p.grad /= n
    return trained(model)


# --- A graph whose nodes are cut

NODES, KINDS, EDGES, INNER = 40, 5, 160, 12


def parts_of_nodes(n):
    """Returns where the ranks' nodes begin and end; the last rank has the fewest."""
    most = NODES // n + 2
    ends = [most * (i + 1) for i in range(n - 1)] + [NODES]
    return list(zip([0, *ends], ends))


class Cut:
    parts, rank, mistake = None, 0, None


class GatherNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        most = max(b - a for a, b in Cut.parts)
        padded = F.pad(x, (0, 0, 0, most - len(x)))
        pieces = [torch.empty_like(padded) for _ in Cut.parts]
        dist.all_gather(pieces, padded.contiguous())
        return torch.cat([piece[:b - a] for piece, (a, b) in zip(pieces, Cut.parts)])

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        begin, end = Cut.parts[Cut.rank]
        if Cut.mistake != "others' edges give no gradient":
            dist.all_reduce(grad)
        if Cut.mistake == "gradients cut from the front":
            even = NODES // len(Cut.parts)
            return grad[Cut.rank * even:][:end - begin].clone()
        return grad[begin:end].clone()


class SumOfNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        if Cut.mistake != "context's gradient stays":
            dist.all_reduce(grad)
        return grad


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.neighbours = nn.Linear(INNER, INNER), nn.Linear(INNER, INNER, bias=False)

    def forward(self, x, edges, degrees):
        """Takes `edges` as (from any node, to which of the own ones)."""
        everyone = GatherNodes.apply(x) if Cut.parts else x
        source, target = edges
        if Cut.mistake == "edges from other ranks dropped":
            begin, end = Cut.parts[Cut.rank]
            keep = (source >= begin) & (source < end)
            source, target = source[keep], target[keep]
        messages = self.neighbours(everyone)[source] / degrees[source, None].sqrt()
        return self.own(x) + torch.zeros_like(x).index_add(0, target, messages)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.context = nn.Linear(4, INNER), nn.Linear(INNER, INNER)
        self.layers = nn.ModuleList(Convolution() for _ in range(2))
        self.norm, self.leave = nn.LayerNorm(INNER), nn.Linear(INNER, KINDS)

    def forward(self, x, edges, degrees):
        x = torch.tanh(self.enter(x))
        for layer in self.layers:
            x = x + F.gelu(layer(self.norm(x), edges, degrees))
        total = x.sum(0, keepdim=True)
        mean = (SumOfNodes.apply(total) if Cut.parts else total) / NODES
        return self.leave(x + torch.tanh(self.context(mean)))


def graph(run):
    """Returns features, edges, how many edges leave each node, kinds, and which are known."""
    generator = torch.Generator().manual_seed(500 + run.seed)
    x = torch.randn(NODES, 4, generator=generator).to(run.dtype)
    edges = torch.randint(NODES, (2, EDGES), generator=generator)
    degrees = torch.bincount(edges[0], minlength=NODES).clamp(min=1)
    kinds = torch.randint(KINDS, (NODES,), generator=generator)
    known = torch.rand(NODES, generator=generator) < torch.linspace(0.95, 0.5, NODES)
    return x, edges, degrees, kinds, known


def whole_graph_net(run):
    model = made(GraphNet, run.seed, run.dtype)
    x, edges, degrees, kinds, known = graph(run)
    F.cross_entropy(model(x, edges, degrees.to(run.dtype))[known], kinds[known]).backward()
    return trained(model)


def graph_net(run, mistake=None):
    Cut.parts, Cut.rank, Cut.mistake = parts_of_nodes(run.world_size), run.rank, mistake
    model = made(GraphNet, run.seed, run.dtype)
    x, edges, degrees, kinds, known = graph(run)
    begin, end = Cut.parts[run.rank]
    mine = (edges[1] >= begin) & (edges[1] < end)
    edges = edges[:, mine] - torch.tensor([[0], [begin]])
    if mistake == "degrees of the own edges":
        degrees = torch.bincount(edges[0], minlength=NODES).clamp(min=1)
    count = known.sum()
    kinds, known = kinds[begin:end], known[begin:end]
    out = model(x[begin:end], edges, degrees.to(run.dtype))[known]
    loss = F.cross_entropy(out, kinds[known], reduction="sum") / count
    if mistake == "mean over the own nodes":
        loss = F.cross_entropy(out, kinds[known]) / run.world_size
    loss.backward()
    for p in model.parameters():
        if mistake != "context taken for whole" or p is not model.context.weight:
            dist.all_reduce(p.grad)
    return trained(model)


# --- Adapters

LONG, WIDTH, INTO, LOW, WORDS, TEXTS = 6, 16, 24, 3, 20, 8


class Region:
    group, size, mistake = None, 1, None


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=Region.group)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=Region.group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Adapted(nn.Linear):
    """Adds an adapter to a frozen layer whose outputs (`is_column`) or inputs are cut."""

    def __init__(self, inward, outward, is_column):
        super().__init__(inward, outward, bias=False)
        self.is_column = is_column
        self.lora_a = nn.Parameter(torch.randn(LOW, inward) / inward**0.5)
        self.lora_b = nn.Parameter(torch.randn(outward, LOW) / 4)
        self.weight.requires_grad_(False)

    def cut(self, at):
        def own(p, dim):
            return nn.Parameter(p.detach().chunk(Region.size, dim)[at].clone(), p.requires_grad)

        self.weight = own(self.weight, 0 if self.is_column else 1)
        if self.is_column:
            self.lora_b = own(self.lora_b, 0)
        else:
            self.lora_a = own(self.lora_a, 1)

    def forward(self, x):
        scale = 6 / LOW
        if Region.size == 1:
            return F.linear(x, self.weight) + scale * F.linear(F.linear(x, self.lora_a),
                                                               self.lora_b)
        if self.is_column:
            entered = Enter.apply(x)
            low = F.linear(x if Region.mistake == "adapter's input not entered" else entered,
                           self.lora_a)
            return F.linear(entered, self.weight) + scale * F.linear(low, self.lora_b)
        low = F.linear(x, self.lora_a)
        if Region.mistake == "down's adapter added on each rank":
            low = Leave.apply(low)
        return Leave.apply(F.linear(x, self.weight) + scale * F.linear(low, self.lora_b))


class AdaptedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = Adapted(WIDTH, INTO, True), Adapted(INTO, WIDTH, False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class AdaptedModel(nn.Module):
    """Freezes the words and all norms but the last."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(AdaptedBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        for frozen in (self.words, self.head, *(block.norm for block in self.blocks)):
            frozen.requires_grad_(False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def spoken(run):
    tokens = torch.randint(WORDS, (TEXTS, LONG + 1),
                           generator=torch.Generator().manual_seed(600 + run.seed))
    return tokens[:, :-1], tokens[:, 1:]


def whole_adapters(run):
    model = made(AdaptedModel, run.seed, run.dtype)
    tokens, following = spoken(run)
    F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()).backward()
    return trained(model)


def adapters(run, mistake=None):
    """Runs on dp times tp of 2."""
    Region.size, Region.mistake = 2, mistake
    dp, at = run.world_size // 2, run.rank % 2
    rows = [dist.new_group([i, i + 1]) for i in range(0, run.world_size, 2)]
    columns = [dist.new_group(list(range(i, run.world_size, 2))) for i in range(2)]
    Region.group, along_dp = rows[run.rank // 2], columns[at]
    model = made(AdaptedModel, run.seed, run.dtype)
    for block in model.blocks:
        block.up.cut(at)
        block.down.cut(at)
    if mistake == "second up's rows frozen":
        model.blocks[1].up.lora_b.requires_grad_(False)
    tokens, following = (t.chunk(dp)[run.rank // 2] for t in spoken(run))
    F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()).backward()
    for block in model.blocks:
        if mistake != "up's A not summed over tp":
            dist.all_reduce(block.up.lora_a.grad, group=Region.group)
        dist.all_reduce(block.down.lora_b.grad, group=Region.group)
        if mistake == "down's B averaged over tp":
            block.down.lora_b.grad /= 2
    if mistake == "last norm summed over tp":
        for p in model.norm.parameters():
            dist.all_reduce(p.grad, group=Region.group)
    averaged([p for p in model.parameters() if p.requires_grad], along_dp)
    return trained(model)
