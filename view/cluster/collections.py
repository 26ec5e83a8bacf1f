"""The collections that are read: which, by which rights, and how they are followed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.apiserver.client import Json
from common.apiserver.errors import Rejected
from view.model.reports import Gap

_PAGE = "500"
"""A page is held in memory as a whole; by pages, progress can be shown."""

_QUIET_WATCH_SECONDS = "60"
"""Events are not in the API server's watch cache, and only that sends bookmarks. Such a watch is
ended by the server before it would be taken for dead."""

_FORBIDDEN = 403


class Api(Protocol):
    """The part of the client that is used."""

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        """List one page: objects, resource version, what continues the list."""
        ...

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
        """Stream events."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """What is read.

    Attributes:
        what: ``nodes``, ``pods`` or ``events``.
        selector: field selector; empty for all.
        namespaced: whether one namespace can be read where all cannot.
        bookmarks: whether the API server says something in a watch of which nothing happens.
    """

    what: str
    selector: str = ""
    namespaced: bool = True
    bookmarks: bool = True


NODES = Kind("nodes", namespaced=False)
PODS = Kind("pods")
OWN_EVENTS = Kind("events", "source=gpu-turnstile", bookmarks=False)
DENIED_EVENTS = Kind("events", "reason=FailedCreate", bookmarks=False)
"""By a controller: pods that it cannot create, because a webhook or policy refuses them, too."""

ALL = (NODES, PODS, OWN_EVENTS, DENIED_EVENTS)

Sink = Callable[[Kind, str, Json], None]
"""Takes what happened to an object: kind, ``PUT`` or ``DROP``, and the object."""

Progress = Callable[[str, int], None]
"""Told how many objects of which kind have been read so far."""


@dataclass
class Followed:
    """One collection, as :class:`common.apiserver.follower.Follower` follows it.

    Where all namespaces may not be read, one is.

    Attributes:
        listed: whether it has been read once.
    """

    api: Api
    kind: Kind
    namespace: str
    sink: Sink
    on_gap: Callable[[Kind, Gap | None], None]
    progress: Progress = lambda _what, _count: None
    listed: bool = False
    _narrow: bool = False
    _known: dict[str, Json] = field(default_factory=dict)

    def list(self) -> str:
        """Read all objects; return the resource version to watch from.

        Raises:
            Rejected: nothing of it may be read.
            Unavailable: no usable answer.
        """
        self._narrow = False
        try:
            version = self._list()
        except Rejected as error:
            if error.status != _FORBIDDEN or not self.kind.namespaced:
                self._refused(error)
                raise
            self._narrow, reason = True, str(error)
            try:
                version = self._list()
            except Rejected as narrow:
                self._refused(narrow)
                raise
            self.on_gap(self.kind, Gap(self.kind.what, self.namespace, reason))
        else:
            self.on_gap(self.kind, None)
        self.listed = True
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream events from a version on."""
        limit = {} if self.kind.bookmarks else {"timeoutSeconds": _QUIET_WATCH_SECONDS}
        return self.api.watch(self._path, {**self._query, **limit, "resourceVersion": version})

    def apply(self, kind: str, obj: Json) -> None:
        """Take one event in."""
        self._put(obj, drop=kind == "DELETED")

    def _refused(self, error: Rejected) -> None:
        self.on_gap(self.kind, Gap(self.kind.what, "", str(error)))

    def _list(self) -> str:
        before, self._known, count, more = self._known, {}, 0, ""
        while True:
            query = {**self._query, "limit": _PAGE, **({"continue": more} if more else {})}
            objects, version, more = self.api.list(self._path, query)
            for obj in objects:
                self._put(obj)
            count += len(objects)
            self.progress(self.kind.what, count)
            if not more:
                break
        for uid, obj in before.items():
            if uid not in self._known:
                self.sink(self.kind, "DROP", obj)
        return version

    def _put(self, obj: Json, *, drop: bool = False) -> None:
        metadata = obj["metadata"]
        uid = metadata.get("uid") or metadata["name"]
        if drop:
            self._known.pop(uid, None)
        else:  # enough to drop it by
            kept = {
                "uid": metadata.get("uid"),
                "namespace": metadata.get("namespace"),
                "name": metadata["name"],
            }
            self._known[uid] = {"metadata": kept}
            if "involvedObject" in obj:
                self._known[uid]["involvedObject"] = obj["involvedObject"]
        self.sink(self.kind, "DROP" if drop else "PUT", obj)

    @property
    def _path(self) -> str:
        scope = f"/namespaces/{self.namespace}" if self._narrow else ""
        return f"/api/v1{scope}/{self.kind.what}"

    @property
    def _query(self) -> dict[str, str]:
        return {"fieldSelector": self.kind.selector} if self.kind.selector else {}
