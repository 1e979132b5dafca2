"""Records what the backward of each collective call of a case gets and gives, while the case runs
as it always does.

Nothing is put into the graph: hooks on its nodes see the tensors that pass, and copy them. None of
these tensors is kept, since whoever holds the last reference to one decides whether autograd adds
in place or takes it for a leaf's gradient.
"""

import functools
import weakref

import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Observer:
    """Observes the collective calls of one case, on this rank. Under a checkpoint a step is called
    more than once, but only one call's backward runs: that call is reported."""

    def __init__(self):
        self._calls = {}  # maps a step to the calls made of it

    def begin(self, step, operand):
        """Notes that a call is about to be made, and returns a function to call with its value.
        Nothing else keeps the operand's graph."""
        call = ObservedCall(operand)
        self._calls.setdefault(step, []).append(call)
        return functools.partial(call.end, edge_of(operand))

    def entries(self, steps, writer):
        """Returns the reply's `observed`. It is empty if a backward ran twice, or in parts, as what
        was seen then is no answer."""
        entries = []
        for step in steps:
            calls = self._calls.get(step, [])
            ran = [call for call in calls if call.arrivals]
            if len(ran) > 1 or any(call.is_unclear for call in calls):
                return []
            if calls:
                entries.append({"step": step, **(ran or calls)[0].entry(writer)})
        return entries


class ObservedCall:
    def __init__(self, operand):
        self._operand = _copy(operand)
        self._operand_strides = _strides_of(operand)
        self._cotangent = None
        self._cotangent_strides = []
        self._given = None
        self._first = None  # memory of the first part of `given`
        self._after = None
        self._memory = None  # the memory of the cotangent
        self._ran = set()  # indices of nodes whose hook ran
        self.arrivals = 0
        self.is_unclear = False

    def end(self, edge, value):
        """Notes that the call gave `value`. `edge` is what edge_of(operand) was before the call."""
        if not value.requires_grad:
            return
        self._zeros = functools.partial(torch.zeros, value.shape, dtype=value.dtype,
                                        device=value.device)
        end = edge_of(value)
        register_first(value, self._arrived)
        if edge is None:
            return
        if end == edge:  # worked in place, and autograd knows nothing of it
            value.register_hook(self._passed_on)
            return
        way = _way(end[0], edge)
        for place, (node, slots, joining) in enumerate(way):
            node.register_hook(functools.partial(self._ended, place, slots, joining))
        if any(joining for _, _, joining in way):
            for node, _, _ in way:
                node.register_prehook(self._begins)

    def entry(self, writer):
        entry = {"operand": writer.tensor(self._operand), "operand_strides": self._operand_strides,
                 "cotangent": None, "cotangent_strides": self._cotangent_strides, "given": None}
        if self._cotangent is not None:
            entry["cotangent"] = writer.tensor(self._cotangent)
        if self._given is not None:
            entry["given"] = writer.tensor(self._given)
        if self._after is not None:
            entry["cotangent_after"] = writer.tensor(self._after)
        return entry

    # -- hooks

    def _arrived(self, cotangent):
        self.arrivals += 1
        if self.arrivals > 1:
            self.is_unclear = True
        elif cotangent is None:  # None is how torch passes zeros
            self._cotangent = self._zeros()
        else:
            self._cotangent = _copy(cotangent)
            self._cotangent_strides = _strides_of(cotangent)
            self._memory = _Memory.of(cotangent)

    def _begins(self, _):
        if self._memory is not None:
            self._memory.begin()

    def _ended(self, place, slots, joining, given, arrived):
        if self.arrivals != 1 or place in self._ran:
            self.is_unclear = True
            return
        self._ran.add(place)
        for slot in slots:
            self._add(given[slot])
        if self._memory is not None:
            self._look()
            self._memory.pass_on(arrived, given, joining)

    def _passed_on(self, cotangent):
        self._add(cotangent)
        if self._memory is not None:
            self._look()

    def _add(self, part):
        """Adds a part as autograd adds up what several nodes give. Autograd keeps the first part
        itself, so the call's other nodes may still write to it. From the second part on it has its
        own sum."""
        if part is None:
            return
        if self._given is None:
            self._given, self._first = _copy(part), _Memory.of(part)
            return
        held = self._first and self._first.now()
        self._given = (self._given if held is None else held) + part.detach()
        self._first = None

    def _look(self):
        written = self._memory.written()
        if written is not None:
            self._after = written


