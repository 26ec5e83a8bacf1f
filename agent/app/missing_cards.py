"""Reports pods that hold cards which this node does not have any more.

Cards are discovered once in an agent's life, so they can only be missed after its start: they were
removed or exchanged, or cannot be served any more, while containers had them.
"""

import logging
from collections import defaultdict
from collections.abc import Callable

from agent.holdings.holding import NodeHoldings
from agent.observability.decision_log import named
from common.apiserver.events import EventSubject, Notice

log = logging.getLogger(__name__)

_REASON = "GPUMissing"


class MissingCards:
    """Reports once: only pods from before the agent's start can hold missing cards."""

    def __init__(self, node: str, send_event: Callable[[Notice], None]) -> None:
        self._node = node
        self._send_event = send_event
        self._reported = False

    def report_once(self, holdings: Callable[[], NodeHoldings]) -> None:
        """Log each container that holds a missing card; send Events on its pod and on the node."""
        if self._reported:
            return
        self._reported = True
        found = holdings()
        here = {card.uuid for card in found.inventory}
        holders: dict[str, set[str]] = defaultdict(set)
        for each in found.current:
            missing = sorted(each.cards.keys() - here)
            if not missing:
                continue
            cards, pod = ", ".join(missing), each.ref.pod
            log.warning("holds a missing card", extra={**named(each.ref), "cards": cards})
            text = (
                f"container {each.ref.container} holds a card that this node does not have any "
                f"more ({cards}), and cannot compute on it: delete the pod"
            )
            subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
            self._send_event(Notice(subject, _REASON, text))
            for card in missing:
                holders[card].add(str(pod))
        subject = EventSubject("Node", "", self._node, self._node)
        for card, pods in sorted(holders.items()):
            text = f"card {card} is gone or cannot be served; held by {', '.join(sorted(pods))}"
            self._send_event(Notice(subject, _REASON, text))
