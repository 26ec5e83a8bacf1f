"""The verdict on a pod that is being created: validated, stamped, cleared of copied stamps."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from contract.demand import Demand, PodDemand, asks_for_gpus, read_pod_demand
from contract.errors import Fault, FieldError, InvalidStamp, quote
from contract.names import Names
from contract.stamps import OrderStamp, decode_time
from webhook.patches import patch_annotations
from webhook.reviews import Review
from webhook.verdicts import Verdict, bounded, cut

_SECOND = 10**9
_REINVOKED_WITHIN = 60 * _SECOND
"""Longer than the API server lets any request take with all its webhooks."""

_LONGEST_NAME = 40


def mutate_pod(review: Review, *, names: Names, stamp: Callable[[], OrderStamp]) -> Verdict:
    """Answer a review sent to ``/mutate/pods``.

    Only the creation of a core/v1 pod is decided. Anything else means that the
    webhook configuration sends too much: allowed, with a warning that says so.
    """
    target = review.target
    what = (target.group, target.version, target.resource or target.kind, target.subresource)
    if (
        review.operation != "CREATE"
        or what not in {("", "v1", "pods", ""), ("", "v1", "Pod", "")}
        or review.object is None
    ):
        warning = (
            "gpu-turnstile decides only CREATE of v1/pods here: "
            f"{cut(review.operation, 16)} of {target} passed unread"
        )
        return Verdict(warnings=bounded([warning]))
    return decide_pod(review.object, names=names, stamp=stamp)


def decide_pod(pod: Mapping[str, Any], *, names: Names, stamp: Callable[[], OrderStamp]) -> Verdict:
    """Decide about a new pod.

    Args:
        pod: the pod as decoded JSON, possibly hostile.
        names: resources and annotations.
        stamp: gives the pod its place in line; called once, for an allowed GPU pod.

    Returns:
        Nothing at all for a pod that asks for no GPU, whatever it is annotated with.
        Otherwise every error, or the patch with the stamps.
    """
    spec = pod.get("spec")
    if not asks_for_gpus(spec, names):
        return Verdict()
    metadata = pod.get("metadata")
    demand, wrong = read_pod_demand(spec, names)
    errors = (*_check_metadata(metadata), *wrong)
    if errors:
        return Verdict(errors=errors)
    given = (metadata or {}).get("annotations") or {}
    place = stamp()
    changes = _changes(given, names, place)
    return Verdict(
        patch=patch_annotations(metadata, changes),
        warnings=bounded((*_uneven(demand), *_supplied(given, changes, names, place))),
    )


def _check_metadata(metadata: object) -> Iterator[FieldError]:
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for path, value in (("metadata", metadata), ("metadata.annotations", annotations)):
        if value is not None and not isinstance(value, Mapping):
            yield FieldError(
                path, Fault.INVALID, "must be a mapping", "not-a-mapping", quote(value)
            )


def _changes(given: Mapping[str, Any], names: Names, place: OrderStamp) -> dict[str, str | None]:
    """Say what each of our annotations becomes: a value, or ``None`` where only others write it."""
    changes: dict[str, str | None] = {
        names.predicate_time: str(place.time_ns),
        names.admission_order: place.encode(),
        names.gpu_assigned: "false",
    }
    foreign = (names.bind_order, names.predicate_node, names.gpu_allocation)
    for key in given:
        if key in foreign or key.startswith(names.predicate_gpu_idx_prefix):
            changes[key] = None
    return changes


def _supplied(
    given: Mapping[str, Any],
    changes: Mapping[str, str | None],
    names: Names,
    place: OrderStamp,
) -> Iterator[str]:
    """Warn of annotations the user supplied; those of our own earlier call are not the user's."""
    ours = _is_reinvocation(given, names, place)
    for key in sorted(changes.keys() & given.keys()):
        if changes[key] is None:
            yield f"metadata.annotations[{key}]: dropped, gpu-turnstile writes it"
        elif not ours:
            yield f"metadata.annotations[{key}]: overwritten, gpu-turnstile writes it"


def _is_reinvocation(given: Mapping[str, Any], names: Names, place: OrderStamp) -> bool:
    """Tell whether the three annotations are those of an earlier call for the same request.

    The API server calls again when another webhook changed the pod. Nothing marks the
    second call, but stamps that agree and are seconds old were hardly copied by hand.
    It decides about warnings only: the stamps are overwritten either way.
    """
    time, order = given.get(names.predicate_time), given.get(names.admission_order)
    if given.get(names.gpu_assigned) != "false":
        return False
    if not isinstance(time, str) or not isinstance(order, str):
        return False
    try:
        earlier = OrderStamp.decode(order)
        return (
            decode_time(time) == earlier.time_ns
            and 0 <= place.time_ns - earlier.time_ns < _REINVOKED_WITHIN
        )
    except InvalidStamp:
        return False


def _uneven(demand: PodDemand) -> Iterator[str]:
    for container in demand.containers:
        asked = container.demand
        if asked.memory % asked.cards:
            yield f"container {cut(container.name, _LONGEST_NAME)}: {_split(asked)}"


def _split(asked: Demand) -> str:
    # Not Demand.memory_per_card: a hostile pod may ask for millions of cards.
    least, longer = divmod(asked.memory, asked.cards)
    return (
        f"memory {asked.memory} on {asked.cards} cards is uneven: "
        f"{longer}x{least + 1} + {asked.cards - longer}x{least} blocks"
    )