class _Memory:
    """Tells whether anybody has written to a tensor's memory, without keeping it.

    It knows the memory by tensors that lie in it: while one of them lives, no other tensor gets the
    address. (Tensor.untyped_storage would count as one more user while the memory lives, and
    autograd would then never add in place.)"""

    @classmethod
    def of(cls, x):
        """Returns None for a tensor without memory of its own, such as a sparse one."""
        return cls(x) if _has_memory(x) else None

    def __init__(self, x):
        self._tensors = [weakref.ref(x)]
        self._begin = _begin_of(x)
        self._place = x.shape, x.stride(), x.storage_offset()
        self._held = _copy(x)
        self._is_autograds = False

    def begin(self):
        """Notes that a node of the call begins."""
        if self._is_autograds:
            self.written()

    def pass_on(self, arrived, given, joining):
        """Notes that a node of the call got `arrived` and gave `given`; autograd adds those of
        `given` at the indices `joining` to others. If one of these is in this memory and nobody
        else has it any more, autograd may add in place. From then on, only what is written while a
        node runs counts as the call's doing."""
        if self._alive() is None:
            return
        inside = [x for x in (*arrived, *given) if self._has(x)]
        self._tensors += [weakref.ref(x) for x in inside]
        self._is_autograds = self._is_autograds or any(self._has(given[i]) for i in joining)

    def written(self):
        """Returns what the memory holds now if that changed since the last look, else None."""
        now = self.now()
        if now is None or torch.equal(_bits(now), _bits(self._held)):  # bits, so NaN equals NaN
            return None
        self._held = now
        return now

    def now(self):
        """Returns a copy of what the memory holds; None if it is gone."""
        x = self._alive()
        if x is None:
            return None
        with torch.no_grad():
            return _copy(x.detach().as_strided(*self._place))

    def _alive(self):
        return next((x for ref in self._tensors if (x := ref()) is not None), None)

    def _has(self, x):
        return x is not None and _has_memory(x) and _begin_of(x) == self._begin


def _has_memory(x):
    return type(x) is torch.Tensor and x.layout is torch.strided and x.numel() > 0


def _begin_of(x):
    """Returns what identifies the storage's begin, for tensors with elements of one dtype."""
    return x.device, x.dtype, x.data_ptr() - x.storage_offset() * x.element_size()


def register_first(x, hook):
    """Registers a hook that runs before the hooks that `x` has: torch calls them in the order of a
    dict that it keeps."""
    handle = x.register_hook(hook)
    hooks = x._backward_hooks
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)


def _copy(x):
    dense = x.detach() if x.layout is torch.strided else x.detach().to_dense()
    return dense.clone(memory_format=torch.contiguous_format)


def _strides_of(x):
    return list(x.stride()) if x.layout is torch.strided else []


def _bits(x):
    return x.view(_BITS[x.element_size()])


# ---- the graph


def edge_of(x):
    """Returns where the gradient of `x` arrives: (node, output number). None if `x` needs no
    gradient."""
    if not x.requires_grad:
        return None
    if x.grad_fn is None:
        return torch.autograd.graph.get_gradient_edge(x)[:2]
    return x.grad_fn, x.output_nr  # (get_gradient_edge would make a view)


def _way(end, edge):
    """Returns the nodes on the way from `end` down to `edge`, each with the numbers of its
    gradients that go to `edge`, and of those that autograd adds to others."""
    below = {}
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in below and node is not edge[0]:
            below[node] = node.next_functions
            waiting += [following for following, _ in below[node]]
    above, arrivals = {}, {}
    for node, edges in below.items():
        for following in edges:
            above.setdefault(following[0], []).append(node)
            arrivals[following] = arrivals.get(following, 0) + 1
    on_way = {}
    waiting = [node for node, edges in below.items() if edge in edges]
    while waiting:
        node = waiting.pop()
        if node not in on_way:
            edges = below[node]
            on_way[node] = ([i for i, to in enumerate(edges) if to == edge],
                            [i for i, to in enumerate(edges)
                             if to[0] is not None and arrivals[to] > 1])
            waiting += above.get(node, [])
    return [(node, *slots) for node, slots in on_way.items()]
