"""What the kubelet's trace says of pods so far, kept up as it grows."""

from simulator.kubelet.trace import Trace


class Digest:
    """Reads every event once: a node is asked again and again how far its pods are."""

    def __init__(self, trace: Trace) -> None:
        """Start with nothing read."""
        self._trace = trace
        self._read = 0
        self._rejected: set[str] = set()
        self._ended: set[str] = set()
        self._started: set[tuple[str, str]] = set()

    @property
    def read(self) -> int:
        """Number of events so far."""
        self._catch_up()
        return self._read

    @property
    def rejected(self) -> set[str]:
        """UIDs of the pods that were not admitted."""
        self._catch_up()
        return self._rejected

    @property
    def ended(self) -> set[str]:
        """UIDs of the pods whose containers have all ended."""
        self._catch_up()
        return self._ended

    @property
    def started(self) -> set[tuple[str, str]]:
        """UID and name of the containers that were started."""
        self._catch_up()
        return self._started

    def _catch_up(self) -> None:
        for each in self._trace.since(self._read):
            self._read += 1
            if each.event == "reject":
                self._rejected.add(each.pod_uid)
            elif each.event == "end":
                self._ended.add(each.pod_uid)
            elif each.event == "start":
                self._started.add((each.pod_uid, each.container))
