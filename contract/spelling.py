"""Resource names that are nearly ours.

No node offers ``tencent.com/vcuda-cores``: a pod that asks for it waits for ever, and the scheduler
says no more than ``Insufficient tencent.com/vcuda-cores``.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from contract.errors import FieldError, FieldFault, quote
from contract.names import Names
from contract.requests import listings_of, walk_containers

_MARK = "vcuda"
"""What a name must have in it: the webhook is asked about no others (``deploy/base/webhook``)."""

_MEANT = {"vcuda": "vcuda-core", "vcuda-mem": "vcuda-memory"}
"""What is meant by names that are not close."""

_CLOSE = 0.8
"""By the ratio of ``difflib``: ``vcuda-cor``, ``vcuda_core`` and ``vcuda-memories`` are close."""

_LONGEST_NAME = 317  # of a qualified name: a domain, a slash, 63 characters
_MOST = 32
"""So many of a pod's names are looked at: a hostile pod may have thousands."""


def find_misspelt(
    spec: object, names: Names, *, path: str = "spec"
) -> tuple[tuple[FieldError, ...], tuple[str, ...]]:
    """Find resources whose names are nearly ours.

    Args:
        spec: a pod spec as decoded JSON, possibly hostile.
        names: our names.
        path: the spec's place in its object, for the paths of the findings.

    Returns:
        An error for each resource of our own domain, which nobody else offers, and a warning for
        each one of another domain, which somebody may offer.
    """
    errors = []
    warnings = dict[str, None]()
    for where, name, value in islice(_candidates(spec, names, path), _MOST):
        domain, _, last = name.rpartition("/")
        close = [_MEANT[last]] if last in _MEANT else get_close_matches(last, _LASTS, 1, _CLOSE)
        for right in (f"{names.domain}/{each}" for each in close):
            if domain == names.domain:
                detail = f"no node has such a resource: write {right}"
                fault = FieldError(where, FieldFault.INVALID, detail, "misspelt", quote(value))
                errors.append(fault)
            else:
                warnings[f"write {right}, {name} is not served here"] = None
    return tuple(errors), tuple(warnings)


_LASTS = tuple(each.rpartition("/")[2] for each in Names().resources)


def _candidates(spec: object, names: Names, path: str) -> Iterator[tuple[str, str, object]]:
    """Yield the path, the name and the value of each resource with the mark that is not ours."""
    ours = names.resources
    for field, index, container in walk_containers(spec):
        limits, requests = listings_of(container)
        if not any(_MARK in name and name not in ours for name in (*limits, *requests)):
            continue  # nearly all of them
        more = {name: value for name, value in requests.items() if name not in limits}
        listed: dict[str, Mapping[str, Any]] = {"limits": limits, "requests": more}
        for listing, counts in listed.items():
            for name, value in counts.items():
                if _MARK in name and name not in ours and len(name) <= _LONGEST_NAME:
                    where = f"{path}.{field}[{index}].resources.{listing}[{name}]"
                    yield where, name, value
