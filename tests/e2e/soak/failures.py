"""Why pods failed, and whether a disturbance explains it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.e2e.cluster import Json
from tests.e2e.ground import INTERRUPTED_STARTS

AFTER_SECONDS = 30.0
"""A disturbance explains failures until so long after the node has recovered from it."""

KUBELET, RUNTIME, PROXY, CARDS = "kubelet", "runtime", "proxy", "cards"
"""What a disturbance disturbs."""

_INTERRUPTED = "the start was interrupted"
_NOT_REGISTERED = "the kubelet did not know the devices"
_LOST = "the connection to the plugin was lost"
_UNKNOWN = "the runtime did not know the container any more"
_NO_ROOM = "no card fits"
_CLASSES: tuple[tuple[str, str, frozenset[str]], ...] = (
    # gpu-turnstile's own texts first: they are inside those of the kubelet.
    ("gpu-turnstile: no card fits", _NO_ROOM, frozenset({CARDS})),
    ("gpu-turnstile: ", "refused by the agent", frozenset()),
    ("no healthy devices present", _NOT_REGISTERED, frozenset({KUBELET, PROXY})),
    ("unregistered", _NOT_REGISTERED, frozenset({KUBELET, PROXY})),
    ("requested number of devices unavailable", _NOT_REGISTERED, frozenset({KUBELET, PROXY})),
    ("OutOf", _NOT_REGISTERED, frozenset({KUBELET, PROXY})),  # its capacity is what is allocated
    *(
        (text, _INTERRUPTED, frozenset({KUBELET, RUNTIME}))
        for texts in INTERRUPTED_STARTS.values()
        for text in texts
    ),
    ("Unknown 255", _UNKNOWN, frozenset({RUNTIME})),  # containerd's unknownExitCode
    ("client connection is closing", _LOST, frozenset({KUBELET, PROXY})),
    ("error reading from server", _LOST, frozenset({PROXY})),
    ("connection refused", _LOST, frozenset({PROXY})),
)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something done to the node, by the monotonic clock; *kinds* is what it disturbs."""

    name: str
    kinds: frozenset[str]
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A pod that failed between *created* and *seen*, and its own words about it."""

    pod: str
    words: str
    created: float
    seen: float

    def classify(self) -> tuple[str, frozenset[str]]:
        """Return the class of the words, and what kinds of disturbances explain it."""
        return next(
            ((name, kinds) for text, name, kinds in _CLASSES if text in self.words),
            ("other", frozenset()),
        )

    def explanation(self, disturbances: Iterable[Disturbance]) -> str | None:
        """Return the name of the disturbance that explains it, the latest one."""
        _, kinds = self.classify()
        explaining = [
            each
            for each in disturbances
            if each.kinds & kinds
            and each.began <= self.seen
            and each.ended + AFTER_SECONDS >= self.created
        ]
        return max(explaining, key=lambda each: each.began).name if explaining else None


def words_of(pod: Json) -> str:
    """Return what pod and containers say about the failure."""
    status = pod["status"]
    found = [str(status.get("reason") or ""), str(status.get("message") or "")]
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key) or ():
            for state in ("terminated", "waiting"):
                ended = (each.get("state") or {}).get(state)
                if ended and ended.get("reason") != "Completed":
                    code = ended.get("exitCode", "")
                    found.append(f"{each['name']}: {ended.get('reason')} {code}")
                    found.append(str(ended.get("message") or ""))
    return " ".join(each for each in found if each).strip()
