"""The question of a case, and our code's result. Results are short texts, as expectations are.

Containers are written ``cores/blocks``: ``50/8``, ``200/`` (no memory), ``/8``, ``-`` (no GPU).
``init:`` or ``side:`` before makes an init container or a sidecar, ``!`` behind a privileged one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any, TypeAlias

from contract.demand import CORES_PER_CARD
from contract.inventory import Amounts, Card, PublishedInventory, encode_inventory
from contract.names import Names
from contract.resource import Resource
from contract.stamps import OrderStamp
from contract.wishes import read_wishes
from placement.capacity import need_of
from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import ContainerCards, NodeSnapshot, Provenance, held_by_pod
from placement.cluster.nodes import Node, parse_node
from placement.errors import NoPlacement
from placement.pods import PodInfo, read_gpu_pod, read_pod
from placement.scoring import Policy
from placement.search import ContainerStep, make_plan
from placement.topology import Links
from scheduler.decisions import Decisions
from scheduler.state import State
from tests.peers.machines import Machine, plain
from webhook.admission.defaults import adjust_memory
from webhook.admission.options import AdmissionOptions
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import decode_review

NAMES = Names()
FITS, REFUSED = "fits", "refused"
ALLOWED, DENIED = "allowed", "denied"
COUNTS = "counts "

_CONTAINER = re.compile(r"(?:(init|side):)?(?:-|(\d*)/([\w.]*))(!?)\Z")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class OurResult:
    value: str
    why: tuple[str, ...] = ()


def pod_object(
    containers: Sequence[str], annotations: Mapping[str, str] | None = None, **spec: str
) -> dict[str, Any]:
    """Write a pod as JSON; container ``n`` of the listed is named ``cn``."""
    lists: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for number, text in enumerate(containers):
        found = _CONTAINER.match(text)
        if not found:
            raise ValueError(f"not a container: {text}")
        kind, cores, blocks, privileged = found.groups()
        counts = {NAMES.core: cores, NAMES.memory: blocks}
        container: dict[str, Any] = {
            "name": f"c{number}",
            "resources": {"limits": {name: count for name, count in counts.items() if count}},
        }
        if kind == "side":
            container["restartPolicy"] = "Always"
        if privileged:
            container["securityContext"] = {"privileged": True}
        lists["initContainers" if kind else "containers"].append(container)
    notes = {f"{NAMES.domain}/{key}": text for key, text in (annotations or {}).items()}
    return {
        "metadata": {"name": "pod", "namespace": "team", "uid": "u1", "annotations": notes},
        "spec": {**{field: listed for field, listed in lists.items() if listed}, **spec},
    }


def admitted_pod(
    containers: Sequence[str], annotations: Mapping[str, str], largest: int
) -> PodInfo | None:
    """Read a pod as the webhook leaves it, where the largest card has so many blocks."""
    written = pod_object(containers, annotations)
    return read_gpu_pod(
        adjust_memory(written, names=NAMES, options=AdmissionOptions(largest)).pod, NAMES
    )


@dataclass(frozen=True)
class Box:
    """A node: its machine, cores and blocks that are free of each card, and all blocks of each."""

    machine: Machine
    free: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    unhealthy: frozenset[int] = frozenset()

    def object(self) -> dict[str, Any]:
        """Write the node as JSON, as the agent annotates it."""
        cards = tuple(
            Card(
                self.uuids[index] if self.uuids else f"GPU-{index}",
                index,
                self.models[index] if self.models else "GPU",
                self.blocks[index] * _BLOCK,
                self.machine.numa(index),
                "test" if index in self.unhealthy else "",
            )
            for index in range(self.machine.count)
        )
        free = tuple(Amounts(*each) for each in self.free[: len(cards)])
        text = encode_inventory(PublishedInventory(_BLOCK, cards, self.machine.links(), free))
        return {"metadata": {"name": "node", "annotations": {NAMES.gpu_cards: text}}}


def whole(machine: Machine, *, busy: Sequence[int] = ()) -> Box:
    """Return a node of which some cards, of 64 blocks, are taken whole."""
    blocks = 64
    free = tuple(
        (0, 0) if card in busy else (CORES_PER_CARD, blocks) for card in range(machine.count)
    )
    return Box(machine, free, (blocks,) * machine.count)


def used(*cards: tuple[int, int, int], machine: Machine | None = None, **more: Any) -> Box:
    """Return a node by what is used: cores, blocks, and all blocks, of each card."""
    free = tuple((CORES_PER_CARD - cores, blocks - taken) for cores, taken, blocks in cards)
    return Box(machine or plain(len(cards)), free, tuple(card[2] for card in cards), **more)


@dataclass(frozen=True)
class Placing:
    """On which cards are the containers of a pod placed (``0,3 | 1``), or is it ``refused``?"""

    box: Box
    pod: tuple[str, ...]
    wishes: Mapping[str, str] = field(default_factory=dict)
    policy: str = "binpack"
    must: tuple[int, ...] = ()
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def evaluate(self, wants: str) -> OurResult:
        """Place the pod as the agent does; the scheduler's view has to agree."""
        node = parse_node(self.box.object(), NAMES)
        pod = admitted_pod(self.pod, self.wishes, max(self.box.blocks, default=0))
        if pod is None:
            return OurResult(FITS)
        try:
            found = self._plan(pod, node)
        except NoPlacement as error:
            found, why = {}, str(error)
        else:
            why = ""
        if not self.must:
            fit = check(pod.pod_class, NodeSnapshot(node, self.box.free))
            if bool(found) == isinstance(fit, Unschedulable):
                return OurResult("the extender decides otherwise", (str(fit),))
        if not found:
            return OurResult(REFUSED, (why,))
        if wants in (FITS, REFUSED):
            return OurResult(FITS)
        if wants.startswith(COUNTS):
            everything = [card for cards in found.values() for card in cards]
            counts = sorted((everything.count(card) for card in {*everything}), reverse=True)
            return OurResult(COUNTS + ",".join(map(str, counts)))
        return OurResult(" | ".join(",".join(map(str, cards)) for cards in found.values()))

    def _plan(self, pod: PodInfo, node: Node) -> dict[str, tuple[int, ...]]:
        policy = Policy(pod.wishes.policy or self.policy)
        steps = [
            ContainerStep(
                each,
                need_of(each.demand),
                frozenset(kind for kind in Resource if kind.count_in(each.demand)),
                must=self.must,
                chosen=tuple(map(str, self.chosen.get(each.name, ()))),
            )
            for each in pod.demand.containers
        ]
        if not node.cards:
            raise NoPlacement("no cards")
        cards, free = node.card_set_for(pod.wishes), [Amounts(*each) for each in self.box.free]
        plan = make_plan(steps, cards, free, policy=policy) or ()
        names = [each.name for each in pod.demand.containers[: len(plan)]]
        return {name: each.cards for name, each in zip(names, plan, strict=True)}

    @property
    def goes_by(self) -> str:
        return self.wishes.get("gpu-policy", self.policy)

    def rate(self, text: str) -> tuple[float, ...]:
        """Rate whole cards by their links, as NVIDIA does, and shares by use, as HAMi does."""
        if not text[:1].isdigit():
            return ()
        sets = [tuple(map(int, part.split(","))) for part in text.split("|")]
        taken = {card for cards in sets for card in cards}
        if all(part.partition("/")[0].endswith("00") for part in self.pod if part != "-"):
            rest = [
                card
                for card, (cores, _) in enumerate(self.box.free)
                if cores == CORES_PER_CARD and card not in taken
            ]
            score = self.box.machine.score
            own = sum(map(score, sets))
            worst = min((score(pair) for each in sets for pair in combinations(each, 2)), default=0)
            return own, worst, own + score(rest)
        cards = list(zip(self.box.free, self.box.blocks, strict=True))
        use = sum(
            2 - cards[card][0][0] / CORES_PER_CARD - cards[card][0][1] / cards[card][1]
            for each in sets
            for card in each
        )
        return (use, -len(taken)) if self.goes_by == "binpack" else (-use, len(taken))


