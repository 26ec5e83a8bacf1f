"""The objects and their history, in memory and without I/O.

One counter gives every write its resourceVersion. Each resource keeps the last so many
changes; what is older is expired, as in a watch cache. A stored object is never changed
in place: who reads one must not either.
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


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One write.

    Attributes:
        version: the resourceVersion it made.
        old: the object before, ``None`` when it was created.
        new: the object after, ``None`` when it was deleted.
        last: the object as watchers see it; when deleted, its last state with *version*.
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
        random: draws uids.
        clock: gives unix time in seconds.
        history: how many changes of each resource are kept.
    """

    def __init__(
        self, random: Random, *, clock: Callable[[], float] = time.time, history: int = 10_000
    ) -> None:
        self._clock = clock
        self._random = random
        self._history = history
        self._collections: dict[ApiResource, _Collection] = {}
        self._subscribers: list[Subscriber] = []
        # Zero is no version: a list at "0" means "whatever you have".
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
        """Read one object."""
        return self._of(resource).objects.get((namespace, name))

    def get(self, resource: ApiResource, namespace: str, name: str) -> Json:
        """Read one object.

        Raises:
            StatusError: 404.
        """
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def list(self, resource: ApiResource, namespace: str = "") -> Iterable[Json]:
        """Read all objects, of one namespace or of all, ordered by namespace and name."""
        objects = self._of(resource).objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def new_uid(self) -> str:
        """Draw a uid."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def now(self) -> str:
        """Return the time as objects carry it."""
        return timestamp(self._clock())

    def timestamp_in(self, seconds: float) -> str:
        """Return the time in so many seconds as objects carry it."""
        return timestamp(self._clock() + seconds)

    def create(self, resource: ApiResource, obj: Json) -> Json:
        """Store a new object under its namespace and name.

        Raises:
            StatusError: 409, the name is taken.
        """
        key = _key(obj)
        if key in self._of(resource).objects:
            raise errors.already_exists(resource, key[1])
        system = {"uid": self.new_uid(), "creationTimestamp": self.now()}
        return self._write(resource, None, {**obj, "metadata": {**obj["metadata"], **system}})

    def update(self, resource: ApiResource, obj: Json, *, based_on: Json) -> Json:
        """Store a new version of an object.

        Args:
            resource: the kind of object.
            obj: the new version; what the system fills in is kept from *based_on*.
            based_on: the version read before; the newest one, or the write is refused.

        Raises:
            StatusError: 404 or 409, the object is gone or is another by now.
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
        # A write that changes nothing makes no version and no event.
        if _without_version(new) == _without_version(old):
            return old
        return self._write(resource, old, new)

    def delete(self, resource: ApiResource, namespace: str, name: str) -> Json:
        """Remove an object and give its last state.

        Raises:
            StatusError: 404.
        """
        old = self.get(resource, namespace, name)
        del self._of(resource).objects[namespace, name]
        return self._record(resource, old, None, old)

    def changes_since(self, resource: ApiResource, version: int) -> Iterable[ObjectWrite]:
        """Return the changes of a resource after *version*, oldest first.

        Raises:
            StatusError: 410, some of them are no longer kept.
        """
        collection = self._of(resource)
        if version < collection.expired:
            raise errors.expired(version, collection.expired)
        return [change for change in collection.changes if change.version > version]

    def expire_history(self) -> None:
        """Forget all changes: whoever continues from before now gets 410."""
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
    """Write unix time as RFC 3339 with whole seconds, as objects carry it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(obj: Json) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _without_version(obj: Json) -> Json:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}
