"""Cards that are kept for pods: the node, the cards, until when, and the victims. Pure.

They are kept for three reasons: other pods are evicted for the pod, its group is being scheduled,
or an admission check has promised them to its workload.

With victims, a nomination is a condition in the status of its pod, beside ``nominatedNodeName``,
which kube-scheduler clears when it finds no victims itself. So every replica knows it by its watch,
the next leader goes on with it, and no author of a pod can forge it: a new pod has no status.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from contract.pod_annotations import write_choice
from placement.cluster.holdings import held_by_pod, known_cards
from placement.cluster.nodes import Node
from placement.held import HeldByPosition
from placement.pods import PodInfo

CONDITION = "gpu-turnstile.io/CardsNominated"
"""Type of the condition."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Nomination:
    """Room that is made for a pod, and kept for it.

    Attributes:
        node: name of the node.
        cards: indices of the cards that are kept, by container.
        victims: UIDs of the pods that are evicted.
        until: when it ends at the latest, Unix seconds.
        all_leave: whether all victims are needed, also if the cards suffice without some: they free
            other resources too.
    """

    node: str
    cards: Mapping[str, tuple[int, ...]]
    victims: tuple[str, ...]
    until: int
    all_leave: bool = False

    def as_condition(self, now: float) -> dict[str, str]:
        """Return the condition in the pod's status."""
        message: dict[str, Any] = {
            "node": self.node,
            "cards": {name: write_choice(cards) for name, cards in self.cards.items()},
            "victims": self.victims,
            "until": timestamp(self.until),
        }
        if self.all_leave:
            message["all"] = True
        return {
            "type": CONDITION,
            "status": "True",
            "reason": "Preemption",
            "message": json.dumps(message, separators=(",", ":")),
            "lastTransitionTime": timestamp(now),
        }


class CardPromise(NamedTuple):
    """Cards of one node that are kept for a pod.

    Attributes:
        pod: the pod; of a workload, whose pods may not exist yet, any pod of one pod set.
        nomination: the node and the cards.
    """

    pod: PodInfo
    nomination: Nomination


def timestamp(seconds: float) -> str:
    """Return a time as the API has it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_nomination(obj: Json) -> Nomination | None:
    """Read the condition of a pod object; ``None`` if it has none, or one that is not ours."""
    for each in (obj.get("status") or {}).get("conditions") or ():
        if each.get("type") == CONDITION and each.get("status") == "True":
            try:
                found = json.loads(each["message"])
                return Nomination(
                    str(found["node"]),
                    {
                        str(name): tuple(map(int, cards.split(",")))
                        for name, cards in found["cards"].items()
                    },
                    tuple(map(str, found["victims"])),
                    int(datetime.fromisoformat(found["until"]).timestamp()),
                    bool(found.get("all")),
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                return None
    return None


def kept_amounts(pod: PodInfo, nomination: Nomination, node: Node) -> HeldByPosition:
    """Return what is kept of a node's cards for a nominated pod; nothing if they are unknown."""
    cards = known_cards(replace(pod, chosen=nomination.cards, annotated={}), node)
    return {} if cards is None else held_by_pod(pod.demand, cards)
