"""The claims with a card of this node: a cache that a watch updates, and one request on a miss."""

from collections.abc import Callable

from agent.dra.claims import ClaimRef
from agent.kubernetes_api.client import Api, Json
from agent.kubernetes_api.watched_objects import WatchedObjects


class ClaimCache(WatchedObjects):
    """Keeps the claims that *is_ours* selects."""

    def __init__(self, api: Api, is_ours: Callable[[Json], bool]) -> None:
        """Start empty."""
        super().__init__("ResourceClaim", api.list_claims, api.watch_claims, keeps=is_ours)
        self._api = api

    def get(self, ref: ClaimRef) -> Json | None:
        """Return a claim, from the API server if the watch does not show it on this node.

        Returns:
            The claim; ``None`` if there is none with this UID.

        Raises:
            Unavailable: no response in time.
        """
        found = self.objects.get((ref.namespace, ref.name))
        if found is None or found["metadata"]["uid"] != ref.uid:
            found = self._api.get_claim(ref.namespace, ref.name)
        return found if found is not None and found["metadata"]["uid"] == ref.uid else None
