"""What a pod of another system requests, in our units: plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError
from contract.requests import walk_containers
from webhook.admission.decision import short

MOST_MIB: Final = 2**20
"""More memory than any card has."""

Field: TypeAlias = Literal["initContainers", "containers"]


@dataclass(frozen=True, slots=True)
class CardRequest:
    """What a container of another system requests: equal parts of some cards.

    Attributes:
        cards: number of different cards, 1 or more.
        cores: hundredths of *each* card, 1 to 100; ``None`` if its author named none, so that the
            other system neither reserves nor limits cores.
        memory: MiB of *each* card; ``None`` if its author named none, so that the container has all
            memory of its cards.
        percent: hundredths of each card's memory, more than 0 and at most 100, instead of
            *memory*; ``None`` if its author wrote none.
    """

    cards: int
    cores: int | None = None
    memory: int | None = None
    percent: Fraction | int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nobody else could have a part of its cards."""
        all_memory = self.memory is None and self.percent in (None, 100)
        return all_memory or self.cores == CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class ContainerReading:
    """One container with requests of another system.

    Attributes:
        field: list of the pod's spec that has it.
        index: its index in that list.
        request: what it requests; ``None`` if it cannot be read (there are errors), or if it
            requests nothing (such as a count of 0).
        resources: names of the other system's resources in its limits and requests: the
            translation removes them.
    """

    field: Field
    index: int
    request: CardRequest | None
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What the author of a pod wrote for one other system.

    Attributes:
        containers: its containers with requests, in the kubelet's order of admission.
        wishes: our wishes that replace annotations of the other system: the last part of the name
            (``use-gpu-type``) to its value.
        annotations: annotations of the other system that were read: the translation removes them
            and keeps them with the original requests.
        errors: what cannot be kept and must be denied, with field, rule and value.
        warnings: what is not kept, one line each; never about what is kept.
        schedulers: names of the other system's schedulers, which can place a pod only by its own
            resources: the translation takes them out of ``schedulerName``.
    """

    containers: tuple[ContainerReading, ...] = ()
    wishes: Mapping[str, str] | None = None
    annotations: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()


def find_variable(pod: Mapping[str, Any], name: str) -> Iterator[tuple[str, object]]:
    """Yield the container's name, shortened, and the value of each environment variable *name*."""
    for *_, container in walk_containers(pod.get("spec")):
        env = container.get("env")
        for each in env if isinstance(env, list) else ():
            if isinstance(each, dict) and each.get("name") == name:
                yield short(str(container.get("name"))), each.get("value")
