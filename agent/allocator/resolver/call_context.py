"""What could be seen when a call came in."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from agent.allocator.model.podresources import Snapshot
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class CallContext:
    """What could be seen when a call came in.

    Attributes:
        snapshot: the kubelet's record; ``None`` when it could not be had.
        offered: held places that the kubelet offers for anybody in this call.
        named: places that it has chosen itself.
    """

    snapshot: Snapshot | None
    offered: AbstractSet[tuple[Resource, str]] = frozenset()
    named: AbstractSet[tuple[Resource, str]] = frozenset()
