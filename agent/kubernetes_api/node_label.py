"""The node's label with the model of its cards, for node selectors."""

import re
from collections.abc import Iterable

MIXED = "mixed"
"""The value where the cards are of several models: no selector of one model may match."""

_LONGEST = 63  # of a label's value, as the API server allows
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]+")
_EDGES = "._-"


def model_label(models: Iterable[str]) -> str | None:
    """Return the label's value for cards of these models; ``None`` where there is none.

    A model's name is changed as little as the rules of labels allow: ``NVIDIA A100-SXM4-80GB``
    becomes ``NVIDIA-A100-SXM4-80GB``, which is also what GPU Feature Discovery writes.
    """
    values = {_value(each) for each in models} - {""}
    if len(values) > 1:
        return MIXED
    return next(iter(values), None)


def _value(model: str) -> str:
    return _NOT_ALLOWED.sub("-", model).strip(_EDGES)[:_LONGEST].rstrip(_EDGES)
