"""How a plugin of the kubelet hands over to another one, so that no pod fails.

The device plugin proxy does it when it is asked to end, and the agent stands in for it. The agent
does it when the next proxy is there. The kubelet replaces a plugin by a newer one without a gap
(K26), but at the end of the older stream it drops the newer one, and cancels its calls (K18). So
the newer one registers before that, and again after it. The kubelet admits no pod meanwhile,
because it waits for a call that is held here. Why: docs/decisions/0001-device-plugin-proxy.md.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

POLL_SECONDS = 0.002
"""Pause between two checks of a condition; at a handover only, so no event is needed."""

_CALL_SECONDS = 1.0
_LIST_SECONDS = 2.0
_NEXT_LIST_SECONDS = 0.3
"""The lists of several resources come one soon after the other."""


class WaitStep(NamedTuple):
    """A wait that is due: until *condition* holds, but for no more than so many *seconds*."""

    condition: Callable[[], bool]
    seconds: float


class ServedResource(Protocol):
    """A resource that is handed over: ``DevicePluginService`` of the agent, ``ProxiedResource``.

    Attributes:
        held: number of the kubelet's calls that wait for :meth:`release`.
    """

    held: int

    def hold(self) -> None:
        """Let new calls wait while the kubelet admits a pod."""

    def release(self) -> None:
        """Continue the held calls."""

    def end_streams(self) -> None:
        """End the kubelet's streams, so that it drops the other plugin."""


def hand_over(
    resources: Sequence[ServedResource],
    *,
    let_register: Callable[[], object],
    checkpoint: Callable[[], object],
) -> Iterator[WaitStep]:
    """Hand resources over; the caller waits as each step says.

    Args:
        resources: what is handed over.
        let_register: makes the other plugin register with the kubelet, or registers with it.
        checkpoint: returns the identity of the kubelet's checkpoint. The kubelet writes it after
            each list of devices (K28). If it still handled one when it drops the other plugin, it
            would drop the plugin's next registration, too.
    """

    def end_streams() -> None:
        for each in resources:
            each.end_streams()

    for each in resources:
        each.hold()
    try:
        yield WaitStep(lambda: any(each.held for each in resources), _CALL_SECONDS)
        for act in (let_register, end_streams):
            before = checkpoint()
            act()
            yield WaitStep(lambda before=before: checkpoint() != before, _LIST_SECONDS)  # type: ignore[misc]
            yield WaitStep(lambda: False, _NEXT_LIST_SECONDS)
    finally:
        for each in resources:
            each.release()
