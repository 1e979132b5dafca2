"""Mistakes that an audit must find, each beside a right one: sizes of an exchange, subgroups of a
parallel region, operands that are written into."""

import torch
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    """A mixture of experts' dispatch: so many rows to each rank, so many from each."""

    swaps = True

    @classmethod
    def run(cls, x, input_split_sizes, output_split_sizes, group):
        rows = x.shape[0] if output_split_sizes is None else sum(output_split_sizes)
        y = x.new_empty((rows, *x.shape[1:]))
        dist.all_to_all_single(y, x.contiguous(), output_split_sizes, input_split_sizes,
                               group=group)
        return y

    @staticmethod
    def forward(ctx, x, input_split_sizes, output_split_sizes, group, swaps):
        ctx.given = input_split_sizes, output_split_sizes, group
        ctx.swaps = swaps
        return _Exchange.run(x, input_split_sizes, output_split_sizes, group)

    @staticmethod
    def backward(ctx, g):
        sent, received, group = ctx.given
        sizes = (received, sent) if ctx.swaps else (sent, received)
        return _Exchange.run(g, *sizes, group), None, None, None, None


def exchange(x, input_split_sizes=None, output_split_sizes=None, group=None):
    return _Exchange.apply(x, input_split_sizes, output_split_sizes, group, True)


def exchange_back_the_same_way(x, input_split_sizes=None, output_split_sizes=None, group=None):
    return _Exchange.apply(x, input_split_sizes, output_split_sizes, group, False)


def _summed(x, group=None):
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


class _Enter(torch.autograd.Function):
    """Megatron's f."""

    @staticmethod
    def forward(ctx, x, group, of_the_world):
        ctx.group = None if of_the_world else group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return _summed(g, ctx.group), None, None


def enter(x, group=None):
    return _Enter.apply(x, group, False)


def enter_the_world(x, group=None):
    return _Enter.apply(x, group, True)


class _SumInto(torch.autograd.Function):
    """Of its operand's memory, as it was not told otherwise."""

    @staticmethod
    def forward(ctx, x, clones):
        x = x.clone() if clones else x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return _summed(g), None


def sum_of_a_clone(x):
    return _SumInto.apply(x, True)


def sum_into_operand(x):
    return _SumInto.apply(x, False)


class _SumOver(torch.autograd.Function):
    """As it is found everywhere: contiguous() copies only what is not."""

    @staticmethod
    def forward(ctx, x):
        return _summed(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


def sum_over_cotangent(x):
    return _SumOver.apply(x)


class _SumUnseen(torch.autograd.Function):
    """Past autograd's counting of what is written."""

    @staticmethod
    def forward(ctx, x):
        y = x.contiguous()
        dist.all_reduce(y.data)
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        return _summed(g)


def sum_into_data(x):
    return _SumUnseen.apply(x)


def sum_in_place(x):
    """By contract: it returns nothing."""
    dist.all_reduce(x)


def sum_and_return_operand(x):
    dist.all_reduce(x)
    return x


class _Product(torch.autograd.Function):
    """Divides by its operand in backward, which may be 0."""

    @staticmethod
    def forward(ctx, x):
        product = x.clone()
        dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
        ctx.save_for_backward(x, product)
        return product

    @staticmethod
    def backward(ctx, g):
        x, product = ctx.saved_tensors
        return _summed(g) * product / x


def product(x, op=dist.ReduceOp.PRODUCT):
    return _Product.apply(x)


class _Divides(torch.autograd.Function):
    """As DistributedDataParallel does already."""

    @staticmethod
    def forward(ctx, x):
        return _summed(x)

    @staticmethod
    def backward(ctx, g):
        return _summed(g) / dist.get_world_size()


def divided(x):
    return _Divides.apply(x)


class _Hand(torch.autograd.Function):
    """What all ranks hold goes on as it is. Of its gradient each rank has a share: R->I in the
    terms of spmd_types."""

    @staticmethod
    def forward(ctx, x, group, share):
        ctx.given = group, share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        group, share = ctx.given
        return share(g, dist.get_rank(group), dist.get_world_size(group)), None, None


def hand_on_rank_0(x, group=None):
    return _Hand.apply(x, group, lambda g, rank, size: g if rank == 0 else torch.zeros_like(g))


def hand_on_parts(x, group=None):
    return _Hand.apply(x, group, lambda g, rank, size: g / size)


def hand_on_too_much(x, group=None):
    return _Hand.apply(x, group, lambda g, rank, size: 2 * g / size)


class _SumOfMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, contiguous):
        y = x.contiguous() if contiguous else x
        y = y.as_strided((y.numel(),), (1,)).clone()
        dist.all_reduce(y)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx, g):
        return _summed(g), None


