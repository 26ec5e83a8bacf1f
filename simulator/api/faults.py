"""What can go wrong with the server on purpose, and what it remembers of its callers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outage(StrEnum):
    """How the server is away."""

    NONE = "none"
    REFUSED = "refused"
    """Nobody listens on the port; open connections are reset."""
    UNAVAILABLE = "unavailable"
    """Every request is answered with 503; running watches are cut."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a request gets instead of its answer.

    Attributes:
        status: the HTTP status; 0 for the answer that it would have got, late.
        body: the bytes of the answer; ``None`` for a ``Status`` with the message.
        message: why, in a ``Status``; ``{asked}`` in it stands for verb and path.
        delay_s: seconds before anything is said.
        cut: whether the connection is reset after *body*, of which more was announced.
    """

    status: int = 0
    body: bytes | None = None
    message: str = ""
    delay_s: float = 0.0
    cut: bool = False


SILENCE = Fault(delay_s=math.inf)
"""A server that takes connections and never says a word."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, in the terms in which RBAC speaks of it.

    Attributes:
        method: the HTTP method.
        path: the path without its query.
        verb: get, list, watch, create, update, patch or delete.
        group: API group of the resource, empty for the core and for paths of no resource.
        resource: plural name with subresource, such as ``pods/binding``; empty for others.
        namespace: where, empty for cluster-wide.
        name: of the object, empty for a collection.
        query: what follows the path, decoded.
        headers: by their names, in any case.
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
        """Who."""
        return self.headers.get("User-Agent", "")
