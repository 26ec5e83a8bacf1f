"""Which annotations of a pod are ours, and what becomes of those its author supplied."""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.names import Names
from contract.stamps import OrderStamp


def annotations_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the annotations of a pod or of a template, empty where none can be read."""
    metadata = pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def changes_at_create(
    given: Mapping[str, Any], names: Names, place: OrderStamp
) -> dict[str, str | None]:
    """Say what each of ours becomes on a new pod: a value, or ``None`` where others write it."""
    changes: dict[str, str | None] = {
        names.predicate_time: str(place.time_ns),
        names.admission_order: place.encode(),
        names.gpu_assigned: "false",
    }
    for key in given:
        if _is_written_later(key, names):
            changes[key] = None
    return changes


def changes_at_bind(names: Names, place: OrderStamp, node: str) -> dict[str, str]:
    """Say what is written on a pod that gets its node."""
    return {
        names.predicate_time: str(place.time_ns),
        names.bind_order: place.encode(),
        names.predicate_node: node,
    }


def about_supplied(
    given: Mapping[str, Any], names: Names, *, path: str = "", only_dropped: bool = False
) -> Iterator[str]:
    """Warn of ours that an author supplied, often by copying a running pod.

    Args:
        given: the annotations.
        names: resources and annotations.
        path: what stands before ``metadata`` in paths.
        only_dropped: leave out those that are overwritten.
    """
    written = (names.predicate_time, names.admission_order, names.gpu_assigned)
    for key in sorted(given):
        if _is_written_later(key, names):
            yield f"{path}metadata.annotations[{key}]: dropped, gpu-turnstile writes it"
        elif key in written and not only_dropped:
            yield f"{path}metadata.annotations[{key}]: overwritten, gpu-turnstile writes it"


def _is_written_later(key: str, names: Names) -> bool:
    """Tell what a new pod cannot have yet: written at its binding, or once it has its cards."""
    later = (names.bind_order, names.predicate_node, names.gpu_allocation)
    return key in later or key.startswith(names.predicate_gpu_idx_prefix)
