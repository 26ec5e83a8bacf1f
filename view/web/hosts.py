"""Checks the ``Host`` of requests, against DNS rebinding. Pure.

A foreign web page can let its own name resolve to our address. The browser then lets it read our
responses, but still sends that name in ``Host``. An IP address in ``Host`` is safe: it cannot be
pointed elsewhere.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address

from common.text import cut

SERVICE = "gpu-turnstile-view"

_PORT = re.compile(r":[0-9]{1,5}$", re.ASCII)
_NAME = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)

_IN_CLUSTER = re.compile(rf"{SERVICE}\.[^.]*\.svc(\.cluster\.local)?")
"""Without ``svc`` it may be a public domain name: a namespace can be called ``com``."""


class Hosts:
    """The allowed host names: this machine, any IP address, the Service, and given ones."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        """Allow further names, without a port; ``*.example.org`` is every name below it.

        Raises:
            ValueError: a name is not a host name.
        """
        self._names = {"localhost", SERVICE}
        self._suffixes = [".localhost"]
        for each in given:
            name = each.lower()
            if not _NAME.fullmatch(name):
                raise ValueError(f"{cut(each, 80)!r} is not a host name")
            if name.startswith("*."):
                self._suffixes.append(name[1:])
            else:
                self._names.add(name)

    def allow(self, header: str) -> bool:
        """Return whether requests with this ``Host`` are allowed."""
        name = _PORT.sub("", header.lower())
        if name.startswith("[") and name.endswith("]"):
            return _is_address(name[1:-1])
        if _is_address(name) and ":" not in name:
            return True
        name = name.removesuffix(".")
        return (
            name in self._names
            or name.endswith(tuple(self._suffixes))
            or _IN_CLUSTER.fullmatch(name) is not None
        )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