def sum_of_values(x):
    return _SumOfMemory.apply(x, True)


def sum_of_memory(x):
    return _SumOfMemory.apply(x, False)


class _SumOfCotangents(torch.autograd.Function):
    """clone() keeps the order that the cotangent's memory has on this rank."""

    @staticmethod
    def forward(ctx, x, made):
        ctx.made = made
        return _summed(x)

    @staticmethod
    def backward(ctx, g):
        summed = ctx.made(g)
        dist.all_reduce(summed)
        return summed.view(g.shape) if summed.dim() != g.dim() else summed, None


def sum_of_cloned_cotangents(x):
    return _SumOfCotangents.apply(x, lambda g: g.clone())


def sum_of_contiguous_cotangents(x):
    return _SumOfCotangents.apply(x, lambda g: g.contiguous().clone())


def sum_of_viewed_cotangents(x):
    return _SumOfCotangents.apply(x, lambda g: g.view(-1).clone())


class _WrongInSubgroups(torch.autograd.Function):
    """Where the group is the world its backward is right."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        if dist.get_world_size(ctx.group) < dist.get_world_size():
            return cotangent, None
        grad = cotangent.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def wrong_in_subgroups(x, group=None):
    return _WrongInSubgroups.apply(x, group)


class _WrongForOddShapes(_WrongInSubgroups):
    """Scales the gradient of what cannot be halved."""

    @staticmethod
    def backward(ctx, cotangent):
        grad = cotangent.clone()
        dist.all_reduce(grad, group=ctx.group)
        odd = cotangent.dim() > 0 and cotangent.numel() % 2
        return (5 * grad if odd else grad), None


def wrong_for_odd_shapes(x, group=None):
    return _WrongForOddShapes.apply(x, group)


class _EnterOver(_Enter):
    """Reduces the cotangent that it was handed."""

    @staticmethod
    def backward(ctx, g):
        dist.all_reduce(g, group=ctx.group)
        return g, None, None


def enter_over_cotangent(x, group=None):
    return _EnterOver.apply(x, group, False)


class _EnterInFloat32(_Enter):
    """Sums in float32, whatever the cotangent's dtype is."""

    @staticmethod
    def backward(ctx, g):
        sum_ = g.to(torch.float32, copy=True)
        dist.all_reduce(sum_, group=ctx.group)
        return sum_.to(g.dtype), None, None


def enter_in_float32(x, group=None):
    return _EnterInFloat32.apply(x, group, False)


