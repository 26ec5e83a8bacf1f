"""Collections of objects: how each is listed and watched, also with few permissions."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated

from common.apiserver.client import Client, Json, pages, quoted
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.model.reports import Gap
from view.model.words import clamp

_QUIET_WATCH_SECONDS = "60"
"""Timeout of a watch on Events. Only the API server's watch cache sends bookmarks, and it does not
hold Events: without a timeout the client would take a silent watch for broken."""

FORBIDDEN = 403
_MOST_SINGLE_NODES = 50
"""Nodes that are read one by one if they may not be listed."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """Which objects are read."""

    what: Annotated[str, "``nodes``, ``pods`` or ``events``."]
    selector: Annotated[str, "field selector; empty for all."] = ""
    labels: Annotated[str, "label selector; empty for all."] = ""
    namespace: Annotated[
        str, "the only namespace; empty for all, or for one if all may not be read."
    ] = ""
    chosen: Annotated[
        bool, "whether it has the user's selectors: it is read besides the others."
    ] = False


NODES = ResourceKind("nodes")
PODS = ResourceKind("pods")
OWN_EVENTS = ResourceKind("events", "source=gpu-turnstile")
DENIED_EVENTS = ResourceKind("events", "reason=FailedCreate")
"""Events of controllers that cannot create pods, among others because a webhook denies them."""

ALL = (NODES, PODS, OWN_EVENTS, DENIED_EVENTS)

Sink = Callable[[ResourceKind, str, Json], None]
"""Called for each change of an object: kind, ``PUT`` or ``DROP``, and the object."""

Progress = Callable[[str, int], None]
"""Called with a resource and how many objects of it have been read so far."""


def events_of(namespace: str, name: str) -> ResourceKind:
    """Return the kind for all Events about one pod, also those of scheduler and kubelet."""
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    return ResourceKind("events", selector, namespace=namespace)


def short_reason(error: Exception) -> str:
    """Return why the API server is unreachable; equal errors give the same text."""
    text = str(error)
    known = {"no response from": "no response in time", "refused by": "connection refused"}
    found = (reason for sign, reason in known.items() if sign in text)
    return next(found, clamp(text.removeprefix("API server: "), 200))


@dataclass
class FollowedCollection:
    """One collection for :class:`common.apiserver.follower.Follower`.

    If all namespaces may not be read, one namespace is. If nodes may not be listed, the nodes of
    known pods are read one by one. If nothing may be read any more, all objects are dropped.
    """

    api: Client
    kind: ResourceKind
    namespace: str
    sink: Sink
    on_gap: Callable[[ResourceKind, Gap | None], None]
    progress: Progress = lambda _what, _count: None
    own_nodes: Callable[[], Sequence[str]] = lambda: ()
    listed: Annotated[bool, "whether it has been read once."] = False
    lost: Annotated[
        tuple[float, str] | None,
        "unix time since which it is out of date, and why; ``None`` while it is current.",
    ] = None
    _narrow: bool = False
    _read: str = ""  # version of a list that no watch has continued yet
    _known: dict[str, Json] = field(default_factory=dict)

    def load(self) -> None:
        """Read all objects once; a watch continues from there."""
        self._read = self._read_all()

    def list(self) -> str:
        """Read all objects, unless :meth:`load` just did; return the version to watch from.

        Raises:
            Rejected: the collection may not be read.
            Gone: its pages took too long.
            Unavailable: no usable response.
        """
        version, self._read = self._read, ""
        with self._tracking_loss():
            return version or self._read_all()

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Yield the events since a version."""
        query = {**self._query, "resourceVersion": version}
        if self.kind.what == "events":
            query["timeoutSeconds"] = _QUIET_WATCH_SECONDS
        with self._tracking_loss():
            yield from self.api.watch(self._path, query)

    def apply(self, kind: str, obj: Json) -> None:
        """Apply one event."""
        self._put(obj, drop=kind == "DELETED")

    @contextmanager
    def _tracking_loss(self) -> Iterator[None]:
        """Set ``lost`` if a request fails; the next complete list resets it.

        A missing permission is a gap instead.
        """
        try:
            yield
        except (Rejected, Unavailable) as error:
            if not isinstance(error, Rejected) or error.status != FORBIDDEN:
                self.lost = (self.lost[0] if self.lost else time.time(), short_reason(error))
            raise

    def _read_all(self) -> str:
        self._narrow = False
        try:
            version, gap = self._list(), None
        except Rejected as error:
            if error.status != FORBIDDEN:
                raise
            gap = Gap(self.kind.what, self.namespace, str(error))
            try:
                version = self._list_namespace()
            except Rejected:
                before, self._known = self._known, {}
                some = self.kind.what == "nodes" and self._read_single_nodes()
                self._forget(before, self._known)
                self.on_gap(self.kind, replace(gap, namespace="", some=some))
                raise
        self.on_gap(self.kind, gap)
        self.listed, self.lost = True, None
        return version

    def _list_namespace(self) -> str:
        """Read one namespace, because all may not be read."""
        if self.kind.what == "nodes" or self.kind.namespace:
            raise Rejected(FORBIDDEN, "")
        self._narrow = True
        return self._list()

    def _read_single_nodes(self) -> bool:
        """Read the nodes of known pods one by one; return whether any may be read."""
        found = False
        for name in self.own_nodes()[:_MOST_SINGLE_NODES]:
            try:
                self._put(self.api.call("GET", f"/api/v1/nodes/{quoted(name)}", timeout=5.0))
            except (Rejected, Gone):
                continue
            found = True
        return found

    def _list(self) -> str:
        before, self._known, count, version = self._known, {}, 0, ""
        try:
            for objects, version in pages(self.api, self._path, self._query):  # noqa: B007 -- of the last page
                for obj in objects:
                    self._put(obj)
                count += len(objects)
                self.progress(self.kind.what, count)
        except (Rejected, Gone, Unavailable):
            self._known = before | self._known  # the next list drops those that are gone
            raise
        self._forget(before, self._known)
        return version

    def _forget(self, before: Mapping[str, Json], now: Mapping[str, Json]) -> None:
        for uid, obj in [*before.items()]:
            if uid not in now:
                self._known.pop(uid, None)
                self.sink(self.kind, "DROP", obj)

    def _put(self, obj: Json, *, drop: bool = False) -> None:
        metadata = obj["metadata"]
        uid = metadata.get("uid") or metadata["name"]
        if drop:
            self._known.pop(uid, None)
        else:  # enough to drop the object later
            kept = {each: metadata.get(each) for each in ("uid", "namespace", "name")}
            self._known[uid] = {"metadata": kept, "involvedObject": obj.get("involvedObject")}
        self.sink(self.kind, "DROP" if drop else "PUT", obj)

    @property
    def _path(self) -> str:
        one = self.kind.namespace or (self.namespace if self._narrow else "")
        scope = f"/namespaces/{quoted(one)}" if one else ""
        return f"/api/v1{scope}/{self.kind.what}"

    @property
    def _query(self) -> dict[str, str]:
        selectors = {"fieldSelector": self.kind.selector, "labelSelector": self.kind.labels}
        return {key: value for key, value in selectors.items() if value}
