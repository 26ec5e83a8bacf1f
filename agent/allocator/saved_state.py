"""What outlives the agent of its answers: the pod in service and the turn, as JSON.

It is renamed into place before an answer leaves. Nothing is synced to disk: after a reboot there is
another kubelet, to which it means nothing. A file that cannot be read says nothing.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from agent.allocator.in_service import Answered, InService
from agent.allocator.turn import Turn
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId


class Store(Protocol):
    """One text that survives the agent."""

    def load(self) -> str:
        """Return the text; empty where there is none."""
        ...

    def save(self, text: str) -> None:
        """Replace the text as a whole; where it cannot be written there is none."""
        ...


def encode(service: InService | None, turn: str) -> str:
    """Write pod and turn as JSON; *turn* is what :func:`encode_turn` wrote, for many calls."""
    pod = None if service is None else _pod_json(service)
    return f'{{"service": {json.dumps(pod)}, "turn": {turn}}}'


def encode_turn(turn: Turn) -> str:
    """Write a turn as JSON."""
    return json.dumps(_turn_json(turn))


def _pod_json(service: InService) -> dict[str, object]:
    return {
        "kubelet": service.kubelet,
        "pod": list(service.pod),
        "uid": service.uid,
        "confirmed": service.confirmed,
        "answers": [
            [each.container, each.resource, sorted(each.ids), each.evidence, each.allocated]
            for each in service.answers
        ],
    }


def _turn_json(turn: Turn) -> dict[str, object]:
    return {
        "asker": None if turn.asker is None else list(turn.asker),
        "listed": None if turn.listed is None else dict(turn.listed),
        "guessed": turn.guessed,
        "passed": sorted(map(list, turn.passed)),
        "before": None if turn.before is None else _turn_json(turn.before),
        "tried": sorted(map(list, turn.tried)),
    }


def decode(text: str) -> tuple[InService | None, Turn]:
    """Read what :func:`encode` wrote; nothing is known where it is anything else."""
    try:
        raw = json.loads(text)
        service = None if raw["service"] is None else _read_pod(raw["service"])
        return service, _read_turn(raw["turn"])
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, Turn()


def _read_pod(raw: Mapping[str, Any]) -> InService:
    answers = tuple(
        Answered(
            str(container),
            Resource(resource),
            frozenset(map(str, ids)),
            Evidence(evidence),
            allocated is True,
        )
        for container, resource, ids, evidence, allocated in raw["answers"]
    )
    return InService(
        str(raw["kubelet"]),
        _read_id(raw["pod"]),
        str(raw["uid"]),
        raw["confirmed"] is True,
        answers,
    )


def _read_turn(raw: Mapping[str, Any]) -> Turn:
    listed = raw["listed"]
    return Turn(
        None if raw["asker"] is None else _read_id(raw["asker"]),
        None if listed is None else {shape: int(count) for shape, count in listed.items()},
        raw["guessed"] is not False,
        frozenset(map(_read_id, raw["passed"])),
        None if raw["before"] is None else _read_turn(raw["before"]),
        frozenset(map(_read_id, raw["tried"])),
    )


def _read_id(raw: Any) -> PodId:
    namespace, name, uid = raw
    return PodId(str(namespace), str(name), str(uid))
