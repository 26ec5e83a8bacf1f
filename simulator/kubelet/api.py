"""The API server as the kubelet needs it; ``simulator.client.ApiClient`` fits."""

from collections.abc import Iterator
from threading import Event
from typing import Protocol

from simulator.client import Json, PatchKind, WatchEvent

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"


class NodeApi(Protocol):
    """What is read and written. Every method raises ``simulator.client.ApiError``."""

    def get(self, path: str, **query: str) -> Json:
        """Read one object."""

    def list(self, path: str, **query: str) -> Json:
        """Read a collection."""

    def create(self, path: str, obj: Json, **query: str) -> Json:
        """Add an object to a collection."""

    def patch(self, path: str, patch: Json, *, kind: PatchKind = "merge") -> Json:
        """Change an object."""

    def delete(
        self, path: str, *, grace_period_seconds: int | None = None, uid: str | None = None
    ) -> Json:
        """Remove an object, if it still is the one with that UID."""

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        field_selector: str = "",
        stop: Event | None = None,
    ) -> Iterator[WatchEvent]:
        """Follow a collection until *stop* is set or the server ends it."""
