"""Modules by the names under which the step returned their parameters: one run's model may stand
in another module (a loss that holds it, a trainer), the other's by itself."""


class Renaming:
    """`strip` or `add`: what is at the beginning of the recorded names, or is missing there."""

    def __init__(self, recorded, wanted):
        """`recorded`: names of parameters; `wanted`: those of the returned gradients."""
        counts, self.strip, self.add = {}, "", ""
        recorded, wanted = set(recorded), set(wanted)
        if recorded & wanted:
            return
        for name in recorded:
            for prefix, rest in _splits(name):
                if rest in wanted:
                    counts[prefix, ""] = counts.get((prefix, ""), 0) + 1
        for name in wanted:
            for prefix, rest in _splits(name):
                if rest in recorded:
                    counts["", prefix] = counts.get(("", prefix), 0) + 1
        best = max(counts, key=counts.get, default=None)
        if best and 2 * counts[best] >= len(wanted):
            self.strip, self.add = best

    def __call__(self, name):
        if name.startswith("("):  # a module that is in no other
            return name
        if self.strip and (name + ".").startswith(self.strip):
            return name[len(self.strip):] or name
        return self.add + name


def _splits(name):
    """(its first parts, the rest), nothing first."""
    parts = name.split(".")
    return [("".join(part + "." for part in parts[:i]), ".".join(parts[i:]))
            for i in range(len(parts))]
