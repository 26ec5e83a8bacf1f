"""The allocation annotation (``gpu-allocation``), which an agent writes to a pod.

JSON: container name -> ``{"cards": [uuid], "cores": n, "memoryBlocks": n, "evidence": e}``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from sys import intern

from contract.errors import InvalidRecord
from contract.text import is_text, is_whole, read_json


class Evidence(StrEnum):
    """How surely the target of a call is known, strongest first."""

    CLAIM = "claim"
    """A ResourceClaim names the container (Dynamic Resource Allocation)."""
    TICKET = "ticket"
    """The ``GetPreferredAllocation`` before reserved these IDs for one container."""
    RECORD = "record"
    """The kubelet's checkpoint or ``List`` shows that the container holds exactly these IDs."""
    WITNESS = "witness"
    """Only one container could be the target of the call, and its pod was identified for sure."""
    ORDER = "order"
    """A guess: several containers matched, or the pod was not identified for sure."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of one container.

    Attributes:
        cards: card UUIDs, in the order in which the container sees them.
        cores: hundredths of a card, over all cards.
        memory_blocks: memory blocks, over all cards; 0 if none were requested.
        evidence: how surely this container is known to be the target of the call.
    """

    cards: tuple[str, ...]
    cores: int
    memory_blocks: int
    evidence: Evidence


def encode_allocations(allocations: Mapping[str, Allocation]) -> str:
    """Write the annotation as compact JSON; equal allocations give equal text."""
    return json.dumps(
        {
            name: {
                "cards": list(each.cards),
                "cores": each.cores,
                "memoryBlocks": each.memory_blocks,
                "evidence": each.evidence.value,
            }
            for name, each in sorted(allocations.items())
        },
        separators=(",", ":"),
    )


def decode_allocations(text: str) -> dict[str, Allocation]:
    """Read the annotation, strictly.

    Raises:
        InvalidRecord: *text* is not what :func:`encode_allocations` writes.
    """
    decoded = read_json(text, "gpu-allocation")
    if not isinstance(decoded, dict):
        raise InvalidRecord("gpu-allocation: must be a JSON object")
    return {name: _decode_one(name, value) for name, value in decoded.items()}


def _decode_one(name: str, value: object) -> Allocation:
    if not isinstance(value, dict) or set(value) != {"cards", "cores", "memoryBlocks", "evidence"}:
        raise InvalidRecord(
            f"gpu-allocation[{name}]: must have exactly the fields cards, cores, memoryBlocks, "
            "evidence"
        )
    cards = value["cards"]
    if not isinstance(cards, list) or not all(map(is_text, cards)):
        raise InvalidRecord(f"gpu-allocation[{name}].cards: must be a list of card UUIDs")
    for field in ("cores", "memoryBlocks"):
        if not is_whole(value[field]):
            raise InvalidRecord(f"gpu-allocation[{name}].{field}: must be a whole number")
    try:
        evidence = Evidence(value["evidence"])
    except ValueError as error:
        raise InvalidRecord(
            f"gpu-allocation[{name}].evidence: must be one of "
            + ", ".join(each.value for each in Evidence)
        ) from error
    return Allocation(tuple(map(intern, cards)), value["cores"], value["memoryBlocks"], evidence)
