"""Pods of a soak: each is drawn by its number, and ends by itself or is deleted."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from contract.names import Names
from tests.e2e.cluster import Json
from tests.e2e.manifests import BLOCKS, Maker

_SHORTEST, _MEAN, _LONGEST = 2.0, 13.0, 75.0
"""Seconds for which pods live."""
NETWORK = {"hostNetwork": True}
"""Network namespaces take most of the time of a small node, and are not what is tested."""


class Kind(StrEnum):
    SHARES = "shares"
    WHOLE = "whole cards"
    DIVIDED = "a share of two cards"
    INIT = "an init container"
    SIDECAR = "a sidecar"
    AGAIN = "a name that comes back"
    DELETED = "deleted by force"
    REFUSED = "refused by the agent"
    DENIED = "denied by the webhook"


_WEIGHTS = {
    Kind.SHARES: 30,
    Kind.WHOLE: 8,
    Kind.DIVIDED: 12,
    Kind.INIT: 12,
    Kind.SIDECAR: 10,
    Kind.AGAIN: 8,
    Kind.DELETED: 10,
    Kind.REFUSED: 6,
    Kind.DENIED: 4,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One pod.

    Attributes:
        refused: the text with which it must be refused; empty if it must run.
        deleted_after: seconds until it is deleted by force; ``None`` if it ends by itself.
        again: the pod that then gets its name.
    """

    kind: Kind
    manifest: Json
    refused: str = ""
    deleted_after: float | None = None
    again: Json | None = None


class Drawer:
    """Draws pods for one node."""

    def __init__(self, make: Maker, names: Names, *, node: str, seed: int) -> None:
        self._make = make
        self._names = names
        self._node = node
        self._seed = seed

    def draw(self, name: str, number: int) -> Drawn:
        random = Random(f"{self._seed}-{number}")
        kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        draws: dict[Kind, Callable[[str, Random], Drawn]] = {
            Kind.WHOLE: self._whole,
            Kind.DIVIDED: self._divided,
            Kind.AGAIN: self._again,
            Kind.DELETED: self._deleted,
            Kind.REFUSED: self._refused,
            Kind.DENIED: self._denied,
        }
        return draws[kind](name, random) if kind in draws else self._ordinary(kind, name, random)

    def _ordinary(self, kind: Kind, name: str, random: Random) -> Drawn:
        containers = self._shares(random, random.choice((1, 1, 2, 3)))
        before = []
        if kind is Kind.INIT:
            before.append(self._make.container("init", random.choice((5, 10)), 4, run="true"))
        if kind is Kind.SIDECAR:
            before.append(self._make.container("sidecar", 5, 4, restartPolicy="Always"))
        return Drawn(kind, self._pod(name, containers, initContainers=before))

    def _shares(self, random: Random, count: int) -> list[Json]:
        run = _live(random)
        return [
            self._make.container(
                f"c{each}", random.choice((5, 10, 20)), random.choice((4, 8)), run=run
            )
            for each in range(count)
        ]

    def _whole(self, name: str, random: Random) -> Drawn:
        cores = random.choice((100, 100, 200))
        return Drawn(
            Kind.WHOLE,
            self._pod(name, [self._make.container("main", cores, run=_live(random, most=20))]),
        )

    def _divided(self, name: str, random: Random) -> Drawn:
        share = self._make.container(
            "c0", random.choice((10, 30)), random.choice((4, 8)), run=_live(random)
        )
        pod = self._pod(name, [share, *self._shares(random, random.choice((1, 2)))[1:]])
        pod["metadata"]["annotations"] = {self._names.gpu_cards_of("c0"): "2"}
        return Drawn(Kind.DIVIDED, pod)

    def _again(self, name: str, random: Random) -> Drawn:
        first = self._make.container("c0", 5, 4)
        second = self._make.container("c0", 10, 8, run=_live(random))
        return Drawn(
            Kind.AGAIN,
            self._pod(name, [first]),
            deleted_after=random.uniform(1, 6),
            again=self._pod(name, [second]),
        )

    def _deleted(self, name: str, random: Random) -> Drawn:
        """Draw a pod that is deleted before, while or after the kubelet admits it."""
        pod = self._pod(name, self._shares(random, random.choice((1, 2))))
        return Drawn(Kind.DELETED, pod, deleted_after=random.uniform(0, 4))

    def _refused(self, name: str, random: Random) -> Drawn:
        """Draw a pod past the scheduler, which would wait for a card that fits."""
        pod = self._pod(name, self._shares(random, 1))
        del pod["spec"]["affinity"]
        pod["spec"]["nodeName"] = self._node
        if random.random() < 1 / 2:
            pod["metadata"]["annotations"] = {self._names.use_gpu_uuid: "GPU-of-another-node"}
        else:
            pod["spec"]["containers"].append(self._make.container("large", 10, BLOCKS + 1))
        return Drawn(Kind.REFUSED, pod, refused="gpu-turnstile: no card fits ")

    def _denied(self, name: str, random: Random) -> Drawn:
        pod = self._pod(name, [self._make.container("main", random.choice((101, 150, 250)))])
        return Drawn(Kind.DENIED, pod, refused="more than one card must be a multiple of 100")

    def _pod(self, name: str, containers: list[Json], **spec: object) -> Json:
        return self._make.pod(name, containers, restartPolicy="Never", **NETWORK, **spec)


def _live(random: Random, *, most: float = _LONGEST) -> str:
    seconds = min(most, _SHORTEST + random.expovariate(1 / (_MEAN - _SHORTEST)))
    return f"sleep {seconds:.0f}"
