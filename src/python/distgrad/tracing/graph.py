"""What is computed from what in the single run, in terms of its modules' outputs."""


class Graph:
    """Outputs go by their positions in time. Where autograd knows nothing of one (no gradient, a
    checkpoint that recomputes), time has to do: what comes later may be computed from what came
    before."""

    def __init__(self, outputs):
        self._consumers = [list(o.get("consumers", ())) for o in outputs]
        self._known = [o.get("in_graph", True) for o in outputs]
        self._in_function = [o.get("in_function", False) for o in outputs]
        self._ends = [o.get("reaches_loss", not o.get("consumers")) for o in outputs]
        self._producers = [[] for _ in outputs]
        for position, consumers in enumerate(self._consumers):
            for consumer in consumers:
                self._producers[consumer].append(position)
        self._names = {}
        for position, output in enumerate(outputs):
            self._names.setdefault(output["module"], []).append(position)
        self._behind = {}

    def knows(self, position):
        return self._known[position]

    def is_constant(self, position):
        """Whether no gradient goes through it, as through what a teacher gives."""
        return not self._known[position] and not self._in_function[position]

    def reaches_loss(self, position):
        """Whether the loss is computed from it with no other output between."""
        return self._ends[position]

    def backwards(self):
        """All positions, those of what is computed from an output before it; else the latest
        first."""
        order, seen = {}, set()
        for last in reversed(range(len(self._consumers))):
            waiting = [last]
            while waiting:
                at = waiting[-1]
                seen.add(at)
                further = [p for p in self._consumers[at] if p not in seen]
                if further:
                    waiting.append(max(further))
                else:
                    order[waiting.pop()] = None
        return list(order)

    def consumers(self, position, within):
        """The nearest of `within` that are computed from it, in order."""
        return self._nearest(position, within, self._consumers)

    def producers(self, position, within):
        return self._nearest(position, within, self._producers)

    @staticmethod
    def _nearest(position, within, edges):
        waiting, seen = list(edges[position]), set()
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                if at not in within:
                    waiting += edges[at]
        return sorted(seen & set(within))

    def leads_to(self, position, other):
        if not (self._known[position] and self._known[other]):
            return position <= other
        if other not in self._behind:
            self._behind[other] = {other,
                                   *self._nearest(other, range(len(self._known)), self._producers)}
            waiting = list(self._behind[other])
            while waiting:
                for producer in self._producers[waiting.pop()]:
                    if producer not in self._behind[other]:
                        self._behind[other].add(producer)
                        waiting.append(producer)
        return position in self._behind[other]

    def owners(self, parameter):
        """The outputs that a parameter may have a part in: its module's, and where that has modules
        inside those of these; none where neither was called."""
        parts = parameter.split(".")[:-1]
        while parts:
            name = ".".join(parts)
            found = [p for module, positions in self._names.items()
                     if module == name or module.startswith(name + ".") for p in positions]
            if found:
                return found
            parts.pop()
        return []
