"""The calls of a rank that communicate, and the Functions, between two of its outputs."""


def between(events, before, after, rank):
    """Of a rank's `events` those between two outputs; of the first one's end or of the beginning,
    to the loss."""
    begin = max((p.record["event"] for p in before.pieces if p.rank == rank),
                default=0) if before else 0
    losses = [i for i, e in enumerate(events) if e["kind"] == "loss" and i >= begin]
    end = losses[0] if losses else len(events)
    if after is not None:
        end = max((p.record["event"] for p in after.pieces if p.rank == rank), default=end)
    return named([e for e in events[begin:end]
                  if e["phase"] == "forward" and e["kind"] in ("communication", "function")])


def named(events):
    """ "Gather in model.py:12 (allgather)", each once with how often."""
    places, counts = {}, {}
    for event in events:
        names = places.setdefault(event["place"],
                                  {"function": [], "communication": []})[event["kind"]]
        if event["what"] not in names:
            names.append(event["what"])
        counts[event["place"]] = counts.get(event["place"], 0) + (event["kind"] == "communication")
    texts = []
    for place, names in places.items():
        functions, exchanges = names["function"], names["communication"]
        what = (", ".join(functions or exchanges) + f" in {place}"
                + (f" ({', '.join(exchanges)})" if functions and exchanges else ""))
        texts.append(what + (f", {counts[place]} times" if counts[place] > 1 else ""))
    return texts