@dataclass(frozen=True)
class Admission:
    """Is a pod admitted?"""

    pod: tuple[str, ...]
    node: str = ""

    def evaluate(self, _wants: str) -> OurResult:
        spec = {"nodeName": self.node} if self.node else {}
        request = {
            "uid": "1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "object": pod_object(self.pod, None, **spec),
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        review = decode_review(json.dumps(body).encode())
        verdict = mutate_pod(review, names=NAMES, stamp=lambda: OrderStamp(1, "a", 0))
        return OurResult(
            ALLOWED if verdict.allowed else DENIED, (*verdict.rules, *verdict.warnings)
        )


@dataclass(frozen=True)
class Wish:
    """May a card be used, by the wishes of a pod's author?"""

    wishes: Mapping[str, str]
    model: str = "GPU"
    uuid: str = "GPU-0"

    def evaluate(self, _wants: str) -> OurResult:
        annotations = {f"{NAMES.domain}/{key}": text for key, text in self.wishes.items()}
        wishes, errors = read_wishes(annotations, NAMES)
        if errors:
            return OurResult(REFUSED, tuple(error.rule for error in errors))
        return OurResult("no" if wishes.excludes(model=self.model, uuid=self.uuid) else "yes")


@dataclass(frozen=True)
class Footprint:
    """How much does a pod hold, cores and blocks: in all, or on each card of *cards*?"""

    pod: tuple[str, ...]
    cards: tuple[tuple[int, ...], ...] = ()

    def evaluate(self, _wants: str) -> OurResult:
        """Return ``110/5000``, or ``0:50/1000 1:100/2000`` by card."""
        pod = read_gpu_pod(pod_object(self.pod), NAMES)
        if pod is None:
            return OurResult("0/0")
        if not self.cards:
            return OurResult("{}/{}".format(*pod.pod_class.peak))
        names = [each.name for each in pod.demand.containers]
        cards = [ContainerCards(each, Provenance.RECORDED) for each in self.cards]
        taken = held_by_pod(pod.demand, dict(zip(names, cards, strict=True)))
        return OurResult(
            " ".join(f"{card}:{cores}/{blocks}" for card, (cores, blocks) in taken.items())
        )


@dataclass(frozen=True)
class Counted:
    """Does a pod in a phase hold cards?"""

    phase: str

    def evaluate(self, _wants: str) -> OurResult:
        pod = read_pod({"metadata": {}, "status": {"phase": self.phase}}, NAMES)
        return OurResult("no" if pod.terminal else "yes")


@dataclass(frozen=True)
class Choice:
    """Which of several nodes does a pod prefer? All nodes of the highest score, or ``refused``."""

    boxes: tuple[Box, ...]
    pod: tuple[str, ...]
    wishes: Mapping[str, str] = field(default_factory=dict)
    inventories: Mapping[int, str] = field(default_factory=dict)

    def evaluate(self, wants: str) -> OurResult:
        largest = max((blocks for box in self.boxes for blocks in box.blocks), default=0)
        pod = admitted_pod(self.pod, self.wishes, largest)
        if pod is None:
            return OurResult(",".join(map(str, range(len(self.boxes)))))
        decisions = Decisions(State(NAMES))
        scores, why = {}, []
        for number, box in enumerate(self.boxes):
            obj = box.object()
            if number in self.inventories:
                obj["metadata"]["annotations"] = {NAMES.gpu_cards: self.inventories[number]}
                if not self.inventories[number]:
                    del obj["metadata"]["annotations"]
            node = parse_node(obj, NAMES)
            view = NodeSnapshot(node, box.free[: len(node.cards)])
            verdict = decisions.decide_node(pod.pod_class, view)
            if isinstance(verdict, Unschedulable):
                why.append(verdict.reason)
            else:
                scores[number] = verdict
        best = [str(each) for each, score in scores.items() if score == max(scores.values())]
        if wants == FITS and best:
            return OurResult(FITS)
        return OurResult(",".join(best) or REFUSED, tuple(why))


Question: TypeAlias = Placing | Admission | Wish | Footprint | Counted | Choice


@lru_cache(maxsize=64)
def _links(machine: Machine) -> Links:
    return parse_node(whole(machine).object(), NAMES).card_set.links


@lru_cache(maxsize=65536)
def choose_whole(machine: Machine, free: Sequence[int], size: int) -> tuple[int, ...]:
    return _links(machine).best(size, free, free=frozenset(free))
