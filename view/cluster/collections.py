"""The collections that are read: which, by which rights, and how they are followed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated

from common.apiserver.client import Client, Json, quoted
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.model.reports import Gap
from view.model.words import clamp

_PAGE = "500"
"""A page is held in memory as a whole; by pages, progress can be shown."""

_QUIET_WATCH_SECONDS = "60"
"""Events are not in the API server's watch cache, and only that sends bookmarks. Such a watch is
ended by the server before it would be taken for dead."""

FORBIDDEN = 403
_MOST_ASKED = 50
"""Nodes that are read one by one where they may not be listed."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """What is read."""

    what: Annotated[str, "``nodes``, ``pods`` or ``events``."]
    selector: Annotated[str, "field selector; empty for all."] = ""
    labels: Annotated[str, "label selector; empty for all."] = ""
    namespace: Annotated[
        str, "the only one; empty for all, or for one where all may not be read."
    ] = ""
    chosen: Annotated[
        bool, "whether it is about what the user chose, besides what is read anyway."
    ] = False


NODES = ResourceKind("nodes")
PODS = ResourceKind("pods")
OWN_EVENTS = ResourceKind("events", "source=gpu-turnstile")
DENIED_EVENTS = ResourceKind("events", "reason=FailedCreate")
"""By a controller: pods that it cannot create, because a webhook or policy refuses them, too."""

ALL = (NODES, PODS, OWN_EVENTS, DENIED_EVENTS)

Sink = Callable[[ResourceKind, str, Json], None]
"""Takes what happened to an object: kind, ``PUT`` or ``DROP``, and the object."""

Progress = Callable[[str, int], None]
"""Told how many objects of which kind have been read so far."""


def events_of(namespace: str, name: str) -> ResourceKind:
    """Return the Events of one pod, those of scheduler and kubelet too."""
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    return ResourceKind("events", selector, namespace=namespace)


def shortly(error: Exception) -> str:
    """Return why the API server is not heard, the same text for the same trouble."""
    text = str(error)
    known = {"timed out": "no answer in time", "refused": "connection refused"}
    found = (words for sign, words in known.items() if sign in text)
    return next(found, clamp(text.removeprefix("API server: "), 200))


def pages(
    api: Client, path: str, query: Mapping[str, str], within: float | None = None
) -> Iterator[tuple[list[Json], str]]:
    """Yield the pages of a list: objects and the version to watch from."""
    more = ""
    while True:
        wanted = {**query, "limit": _PAGE, **({"continue": more} if more else {})}
        objects, version, more = api.list(path, wanted, within)
        yield objects, version
        if not more:
            return


@dataclass
class FollowedCollection:
    """One collection, as :class:`common.apiserver.follower.Follower` follows it.

    Where all namespaces may not be read, one is. Where nodes may not be listed, those are read one
    by one that pods are on. Where nothing may be read any more, nothing is known any more.
    """

    api: Client
    kind: ResourceKind
    namespace: str
    sink: Sink
    on_gap: Callable[[ResourceKind, Gap | None], None]
    progress: Progress = lambda _what, _count: None
    own_nodes: Callable[[], Sequence[str]] = lambda: ()
    within: float | None = None
    listed: Annotated[bool, "whether it has been read once."] = False
    lost: Annotated[
        tuple[float, str] | None,
        "since when it is not in step, by the clock, and why; ``None`` while it is.",
    ] = None
    _narrow: bool = False
    _read: str = ""  # the version of a list that nobody has watched from yet
    _known: dict[str, Json] = field(default_factory=dict)

    def load(self) -> None:
        """Read all objects once; a watch goes on from there."""
        self._read = self._whole()

    def list(self) -> str:
        """Read all objects, unless they have just been; return the version to watch from.

        Raises:
            Rejected: nothing of it may be read.
            Gone: its pages took too long.
            Unavailable: no usable answer.
        """
        version, self._read = self._read, ""
        with self._noticing():
            return version or self._whole()

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream events from a version on."""
        query = {**self._query, "resourceVersion": version}
        if self.kind.what == "events":
            query["timeoutSeconds"] = _QUIET_WATCH_SECONDS
        with self._noticing():
            yield from self.api.watch(self._path, query)

    def apply(self, kind: str, obj: Json) -> None:
        """Take one event in."""
        self._put(obj, drop=kind == "DELETED")

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Record since when nothing is heard; a list that is read ends that.

        A right that is missing is a gap instead.
        """
        try:
            yield
        except (Rejected, Unavailable) as error:
            if not isinstance(error, Rejected) or error.status != FORBIDDEN:
                self.lost = (self.lost[0] if self.lost else time.time(), shortly(error))
            raise

    def _whole(self) -> str:
        self._narrow = False
        try:
            version, gap = self._list(), None
        except Rejected as error:
            if error.status != FORBIDDEN:
                raise
            gap = Gap(self.kind.what, self.namespace, str(error))
            try:
                version = self._with_less()
            except Rejected:
                before, self._known = self._known, {}
                some = self.kind.what == "nodes" and self._single()
                self._forget(before, self._known)
                self.on_gap(self.kind, replace(gap, namespace="", some=some))
                raise
        self.on_gap(self.kind, gap)
        self.listed, self.lost = True, None
        return version

    def _with_less(self) -> str:
        """Read one namespace, as where not all may be read."""
        if self.kind.what == "nodes" or self.kind.namespace:
            raise Rejected(FORBIDDEN, "")
        self._narrow = True
        return self._list()

    def _single(self) -> bool:
        """Read the nodes that pods are on, one by one; return whether any may be read."""
        found = False
        for name in self.own_nodes()[:_MOST_ASKED]:
            try:
                self._put(self.api.call("GET", f"/api/v1/nodes/{quoted(name)}", timeout=5.0))
            except (Rejected, Gone):
                continue
            found = True
        return found

    def _list(self) -> str:
        before, self._known, count, version = self._known, {}, 0, ""
        try:
            for objects, version in pages(self.api, self._path, self._query, self.within):  # noqa: B007 -- the last
                for obj in objects:
                    self._put(obj)
                count += len(objects)
                self.progress(self.kind.what, count)
        except (Rejected, Gone, Unavailable):
            self._known = before | self._known  # to be dropped by the next list
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
        else:  # enough to drop it by
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
