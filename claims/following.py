"""The two watches that update the state: pods that have not ended, and templates."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from claims.cluster import ClaimsApi, WatchedResource
from claims.state import TemplateState, read_template
from common.apiserver.client import Json
from common.apiserver.follower import Follower, Followers, skipping_unreadable

T = TypeVar("T")


def follow(state: TemplateState, api: ClaimsApi) -> Followers:
    """Return both watches; no request is sent before they are started."""
    pods = _Followed(
        *("pod", api.pods, state.read_pod),
        *(state.replace_pods, state.put_pod, state.drop_pod),
    )
    templates = _Followed(
        *("template", api.templates, read_template),
        *(state.replace_templates, state.put_template, state.drop_template),
    )
    return Followers(
        pods=Follower(pods, trouble="no pods from the API server"),
        templates=Follower(templates, trouble="no templates from the API server"),
    )


class _Followed(Generic[T]):
    """One collection, for :class:`Follower`."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one collection
        self,
        kind: str,
        api: WatchedResource,
        read: Callable[[Json], T | None],
        replace: Callable[[Iterable[T]], None],
        put: Callable[[T], None],
        drop: Callable[[str], None],
    ) -> None:
        self._kind = kind
        self._api = api
        self._read = read
        self._replace = replace
        self._put = put
        self._drop = drop

    def list(self) -> str:
        found: list[T] = []
        version = ""
        for items, version in self._api.pages():  # noqa: B007 - of the last page
            for obj in items:
                with skipping_unreadable(self._kind, obj):
                    read = self._read(obj)
                    found += [] if read is None else [read]
        self._replace(found)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        return self._api.watch(version)

    def apply(self, kind: str, obj: Json) -> None:
        with skipping_unreadable(self._kind, obj):
            read = None if kind == "DELETED" else self._read(obj)
            if read is None:
                self._drop(obj["metadata"]["uid"])
            else:
                self._put(read)
