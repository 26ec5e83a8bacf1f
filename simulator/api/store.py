"""The objects and their history, in memory and without I/O.

One counter gives every write its resourceVersion. For each resource, a limited number of the
newest changes is kept; older ones expire, as in a watch cache. Neither the store nor its callers
may change a stored object in place.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias
from uuid import UUID

from simulator.api import errors
from simulator.api.resources import ApiResource, Json

Subscriber: TypeAlias = Callable[["ObjectWrite"], None]

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
_LONGEST_PREFIX = 58


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One write.

    Attributes:
        version: the resourceVersion of this write.
        resource: the resource of the object.
        old: the object before, ``None`` if it was created.
        new: the object after, ``None`` if it was deleted.
        last: the object as watchers get it; if deleted, its last state with *version*.
    """

    version: int
    resource: ApiResource
    old: Json | None
    new: Json | None
    last: Json

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name."""
        return _key(self.last)


@dataclass(slots=True)
class _Collection:
    objects: dict[tuple[str, str], Json] = field(default_factory=dict)
    changes: deque[ObjectWrite] = field(default_factory=deque)
    expired: int = 0  # the newest version whose change is no longer kept


class ObjectStore:
    """All objects of one server.

    Args:
        random: makes the UIDs.
        clock: returns Unix time in seconds.
        history: number of changes kept for each resource.
    """

    def __init__(
        self, random: Random, *, clock: Callable[[], float] = time.time, history: int = 10_000
    ) -> None:
        self._clock = clock
        self._random = random
        self._history = history
        self._collections: dict[ApiResource, _Collection] = {}
        self._subscribers: list[Subscriber] = []
        # Not 0: in a request, resourceVersion "0" means any version.
        self._version = 1

    @property
    def version(self) -> int:
        """The newest resourceVersion of all."""
        return self._version

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call *subscriber* with every change from now on, in order."""
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop calling *subscriber*."""
        self._subscribers.remove(subscriber)

    def find(self, resource: ApiResource, namespace: str, name: str) -> Json | None:
        """Return one object, ``None`` if it does not exist."""
        return self._of(resource).objects.get((namespace, name))

    def get(self, resource: ApiResource, namespace: str, name: str) -> Json:
        """Return one object.

        Raises:
            StatusError: 404, the object does not exist.
        """
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def list(self, resource: ApiResource, namespace: str = "") -> Iterable[Json]:
        """Return the objects of one or all namespaces, ordered by namespace and name."""
        objects = self._of(resource).objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def new_uid(self) -> str:
        """Return a new random UID."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def now(self) -> str:
        """Return the current time in the format of object fields."""
        return timestamp(self._clock())

    def timestamp_in(self, seconds: float) -> str:
        """Return the time *seconds* from now in the format of object fields."""
        return timestamp(self._clock() + seconds)

    def new_name(self, prefix: str) -> str:
        """Return a name from ``generateName``, by the rule of ``k8s.io/apiserver/.../names``."""
        return prefix[:_LONGEST_PREFIX] + "".join(self._random.choices(_NAME_LETTERS, k=5))

    def create(self, resource: ApiResource, obj: Json, *, dry_run: bool = False) -> Json:
        """Store a new object under its namespace and name, unless this is a dry run.

        Raises:
            StatusError: 409, the name is in use.
        """
        key = _key(obj)
        if key in self._of(resource).objects:
            raise errors.already_exists(resource, key[1])
        system = {"uid": self.new_uid(), "creationTimestamp": self.now()}
        new = {**obj, "metadata": {**obj["metadata"], **system}}
        return new if dry_run else self._write(resource, None, new)

    def update(self, resource: ApiResource, obj: Json, *, based_on: Json) -> Json:
        """Store a new version of an object.

        Args:
            resource: the kind of object.
            obj: the new version; the system's fields are taken from *based_on*.
            based_on: the version that the caller read; it must be the newest one.

        Raises:
            StatusError: 404 if the object is deleted, 409 if *based_on* is not the newest version.
        """
        namespace, name = _key(based_on)
        old = self.get(resource, namespace, name)
        if old is not based_on:
            raise errors.modified(resource, name)
        kept = {
            each: old["metadata"][each]
            for each in ("name", "namespace", "uid", "creationTimestamp")
            if each in old["metadata"]
        }
        new = {**obj, "metadata": {**obj["metadata"], **kept}}
        # As in the real server, a write without a change makes no version and no event.
        if _without_version(new) == _without_version(old):
            return old
        return self._write(resource, old, new)

    def delete(self, resource: ApiResource, namespace: str, name: str) -> Json:
        """Remove an object and return its last state.

        Raises:
            StatusError: 404, the object does not exist.
        """
        old = self.get(resource, namespace, name)
        del self._of(resource).objects[namespace, name]
        return self._record(resource, old, None, old)

    def changes_since(self, resource: ApiResource, version: int) -> Iterable[ObjectWrite]:
        """Return the changes of a resource after *version*, oldest first.

        Raises:
            StatusError: 410, some of these changes have expired.
        """
        collection = self._of(resource)
        if version < collection.expired:
            raise errors.expired(version, collection.expired)
        return [change for change in collection.changes if change.version > version]

    def expire_history(self) -> None:
        """Drop all kept changes: a watch from an older version gets 410."""
        for collection in self._collections.values():
            collection.changes.clear()
            collection.expired = self._version

    def _of(self, resource: ApiResource) -> _Collection:
        return self._collections.setdefault(resource, _Collection())

    def _write(self, resource: ApiResource, old: Json | None, new: Json) -> Json:
        stored = self._record(resource, old, new, new)
        self._of(resource).objects[_key(stored)] = stored
        return stored

    def _record(
        self, resource: ApiResource, old: Json | None, new: Json | None, last: Json
    ) -> Json:
        self._version += 1
        stamped = {
            **last,
            "metadata": {**last["metadata"], "resourceVersion": str(self._version)},
        }
        change = ObjectWrite(
            version=self._version,
            resource=resource,
            old=old,
            new=None if new is None else stamped,
            last=stamped,
        )
        collection = self._of(resource)
        collection.changes.append(change)
        while len(collection.changes) > self._history:
            collection.expired = collection.changes.popleft().version
        for subscriber in tuple(self._subscribers):
            subscriber(change)
        return stamped


def timestamp(seconds: float) -> str:
    """Format Unix time as RFC 3339 with whole seconds, as in object fields."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(obj: Json) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _without_version(obj: Json) -> Json:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}
