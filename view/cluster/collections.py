"""Collections of objects: how each is listed and watched, also with few permissions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from common.apiserver.client import Client, Json, quoted
from common.apiserver.errors import REQUEST_ERRORS, Gone, Rejected
from common.apiserver.follower import Collection
from common.errors import Unavailable
from view.model.reports import Gap
from view.model.words import clamp

_QUIET_WATCH_SECONDS = "60"
"""Timeout of a watch on Events. Only the API server's watch cache sends bookmarks, and it does not
hold Events: without a timeout the client would take a silent watch for broken. Also of a watch on
one namespace because all may not be read: by then the permission may have been granted."""

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


class FollowedCollection(Collection[Json]):
    """One collection.

    If all namespaces may not be read, one namespace is. If nodes may not be listed, the nodes of
    known pods are read one by one. If nothing may be read any more, all objects are dropped.

    Attributes:
        of: which objects are read.
        listed: whether it has been read once.
        lost: unix time since which it is out of date, and why; ``None`` while it is current.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        client: Client,
        of: ResourceKind,
        *,
        namespace: str,
        sink: Sink,
        on_gap: Callable[[ResourceKind, Gap | None], None],
        own_nodes: Callable[[], Sequence[str]],
        progress: Progress = lambda _what, _count: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            client: client of the API server.
            of: which objects are read.
            namespace: the one to read if all namespaces may not be read.
            sink: takes the objects.
            on_gap: called after each list with what may not be read.
            own_nodes: returns the nodes of known pods.
            progress: called while lists are read.
            now: returns unix time.
        """
        selectors = {"fieldSelector": of.selector, "labelSelector": of.labels}
        super().__init__(
            client=client,
            path=_path(of, of.namespace),
            kind=of.what.removesuffix("s"),
            read=lambda obj: obj,
            replace=self._replace,
            put=self._put,
            drop=self._drop,
            query={key: value for key, value in selectors.items() if value},
            progress=partial(progress, of.what),
        )
        self.of = of
        self.listed = False
        self.lost: tuple[float, str] | None = None
        self._namespace = namespace
        self._sink = sink
        self._on_gap = on_gap
        self._own_nodes = own_nodes
        self._now = now
        self._read = ""  # version of a list that no watch has continued yet
        self._is_narrow = False  # whether one namespace is read because all may not be
        self._known: dict[str, Json] = {}

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
        """Yield the events since a version.

        Raises:
            Gone: the version is too old, or only one namespace could be read: list again.
            Unavailable: the stream broke.
        """
        query = {**self.query, "resourceVersion": version}
        if self.of.what == "events" or self._is_narrow:
            query["timeoutSeconds"] = _QUIET_WATCH_SECONDS
        with self._tracking_loss():
            yield from self.client.watch(self.path, query)
        if self._is_narrow:
            raise Gone("whether all namespaces may be read by now")

    @contextmanager
    def _tracking_loss(self) -> Iterator[None]:
        """Set ``lost`` if a request fails; the next complete list resets it.

        A missing permission is a gap instead.
        """
        try:
            yield
        except (Rejected, Unavailable) as error:
            if not isinstance(error, Rejected) or error.status != FORBIDDEN:
                self.lost = (self.lost[0] if self.lost else self._now(), short_reason(error))
            raise

    def _read_all(self) -> str:
        self.path = _path(self.of, self.of.namespace)
        try:
            version, gap = super().list(), None
        except Rejected as error:
            if error.status != FORBIDDEN:
                raise
            gap = Gap(self.of.what, self._namespace, str(error))
            try:
                version = self._list_namespace()
            except Rejected:
                before, self._known = self._known, {}
                some = self.of.what == "nodes" and self._read_single_nodes()
                self._forget_others(before)
                self._on_gap(self.of, replace(gap, namespace="", some=some))
                raise
        self._on_gap(self.of, gap)
        self.listed, self.lost, self._is_narrow = True, None, gap is not None
        return version

    def _list_namespace(self) -> str:
        """Read one namespace, because all may not be read."""
        if self.of.what == "nodes" or self.of.namespace:
            raise Rejected(FORBIDDEN, "")
        self.path = _path(self.of, self._namespace)
        return super().list()

    def _read_single_nodes(self) -> bool:
        """Read the nodes of known pods one by one; return whether any may be read."""
        found = False
        for name in self._own_nodes()[:_MOST_SINGLE_NODES]:
            try:
                self._put(self.client.call("GET", f"/api/v1/nodes/{quoted(name)}", timeout=5.0))
            except (Rejected, Gone):
                continue
            found = True
        return found

    def _replace(self, listed: Iterable[Json]) -> None:
        before, self._known = self._known, {}
        try:
            for obj in listed:
                self._put(obj)
        except REQUEST_ERRORS:
            self._known = before | self._known  # the next list drops those that are gone
            raise
        self._forget_others(before)

    def _forget_others(self, before: Mapping[str, Json]) -> None:
        """Drop the objects known before that are not known now."""
        for uid, obj in before.items():
            if uid not in self._known:
                self._sink(self.of, "DROP", obj)

    def _put(self, obj: Json) -> None:
        metadata = obj["metadata"]  # enough to drop the object later
        kept = {each: metadata.get(each) for each in ("uid", "namespace", "name")}
        about = {"metadata": kept, "involvedObject": obj.get("involvedObject")}
        self._known[_uid(obj)] = about
        self._sink(self.of, "PUT", obj)

    def _drop(self, obj: Json) -> None:
        self._known.pop(_uid(obj), None)
        self._sink(self.of, "DROP", obj)


def _uid(obj: Json) -> str:
    return str(obj["metadata"].get("uid") or obj["metadata"]["name"])


def _path(kind: ResourceKind, namespace: str) -> str:
    scope = f"/namespaces/{quoted(namespace)}" if namespace else ""
    return f"/api/v1{scope}/{kind.what}"
