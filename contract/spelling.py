"""Resource names that are nearly ours.

No node offers ``tencent.com/vcuda-cores``: a pod that requests it stays pending forever, and the
scheduler reports only ``Insufficient tencent.com/vcuda-cores``.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from contract.errors import FieldError, FieldFault, quote
from contract.names import Names
from contract.requests import listings_of, walk_containers

_MARK = "vcuda"
"""Part of every name checked here: the API server sends no others (``deploy/base/webhook``)."""

_INTENDED = {"vcuda": "vcuda-core", "vcuda-mem": "vcuda-memory"}
"""The intended name, for misspelt names that are not similar enough."""

_CLOSE = 0.8
"""Least similarity by ``difflib``; ``vcuda-cor``, ``vcuda_core``, ``vcuda-memories`` have it."""

_LONGEST_NAME = 317  # characters of a qualified name: a domain, a slash, 63 characters
_MOST = 32
"""Most names of a pod that are checked: a hostile pod may have thousands."""


def find_misspelt(
    spec: object, names: Names, *, path: str = "spec"
) -> tuple[tuple[FieldError, ...], tuple[str, ...]]:
    """Find resources whose names are nearly ours.

    Args:
        spec: a pod spec as decoded JSON, possibly hostile.
        names: our names.
        path: path of the spec in its object, for the paths of errors.

    Returns:
        An error for each resource of our own domain, which nobody else offers. A warning for each
        resource of another domain, which another plugin may offer.
    """
    errors = []
    warnings = dict[str, None]()
    for where, name, value in islice(_candidates(spec, names, path), _MOST):
        domain, _, last = name.rpartition("/")
        intended = _INTENDED.get(last)
        close = [intended] if intended else get_close_matches(last, _LAST_PARTS, 1, _CLOSE)
        for right in (f"{names.domain}/{each}" for each in close):
            if domain == names.domain:
                detail = f"no node has such a resource: write {right}"
                error = FieldError(where, FieldFault.INVALID, detail, "misspelt", quote(value))
                errors.append(error)
            else:
                warnings[f"write {right}, {name} is not served here"] = None
    return tuple(errors), tuple(warnings)


_LAST_PARTS = tuple(each.rpartition("/")[2] for each in Names().resources)


def _candidates(spec: object, names: Names, path: str) -> Iterator[tuple[str, str, object]]:
    """Yield path, name and value of each resource that contains the mark and is not ours."""
    ours = names.resources
    for field, index, container in walk_containers(spec):
        limits, requests = listings_of(container)
        if not any(_MARK in name and name not in ours for name in (*limits, *requests)):
            continue  # the usual case
        more = {name: value for name, value in requests.items() if name not in limits}
        listed: dict[str, Mapping[str, Any]] = {"limits": limits, "requests": more}
        for listing, counts in listed.items():
            for name, value in counts.items():
                if _MARK in name and name not in ours and len(name) <= _LONGEST_NAME:
                    where = f"{path}.{field}[{index}].resources.{listing}[{name}]"
                    yield where, name, value
