"""What can go wrong with the server on purpose, and what it remembers of its callers."""

from dataclasses import dataclass
from enum import StrEnum


class Outage(StrEnum):
    """How the server is away."""

    NONE = "none"
    REFUSED = "refused"
    """Nobody listens on the port; open connections are reset."""
    UNAVAILABLE = "unavailable"
    """Every request is answered with 503; running watches are cut."""
    SILENT = "silent"
    """Requests are taken and not answered; running watches stay open, and say nothing."""


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
        user_agent: who.
        acts_for: the user and the groups that are impersonated.
    """

    method: str
    path: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    user_agent: str
    acts_for: tuple[str, ...]
