"""The claims with a card of this node: a cache that a watch updates, and one request on a miss."""

import threading
from collections.abc import Callable, Iterator

from agent.dra.claims import ClaimRef
from agent.kubernetes_api.client import Api, Json
from common.apiserver.follower import Follower, skipping_unreadable
from placement.pods import Key


class ClaimCache:
    """Keeps the claims that *is_ours* selects.

    :meth:`run` belongs to one thread; everything else may be called from any.
    """

    def __init__(self, api: Api, is_ours: Callable[[Json], bool]) -> None:
        """Start empty."""
        self._api = api
        self._is_ours = is_ours
        self._claims: dict[Key, Json] = {}
        self.synced = threading.Event()
        """Set once the first list has been read."""

    def get(self, ref: ClaimRef) -> Json | None:
        """Return a claim, from the API server if the watch does not show it on this node.

        Returns:
            The claim; ``None`` if there is none with this UID.

        Raises:
            Unavailable: no response in time.
        """
        found = self._claims.get((ref.namespace, ref.name))
        if found is None or found["metadata"]["uid"] != ref.uid:
            found = self._api.get_claim(ref.namespace, ref.name)
        return found if found is not None and found["metadata"]["uid"] == ref.uid else None

    def pods(self) -> set[str]:
        """Return the UIDs of the pods that have a claim with a card of this node."""
        return {
            user["uid"]
            for claim in tuple(self._claims.values())
            for user in claim["status"].get("reservedFor") or ()
        }

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*."""
        Follower(self, trouble="no claims from the API server").run(stop)

    def list(self) -> str:
        """List the claims; for :class:`Follower`."""
        items, version = self._api.list_claims()
        self._claims = {_key(each): each for each in items if self._is_ours(each)}
        self.synced.set()
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of claims; for :class:`Follower`."""
        return self._api.watch_claims(version)

    def apply(self, kind: str, obj: Json) -> None:
        """Apply one event; for :class:`Follower`."""
        with skipping_unreadable("claim", obj):
            if kind != "DELETED" and self._is_ours(obj):
                self._claims[_key(obj)] = obj
            else:
                self._claims.pop(_key(obj), None)


def _key(obj: Json) -> Key:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
