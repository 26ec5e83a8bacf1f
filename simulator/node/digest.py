"""What the kubelet's trace says of pods so far, kept up as it grows."""

from collections import defaultdict

from simulator.kubelet.trace import Trace


class Digest:
    """Reads every event once: a node is asked again and again how far its pods are."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._read = 0
        self._seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    @property
    def read(self) -> int:
        """Number of events so far."""
        for each in self._trace.since(self._read):
            self._read += 1
            self._seen[each.event].add((each.pod_uid, each.container))
        return self._read

    def containers(self, event: str) -> set[tuple[str, str]]:
        """Return UID and name of the containers of which there was an *event*."""
        return self._seen[event] if self.read else set()

    def pods(self, event: str) -> set[str]:
        """Return the UIDs of the pods of which there was an *event*."""
        return {uid for uid, _ in self.containers(event)}
