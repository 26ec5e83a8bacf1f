"""What one agent tells its successor: of its ledger one message a container. Pure.

The kubelet's record tells a successor nearly everything. What it does not tell (ordinary init
containers, K4, and by which evidence a container was known) would otherwise be lost.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource

_SEPARATOR = "::"


@dataclass(frozen=True, slots=True)
class Held:
    """One container of the ledger.

    Attributes:
        ref: which container.
        kind: whether it is an init container, a sidecar or a main one.
        holdings: what it holds, by resource.
    """

    ref: ContainerRef
    kind: ContainerKind
    holdings: Mapping[Resource, Holding]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an agent knows and the kubelet's record does not tell.

    Attributes:
        held: the ledger.
        rejected: pods that this kubelet has rejected, as far as can be told.
        admission_over: pods whose admission by this kubelet is over, answered or not.
        refused: pods whose calls this agent has refused.
        there_at_start: pods that were there when it started: what their init containers had got by
            then it does not know (K4), and of all others it does. ``None`` where that is not told.
        kubelet: the kubelet that this is about, by its socket's file.
    """

    held: Sequence[Held] = ()
    rejected: frozenset[PodId] = frozenset()
    admission_over: frozenset[PodId] = frozenset()
    refused: frozenset[PodId] = frozenset()
    there_at_start: frozenset[PodId] | None = None
    kubelet: tuple[int, ...] | None = None

    def for_another_kubelet(self) -> "Knowledge":
        """Leave out what only this kubelet did: another tries all pods anew."""
        return Knowledge(
            [
                replace(
                    each,
                    holdings={
                        resource: replace(holding, answered=False)
                        for resource, holding in each.holdings.items()
                    },
                )
                for each in self.held
            ]
        )


def encode_rest(known: Knowledge) -> dict[str, object]:
    """Write all but the ledger as a JSON object."""
    return {
        "rejected": [list(each) for each in sorted(known.rejected)],
        "admission_over": [list(each) for each in sorted(known.admission_over)],
        "refused": [list(each) for each in sorted(known.refused)],
        "there_at_start": None
        if known.there_at_start is None
        else [list(each) for each in sorted(known.there_at_start)],
        "kubelet": known.kubelet and list(known.kubelet),
    }


def decode_rest(message: Mapping[str, object], held: Sequence[Held]) -> Knowledge:
    """Read all but the ledger, which is *held*.

    Raises:
        ValueError: it is not of this form.
    """
    kubelet = message.get("kubelet")
    if kubelet is not None and not _is_list(kubelet, int):
        raise ValueError("kubelet: not of the form that is known")
    there_at_start = (
        _pods(message, "there_at_start") if message.get("there_at_start") is not None else None
    )
    return Knowledge(
        held,
        _pods(message, "rejected"),
        _pods(message, "admission_over"),
        _pods(message, "refused"),
        there_at_start,
        tuple(kubelet) if kubelet is not None else None,
    )


def _pods(message: Mapping[str, object], key: str) -> frozenset[PodId]:
    pods = message.get(key, [])
    if not isinstance(pods, list) or not all(_is_list(each, str, 3) for each in pods):
        raise ValueError(f"{key}: not of the form that is known")
    return frozenset(PodId(*each) for each in pods)


def _is_list(value: object, kind: type, length: int = 3) -> TypeGuard[list[Any]]:
    return (
        isinstance(value, list)
        and len(value) == length
        and all(isinstance(each, kind) for each in value)
    )


def encode(held: Held) -> dict[str, object]:
    """Write one container as a JSON object."""
    return {
        "pod": list(held.ref.pod),
        "container": held.ref.container,
        "kind": str(held.kind),
        "holdings": {
            str(resource): {
                "ids": _compress(holding.ids),
                "evidence": str(holding.evidence),
                "proven": holding.proven,
                "answered": holding.answered,
            }
            for resource, holding in held.holdings.items()
        },
    }


def decode(message: Mapping[str, object]) -> Held:
    """Read one container.

    Raises:
        ValueError: it is not of this form.
    """
    try:
        pod, container, kind = message["pod"], message["container"], message["kind"]
        holdings = message["holdings"]
        if not isinstance(holdings, Mapping) or not _is_list(pod, str):
            raise ValueError("not of the form that is known")
        return Held(
            ContainerRef(PodId(*pod), str(container)),
            ContainerKind(str(kind)),
            {
                Resource(resource): Holding(
                    _expand(held["ids"]),
                    Evidence(held["evidence"]),
                    proven=held["proven"] is True,
                    answered=held.get("answered") is True,
                )
                for resource, held in holdings.items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not of the form that is known: {error!r}") from error


def inherit(ledger: Ledger, held: Held) -> bool:
    """Assign what *ledger* lacks and nobody else holds; return whether that is anything.

    What another pod of the same name holds by ``List``, which tells no UID, counts as lacking.
    """
    assigned = False
    for resource, holding in sorted(held.holdings.items()):
        shown = _of_a_namesake(ledger, held.ref, resource, holding.ids)
        if shown is not None and holding.evidence is not Evidence.ORDER:
            kind = ledger.kind(shown)
            ledger.release(shown, resource)
            ledger.assign(held.ref, kind, resource, replace(holding, proven=True))
            assigned = True
        if ledger.holding(held.ref, resource) is not None:
            continue
        owners = {ledger.owners.get((resource, each)) for each in holding.ids}
        # What an init container has handed on, a later container of its pod holds as well (K7).
        shared = held.kind is ContainerKind.INIT or not any(
            ledger.taken(resource, each, but_reusable_by=held.ref.pod) for each in holding.ids
        )
        if owners <= {None, held.ref.pod} and shared:
            ledger.assign(held.ref, held.kind, resource, holding)
            assigned = True
    return assigned


def _of_a_namesake(
    ledger: Ledger, ref: ContainerRef, resource: Resource, ids: frozenset[str]
) -> ContainerRef | None:
    """Return the container of the same name, in another pod of the same name, that holds *ids*."""
    for other in ledger.find(resource, ids) if ref.pod.uid else ():
        held = ledger.holding(other, resource)
        if (
            other.pod != ref.pod
            and (other.pod.key, other.container) == (ref.pod.key, ref.container)
            and held is not None
            and held.evidence is Evidence.RECORD
        ):
            return other
    return None


def _compress(ids: Iterable[str]) -> dict[str, list[list[int]]]:
    """Write places as runs by card: ``{"GPU-1": [[0, 49]]}`` for its first fifty."""
    places: dict[str, list[int]] = defaultdict(list)
    for each in ids:
        card, _, place = each.rpartition(_SEPARATOR)
        places[card].append(int(place))
    runs: dict[str, list[list[int]]] = {}
    for card, numbers in places.items():
        runs[card] = []
        for number in sorted(numbers):
            if runs[card] and runs[card][-1][1] == number - 1:
                runs[card][-1][1] = number
            else:
                runs[card].append([number, number])
    return runs


def _expand(runs: Mapping[str, list[list[int]]]) -> frozenset[str]:
    return frozenset(
        f"{card}{_SEPARATOR}{place}"
        for card, spans in runs.items()
        for first, last in spans
        for place in range(first, last + 1)
    )
