"""The state that outlives the agent: current pod and last call of one kubelet instance, as JSON.

It is renamed into place before a response leaves. It is not synced to disk: after a reboot there is
another kubelet instance, for which it is not valid. A file that cannot be read is ignored.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.resolver import LastCall
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId


class SavedState(NamedTuple):
    """What one agent leaves to the next.

    Attributes:
        kubelet: the instance for which the rest is valid; ``None`` before the first one is known.
        current: the current pod.
        last_call: the state kept from the last call.
        unproven: UIDs of pods that started without proof.
        outlived: those that did so under the kubelet before.
    """

    kubelet: str | None = None
    current: CurrentPod | None = None
    last_call: LastCall = LastCall()
    unproven: frozenset[str] = frozenset()
    outlived: frozenset[str] = frozenset()


class Encoder:
    """Encodes the state; the last call, with hundreds of names, is encoded only if it changes."""

    def __init__(self) -> None:
        self._last: tuple[LastCall, str] | None = None

    def encode(self, state: SavedState) -> str:
        """Return the state as one text."""
        if self._last is None or self._last[0] is not state.last_call:
            self._last = state.last_call, json.dumps(_last_call_json(state.last_call))
        pod = None if state.current is None else _current_json(state.current)
        found = f'"kubelet": {json.dumps(state.kubelet)}, "current": {json.dumps(pod)}'
        found += "".join(
            f', "{name}": {json.dumps(sorted(uids))}'
            for name, uids in (("unproven", state.unproven), ("outlived", state.outlived))
        )
        return f'{{{found}, "last_call": {self._last[1]}}}'


def _current_json(current: CurrentPod) -> dict[str, object]:
    return {
        "id": list(current.id),
        "uid": current.uid,
        "confirmed": current.confirmed,
        "assignments": [
            [each.container, each.resource, sorted(each.ids), each.evidence, each.allocated]
            for each in current.assignments
        ],
    }


def _last_call_json(last_call: LastCall) -> dict[str, object]:
    fallback, signatures, wrong = (
        last_call.fallback,
        last_call.signatures,
        last_call.at_wrong_guess,
    )
    return {
        "pod": None if last_call.pod is None else list(last_call.pod),
        "signatures": None if signatures is None else dict(signatures),
        "guessed": last_call.guessed,
        "finished": sorted(map(list, last_call.finished)),
        "fallback": None if fallback is None else _last_call_json(fallback),
        "ruled_out": sorted(map(list, last_call.ruled_out)),
        "wrongly_guessed": None if wrong is None else dict(wrong),
    }


def decode(text: str) -> SavedState:
    """Decode a text of :class:`Encoder`; return an empty state for any other text."""
    try:
        raw = json.loads(text)
        return SavedState(
            None if raw["kubelet"] is None else str(raw["kubelet"]),
            None if raw["current"] is None else _read_current(raw["current"]),
            _read_last_call(raw["last_call"]),
            _read_uids(raw.get("unproven", ())),  # an older agent did not write it
            _read_uids(raw.get("outlived", ())),
        )
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return SavedState()


def _read_uids(raw: Iterable[Any]) -> frozenset[str]:
    return frozenset(map(str, raw))


def _read_current(raw: Mapping[str, Any]) -> CurrentPod:
    assignments = tuple(
        Assignment(
            str(container),
            Resource(resource),
            frozenset(map(str, ids)),
            Evidence(evidence),
            allocated is True,
        )
        for container, resource, ids, evidence, allocated in raw["assignments"]
    )
    return CurrentPod(_read_id(raw["id"]), str(raw["uid"]), raw["confirmed"] is True, assignments)


def _read_last_call(raw: Mapping[str, Any]) -> LastCall:
    return LastCall(
        None if raw["pod"] is None else _read_id(raw["pod"]),
        _read_signatures(raw["signatures"]),
        raw["guessed"] is not False,
        frozenset(map(_read_id, raw["finished"])),
        None if raw["fallback"] is None else _read_last_call(raw["fallback"]),
        frozenset(map(_read_id, raw["ruled_out"])),
        _read_signatures(raw["wrongly_guessed"]),
    )


def _read_signatures(raw: Mapping[str, Any] | None) -> Mapping[str, int] | None:
    return None if raw is None else {name: int(n) for name, n in raw.items()}


def _read_id(raw: Any) -> PodId:
    namespace, name, uid = raw
    return PodId(str(namespace), str(name), str(uid))
