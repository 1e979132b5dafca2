"""Collects what the user's code warns of, for reports."""

import contextlib
import re
import warnings

from .long_text import cut

_IGNORED = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
# It comes from the mode in which ranks run and not from the user's program.
_OWN = "use_deterministic_algorithms(True"


@contextlib.contextmanager
def caught():
    """Yields a list that gets each warning that a user should see, as the module `warnings` records
    it."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for category in _IGNORED:
            warnings.simplefilter("ignore", category)
        yield found


def again(found):
    for warning in found:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def texts_of(found):
    """Returns each text once, in the order in which they came."""
    texts = {}
    for warning in found:
        text = re.sub(r"\s*\(Triggered internally at [^)]*\)\s*$", "", cut(str(warning.message)))
        if _OWN not in text:
            texts[text] = None
    return list(texts)
