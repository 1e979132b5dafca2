"""Records what one process computes while its step runs, of which nothing is known beforehand.
Values are copied, and nothing is changed."""

from .clipping import Clipping
from .module_names import names_of
from .outputs import Watch
from .roots import Roots, is_asking, is_in_backward
from .seen import Seen, named
from .variables import has_shares, local_of, plain
from .watching import Arrivals

_MOST_BYTES = 1 << 26  # A process keeps no more of outputs, nor of what backward brings.


class Recording:
    """Records what one process computes. It must start before any of the user's modules is
    imported, as these may bind what is replaced here to names of their own."""

    def __init__(self, wanted, retains=False):
        self._wanted = [plain(name) for name in wanted]
        self._seen, self._roots = Seen(), Roots(self._before_backward, retains)
        self._watch = Watch(None, self._gave, hands_on=True)
        self._outputs, self._bytes = {}, 0  # {own key: (tensor, how many calls were before)}
        self._needs, self._dtypes = set(), {}
        self._rows = {}  # {own key: how many rows have a gradient that is not 0}
        self._arrivals = self._clipping = None
        self._frozen = set()  # names of parameters that require no gradient
        self._begun = 0  # This many calls were made before the last backward.
        self.parameters = {}
        self.names = {}  # {number of a module: name}

    def start(self):
        self._clipping = Clipping({})
        for part in (self._seen, self._roots, self._clipping, self._watch):
            part.__enter__()

    def stop(self):
        for part in (self._watch, self._clipping, self._arrivals, self._roots, self._seen):
            if part:
                part.__exit__(None, None, None)

    def _gave(self, key, x):
        if key in self._outputs or is_in_backward() and not x.requires_grad:
            return
        if x.requires_grad:
            self._needs.add(key)
            x.register_hook(lambda g: self._came(key, g))
        self._dtypes.setdefault(x.dtype, key[0])
        self._bytes += x.numel() * x.element_size()
        value = whole(x) if self._bytes <= _MOST_BYTES else None
        self._outputs[key] = value, len(self._seen.calls)

    def _came(self, key, g):
        if g is None or is_asking():  # A Function may give no gradient, which is None here.
            return
        g = local_of(g.detach())
        self._rows.setdefault(key, int((g != 0).any(-1).sum()) if g.dim() > 1 else g.numel())

    def _before_backward(self):
        self._find_names()  # The model may be gone when the step ends.
        self._begun = len(self._seen.calls)
        if self._arrivals is None:
            self._find_parameters()
            self._arrivals = Arrivals(self.parameters, _MOST_BYTES)
            self._arrivals.__enter__()
        self._arrivals.begin()

    def _find_parameters(self):
        for key, module in self._watch.modules.items():
            for name, p in module.named_parameters():
                full = plain(f"{self.names[key]}.{name}".removeprefix("."))
                if not p.requires_grad:
                    self._frozen.add(full)
                elif p.is_leaf:
                    if not any(p is other for other in self.parameters.values()):
                        self.parameters.setdefault(full, p)

    def modules(self):
        return self._watch.modules.values()

    def _find_names(self):
        modules = self._watch.modules
        if modules.keys() - self.names.keys():
            self.names = {**names_of(modules, self._wanted), **self.names}

    def trace(self):
        """Returns all that was recorded, as plain values that can be saved."""
        self._find_names()
        names = self.names
        outputs, calls = {}, {}
        for (number, call, index), (value, before) in self._outputs.items():
            key = names[number], call, index
            outputs[key], calls[key] = value, before
        brought = self._arrivals.by_pass if self._arrivals else {}
        rows = {(names[n], call, i): self._rows[n, call, i] for n, call, i in self._outputs
                if (n, call, i) in self._rows}
        return {"outputs": outputs, "rows": rows, "before": calls, "begun": self._begun,
                "calls": list(self._seen.calls),
                "clips": [call[:3] for call in self._clipping.calls],
                "frozen": self._frozen,
                "needs": {(names[n], call, index) for n, call, index in self._needs},
                "loss": self._roots.total, "passes": self._roots.count,
                "seen": {"casts": named(self._seen.casts), "dtypes": named(self._seen.dtypes),
                         "modules": {dtype: names[n] for dtype, n in named(self._dtypes).items()}},
                "brought": {name: [x if x is None else x.cpu() for x in passes]
                            for name, passes in brought.items()}}


def whole(x):
    """Copies a tensor to the CPU; returns None for a DTensor that holds shares of a sum."""
    return None if has_shares(x) else local_of(x.detach()).to(device="cpu", copy=True)
