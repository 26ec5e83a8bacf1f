"""The two watches that update the state: pods that have not ended, and templates."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from claims.cluster import ClaimsApi, WatchedResource
from claims.state import TemplateState, read_template
from common.apiserver.client import Json
from common.apiserver.follower import Follower, skipping_unreadable
from common.backoff import Jitter, by_chance

T = TypeVar("T")


class FollowedResources:
    """Both watches, each in its own thread."""

    def __init__(self, state: TemplateState, api: ClaimsApi, *, jitter: Jitter = by_chance) -> None:
        """Prepare; no request is sent before :meth:`start`."""
        pods = _Followed(
            *("pod", api.pods, state.read_pod, state.replace_pods, state.put_pod),
            lambda obj: state.drop_pod(obj["metadata"]["uid"]),
        )
        templates = _Followed(
            *("template", api.templates, read_template),
            *(state.replace_templates, state.put_template),
            lambda obj: state.drop_template(
                (obj["metadata"]["namespace"], obj["metadata"]["name"])
            ),
        )
        self._stop = threading.Event()
        self._followers = {
            name: Follower(each, trouble=f"no {name} from the API server", jitter=jitter)
            for name, each in (("pods", pods), ("templates", templates))
        }
        self._threads = [
            threading.Thread(target=each.run, args=(self._stop,), name=f"watch-{name}", daemon=True)
            for name, each in self._followers.items()
        ]

    def start(self) -> None:
        """Start the threads; returns at once."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """Let the threads end soon; the caller closes the client."""
        self._stop.set()

    def ended(self) -> list[str]:
        """Return the names of threads that have ended unexpectedly, by a bug."""
        if self._stop.is_set():
            return []
        return [each.name for each in self._threads if each.ident and not each.is_alive()]

    @property
    def in_step(self) -> bool:
        """Whether pods and templates have been listed, and are watched since."""
        return all(each.has_listed() for each in self._followers.values())


class _Followed(Generic[T]):
    """One collection, for :class:`Follower`."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one collection
        self,
        kind: str,
        api: WatchedResource,
        read: Callable[[Json], T | None],
        replace: Callable[[Iterable[T]], None],
        put: Callable[[T], None],
        drop: Callable[[Json], None],
    ) -> None:
        self._kind = kind
        self._api = api
        self._read = read
        self._replace = replace
        self._put = put
        self._drop = drop

    def list(self) -> str:
        found: list[T] = []
        more, version = "", ""
        while True:
            # Only one page is in memory at a time.
            items, version, more = self._api.list(more)
            for obj in items:
                with skipping_unreadable(self._kind, obj):
                    read = self._read(obj)
                    found += [] if read is None else [read]
            if not more:
                break
        self._replace(found)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        return self._api.watch(version)

    def apply(self, kind: str, obj: Json) -> None:
        with skipping_unreadable(self._kind, obj):
            read = None if kind == "DELETED" else self._read(obj)
            if read is None:
                self._drop(obj)
            else:
                self._put(read)
