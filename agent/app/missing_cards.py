"""Reports pods that hold cards which this node does not have any more.

Cards are discovered once in an agent's life, so they can only be missed after its start: they were
removed or exchanged, or cannot be served any more, while containers had them.
"""

import logging
from collections import defaultdict
from collections.abc import Callable

from agent.holdings.holding import NodeHoldings
from agent.kubernetes_api.events import EventSubject, Notice
from agent.observability.decision_log import named

log = logging.getLogger(__name__)

_REASON = "GPUMissing"


def report_missing_cards(
    holdings: NodeHoldings,
    node: str,
    send_event: Callable[[Notice], None],
) -> None:
    """Log each container that holds a missing card; send Events on its pod and on the node."""
    holders: dict[str, set[str]] = defaultdict(set)
    here = {card.uuid for card in holdings.inventory}
    for each in holdings.current:
        missing = sorted(each.cards.keys() - here)
        if not missing:
            continue
        cards, pod = ", ".join(missing), each.ref.pod
        log.warning("holds a missing card", extra={**named(each.ref), "cards": cards})
        text = (
            f"container {each.ref.container} holds a card that this node does not have any more "
            f"({cards}), and cannot compute on it: delete the pod"
        )
        send_event(Notice(EventSubject("Pod", pod.namespace, pod.name, pod.uid), _REASON, text))
        for card in missing:
            holders[card].add(str(pod))
    for card, pods in sorted(holders.items()):
        text = f"card {card} is gone or cannot be served; held by {', '.join(sorted(pods))}"
        send_event(Notice(EventSubject("Node", "", node, node), _REASON, text))
