"""When each pod was bound, seen from outside."""

import threading
import time
from collections.abc import Mapping

from simulator.client import ApiClient, ApiError


class BindTimes:
    """Watches when each pod is bound; the rule that goes by age cannot know a pod before that."""

    def __init__(self, server: str) -> None:
        """Watch from now on.

        Args:
            server: URL of the API server.
        """
        self._client = ApiClient(server)
        self._times: dict[str, float] = {}
        self._watch = self._client.watch("/api/v1/pods", resource_version="0")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._watch:
                if event.type != "BOOKMARK" and event.object["spec"].get("nodeName"):
                    name = event.object["metadata"]["name"]
                    self._times.setdefault(name, time.time() * 1000)
        except ApiError:
            return  # the demo is over

    def stop(self) -> Mapping[str, float]:
        """End the watch; give the time of each pod's binding, ms since 1970."""
        self._watch.close()
        self._thread.join(5)
        self._client.close()
        return self._times