class _CutOff(torch.autograd.Function):
    """The adjoint, of which autograd sees no gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _summed(x, group)

    @staticmethod
    def backward(ctx, g):
        return _summed(g.detach(), ctx.group), None


def cut_off_backward(x, group=None):
    return _CutOff.apply(x, group)


def _as_it_lies(g):
    """Its elements in the order of their memory."""
    fits = g.storage_offset() + g.numel() <= g.untyped_storage().nbytes() // g.element_size()
    return g.as_strided((g.numel(),), (1,)).reshape(g.shape) if fits else g.contiguous()


class _GatherList(torch.autograd.Function):
    """A tensor a rank, which a caller may join."""

    @staticmethod
    def forward(ctx, x, reads_memory):
        ctx.reads_memory = reads_memory
        gathered = [torch.empty_like(x, memory_format=torch.contiguous_format)
                    for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, x.contiguous())
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *cotangents):
        read = _as_it_lies if ctx.reads_memory else torch.Tensor.contiguous
        return _summed(torch.stack([read(g) for g in cotangents]))[dist.get_rank()], None


class _GatherAlongTheLast(_GatherList):
    @staticmethod
    def forward(ctx, x, reads_memory):
        if x.dim() < 2:
            raise ValueError("expects two dimensions")
        return torch.cat(_GatherList.forward(ctx, x, reads_memory), -1)

    @staticmethod
    def backward(ctx, g):
        if ctx.reads_memory:
            g, ctx.reads_memory = _as_it_lies(g), False
        return _GatherList.backward(ctx, *g.chunk(dist.get_world_size(), -1))


FORMS = {"list": lambda *given: list(_GatherList.apply(*given)), "tuple": _GatherList.apply,
         "cat": lambda *given: torch.cat(_GatherList.apply(*given)),
         "last": _GatherAlongTheLast.apply}
for _name, _gather in FORMS.items():
    globals()["gather_" + _name] = lambda x, gather=_gather: gather(x, False)
    globals()["gather_memory_" + _name] = lambda x, gather=_gather: gather(x, True)


class _Swap(torch.autograd.Function):
    """An all-to-all that cuts along one dimension and joins along another."""

    @staticmethod
    def forward(ctx, x, scatter_dim, gather_dim, reads_memory):
        ctx.given = scatter_dim, gather_dim, reads_memory
        return _Swap.run(x.contiguous(), scatter_dim, gather_dim)

    @staticmethod
    def run(x, scatter_dim, gather_dim):
        given = [piece.contiguous() for piece in x.chunk(dist.get_world_size(), scatter_dim)]
        taken = [torch.empty_like(piece) for piece in given]
        dist.all_to_all(taken, given)
        return torch.cat(taken, gather_dim)

    @staticmethod
    def backward(ctx, g):
        scatter_dim, gather_dim, reads_memory = ctx.given
        g = _as_it_lies(g) if reads_memory else g
        return _Swap.run(g, gather_dim, scatter_dim), None, None, None


def swap(x, scatter_dim, gather_dim):
    return _Swap.apply(x, scatter_dim, gather_dim, False)


def swap_memory(x, scatter_dim, gather_dim):
    return _Swap.apply(x, scatter_dim, gather_dim, True)


_gradients = {}


class _SumIntoOneBuffer(torch.autograd.Function):
    """Every backward writes into the same memory and returns it, or a copy of it."""

    @staticmethod
    def forward(ctx, x, group, copies):
        ctx.given = group, copies
        return _summed(x, group)

    @staticmethod
    def backward(ctx, g):
        group, copies = ctx.given
        buffer = _gradients.setdefault((g.shape, g.dtype), g.new_empty(g.shape)).copy_(g)
        dist.all_reduce(buffer, group=group)
        return buffer.clone() if copies else buffer, None, None


def sum_into_one_buffer(x, group=None):
    return _SumIntoOneBuffer.apply(x, group, False)


def sum_over_one_buffer(x, group=None):
    return _SumIntoOneBuffer.apply(x, group, True)


def _moved(x, pairs, add):
    """What this rank's sources send it, added up or the last one's."""
    rank, x = dist.get_rank(), x.contiguous()
    y = torch.zeros_like(x)
    sent = [dist.isend(x, to) for source, to in pairs if source == rank != to]
    for source, to in pairs:
        if to != rank:
            continue
        piece = x.clone()
        if source != rank:
            dist.recv(piece, source)
        y = y + piece if add else piece
    for work in sent:
        work.wait()
    return y


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, pairs, adds):
        ctx.given = [(to, source) for source, to in pairs], adds
        return _moved(x, pairs, False)

    @staticmethod
    def backward(ctx, g):
        return _moved(g, *ctx.given), None, None


def send(x, pairs):
    return _Send.apply(x, pairs, True)


def send_and_keep_the_last_gradient(x, pairs):
    return _Send.apply(x, pairs, False)


def send_around(x, pairs):
    to = dict(pairs)
    assert len(to) == len(pairs)
    return _Send.apply(x, list(to.items()), True)


def send_around_and_wait(x, pairs):
    """What no other rank is told to send is waited for."""
    to = dict(pairs)
    mine = [(s, t) for s, t in pairs if to[s] == t or t == dist.get_rank()]
    return _Send.apply(x, mine, True)
