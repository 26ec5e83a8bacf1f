"""Faults that a test injects into the server, and the server's log of requests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outage(StrEnum):
    """How the server is unavailable."""

    NONE = "none"
    REFUSED = "refused"
    """Nothing listens on the port; open connections are reset."""
    UNAVAILABLE = "unavailable"
    """Every request gets 503; running watches are cut."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a request gets instead of its normal response.

    Attributes:
        status: the HTTP status; 0 for the normal response, only late.
        body: the bytes of the response; ``None`` for a ``Status`` with the message.
        message: the message of the ``Status``; ``{asked}`` in it becomes verb and path.
        delay_s: seconds before the response starts.
        cut: whether the connection is reset after *body*, which is shorter than announced.
        retry_after: the header of this name; empty for none.
    """

    status: int = 0
    body: bytes | None = None
    message: str = ""
    delay_s: float = 0.0
    cut: bool = False
    retry_after: str = ""


SILENCE = Fault(delay_s=math.inf)
"""The server accepts connections and never responds."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, in the terms of RBAC.

    Attributes:
        method: the HTTP method.
        path: the path without its query.
        verb: get, list, watch, create, update, patch or delete.
        group: API group of the resource, empty for the core and for paths of no resource.
        resource: plural name with subresource, such as ``pods/binding``; empty for other paths.
        namespace: the object's namespace, empty for cluster-wide objects.
        name: the object's name, empty for a collection.
        query: the decoded query string.
        headers: by name; letter case does not matter.
    """

    method: str
    path: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    query: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    @property
    def user_agent(self) -> str:
        """The client's ``User-Agent`` header, empty without one."""
        return self.headers.get("User-Agent", "")
