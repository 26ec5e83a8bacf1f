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


def changes_without_gpus(given: Mapping[str, Any], names: Names) -> dict[str, str | None]:
    """Drop ours from a new pod that asks for no GPU, often copied from one that does.

    What every pod gets by its Binding is no reason to touch it: a copy of any running pod
    carries that.
    """
    dropped = _only_on_gpu_pods(given, names)
    if not dropped:
        return {}
    by_binding = (names.predicate_time, names.bind_order, names.predicate_node)
    return dict.fromkeys((*dropped, *(key for key in by_binding if key in given)))


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
    written = _stamps(names)
    for key in sorted(given):
        if _is_written_later(key, names):
            yield f"{path}metadata.annotations[{key}]: dropped, gpu-turnstile writes it"
        elif key in written and not only_dropped:
            yield f"{path}metadata.annotations[{key}]: overwritten, gpu-turnstile writes it"


def about_dropped(
    changes: Mapping[str, str | None], names: Names, *, stamped: bool = False
) -> Iterator[str]:
    """Warn of what :func:`changes_without_gpus` drops.

    Args:
        changes: what it said.
        names: resources and annotations.
        stamped: leave out the stamps of a new GPU pod, they are ours.
    """
    left_out = _stamps(names) if stamped else ()
    for key in sorted(changes.keys() - left_out):
        yield f"metadata.annotations[{key}]: dropped, the pod asks for no GPU"


def _stamps(names: Names) -> tuple[str, str, str]:
    return names.predicate_time, names.admission_order, names.gpu_assigned


def _only_on_gpu_pods(given: Mapping[str, Any], names: Names) -> list[str]:
    """Name those of ours that only a pod with a GPU request ever gets from us."""
    ours = (names.gpu_assigned, names.gpu_allocation, names.admission_order)
    return [key for key in given if key in ours or key.startswith(names.predicate_gpu_idx_prefix)]


def _is_written_later(key: str, names: Names) -> bool:
    """Tell what a new pod cannot have yet: written at its binding, or once it has its cards."""
    later = (names.bind_order, names.predicate_node, names.gpu_allocation)
    return key in later or key.startswith(names.predicate_gpu_idx_prefix)
