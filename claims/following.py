"""The two watches that update the state: pods that have not ended, and templates."""

from collections.abc import Callable, Iterator

from claims.cluster import ClaimsApi, WatchedResource
from claims.state import ClaimedPod, KnownTemplate, TemplateState, read_template
from common.apiserver.client import Json
from common.apiserver.follower import Follower, Followers, skipping_unreadable


def follow(state: TemplateState, api: ClaimsApi) -> Followers:
    """Return both watches; no request is sent before they are started."""
    pods = _Followed(state, api.pods, ClaimedPod, state.read_pod)
    templates = _Followed(state, api.templates, KnownTemplate, read_template)
    return Followers(
        pods=Follower(pods, trouble="no pods from the API server"),
        templates=Follower(templates, trouble="no templates from the API server"),
    )


class _Followed:
    """One collection, for :class:`Follower`."""

    def __init__(
        self,
        state: TemplateState,
        api: WatchedResource,
        kind: type[ClaimedPod | KnownTemplate],
        read: Callable[[Json], ClaimedPod | KnownTemplate | None],
    ) -> None:
        self._state = state
        self._api = api
        self._kind = kind
        self._read = read

    def list(self) -> str:
        found: list[ClaimedPod | KnownTemplate] = []
        version = ""
        for items, version in self._api.pages():  # noqa: B007 - of the last page
            for obj in items:
                with skipping_unreadable(self._kind.__name__, obj):
                    read = self._read(obj)
                    found += [] if read is None else [read]
        self._state.replace(self._kind, found)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        return self._api.watch(version)

    def apply(self, kind: str, obj: Json) -> None:
        with skipping_unreadable(self._kind.__name__, obj):
            read = None if kind == "DELETED" else self._read(obj)
            if read is None:
                self._state.drop(obj["metadata"]["uid"])
            else:
                self._state.put(read)
