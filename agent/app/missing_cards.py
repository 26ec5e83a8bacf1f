"""Reports pods that hold cards which this node does not have any more.

Cards are discovered once in an agent's life, so they can only be missed after its start: they were
removed or exchanged, or cannot be served any more, while containers had them.
"""

import logging
from collections import defaultdict
from collections.abc import Callable

from agent.allocator.interfaces import ContainerRef
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from agent.kubernetes_api.events import EventSubject, Notice
from agent.observability.decision_log import named
from agent.usage.holdings import count_missing

log = logging.getLogger(__name__)

_REASON = "GPUMissing"


def report_missing_cards(
    snapshot: AllocationSnapshot,
    table: DeviceTable,
    node: str,
    send_event: Callable[[Notice], None],
) -> None:
    """Log each container that holds a missing card; send Events on its pod and on the node."""
    holders: dict[str, set[str]] = defaultdict(set)
    for pod in snapshot.pods:
        for name, slots in sorted(pod.held.items()):
            missing = sorted(count_missing(slots, table))
            if not missing or (
                pod.info is not None and pod.info.running and pod.is_init(name)
            ):  # that container has ended
                continue
            cards = ", ".join(missing)
            ref = ContainerRef(pod.id, name)
            log.warning("holds a missing card", extra={**named(ref), "cards": cards})
            text = (
                f"container {name} holds a card that this node does not have any more ({cards}), "
                "and cannot compute on it: delete the pod"
            )
            subject = EventSubject("Pod", pod.id.namespace, pod.id.name, pod.id.uid)
            send_event(Notice(subject, _REASON, text))
            for card in missing:
                holders[card].add(f"{pod.id.namespace}/{pod.id.name}")
    for card, pods in sorted(holders.items()):
        text = f"card {card} is gone or cannot be served; held by {', '.join(sorted(pods))}"
        send_event(Notice(EventSubject("Node", "", node, node), _REASON, text))
