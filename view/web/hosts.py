"""By which names a browser may ask for the page. Pure.

A page of somebody else can let its own name point to an address of ours (DNS rebinding), and would
then read what we serve as its own. The name stands in ``Host`` all the same. An IP address there
is no such name: nobody can let it point elsewhere.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address

from common.text import cut

SERVICE = "gpu-turnstile-view"

_PORT = re.compile(r":[0-9]{1,5}$", re.ASCII)
_NAME = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class Hosts:
    """The names that are allowed: this machine, any IP address, the Service, and those given."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        """Allow further names, without a port; ``*.example.org`` is every name below it.

        Raises:
            ValueError: a name can be no host's.
        """
        self._names = {"localhost", SERVICE}
        self._suffixes = [".localhost"]
        for each in given:
            name = each.lower()
            if not _NAME.fullmatch(name):
                raise ValueError(f"{cut(each, 80)!r} is no host name")
            if name.startswith("*."):
                self._suffixes.append(name[1:])
            else:
                self._names.add(name)

    def allow(self, header: str) -> bool:
        """Return whether a request with this ``Host`` is answered."""
        name = _PORT.sub("", header.lower())
        if name.startswith("[") and name.endswith("]"):
            return _is_address(name[1:-1])
        if _is_address(name) and ":" not in name:
            return True
        name = name.removesuffix(".")
        return (
            name in self._names
            or name.endswith(tuple(self._suffixes))
            or self._is_service(name.split("."))
        )

    def _is_service(self, parts: list[str]) -> bool:
        """Return whether it is ``<service>.<namespace>.svc[.cluster.local]``.

        Without ``svc`` it may be a name that somebody has bought: namespaces can be called ``com``.
        """
        return parts[0] == SERVICE and parts[2:] in (["svc"], ["svc", "cluster", "local"])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
