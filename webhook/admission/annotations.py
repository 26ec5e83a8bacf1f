"""Our annotations on pods: changes at creation and binding, warnings if a manifest has them."""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.names import Names
from contract.stamps import OrderStamp


def changes_at_create(
    given: Mapping[str, Any], names: Names, order_stamp: OrderStamp, *, reinvoked: bool = False
) -> dict[str, str | None]:
    """Return the changes to a new GPU pod's annotations: values, or ``None`` to remove.

    If *reinvoked*, what an earlier call for the same request has translated is kept.
    """
    changes: dict[str, str | None] = {
        names.predicate_time: str(order_stamp.time_ns),
        names.admission_order: order_stamp.encode(),
        names.gpu_assigned: "false",
    }
    for key in given:
        if _is_written_later(key, names) or (key == names.translated_from and not reinvoked):
            changes[key] = None
    return changes


def changes_without_gpus(given: Mapping[str, Any], names: Names) -> dict[str, str | None]:
    """Return the changes to the annotations of a new pod without GPUs, often a GPU pod's copy.

    A pod with only the annotations of a Binding is left unchanged: every copy of a running pod
    has them.
    """
    dropped = _only_on_gpu_pods(given, names)
    if not dropped:
        return {}
    by_binding = (names.predicate_time, names.bind_order, names.predicate_node)
    return dict.fromkeys((*dropped, *(key for key in by_binding if key in given)))


def changes_at_bind(names: Names, order_stamp: OrderStamp, node: str) -> dict[str, str]:
    """Return the annotations of a pod that is being bound."""
    return {
        names.predicate_time: str(order_stamp.time_ns),
        names.bind_order: order_stamp.encode(),
        names.predicate_node: node,
    }


def about_supplied(
    given: Mapping[str, Any], names: Names, *, path: str = "", only_dropped: bool = False
) -> Iterator[str]:
    """Warn of our annotations in a manifest, often a copy of a running pod.

    If *only_dropped*, an earlier call for the same request wrote stamps and ``translated-from``:
    these are no reason to warn.
    """
    stamps = _stamps(names)
    for key in sorted(given):
        ours = key == names.translated_from and not only_dropped
        if ours or _is_written_later(key, names):
            yield f"{path}metadata.annotations[{key}]: dropped, gpu-turnstile writes it"
        elif key in stamps and not only_dropped:
            yield f"{path}metadata.annotations[{key}]: overwritten, gpu-turnstile writes it"


def about_dropped(
    changes: Mapping[str, str | None], names: Names, *, stamped: bool = False
) -> Iterator[str]:
    """Warn of the annotations that :func:`changes_without_gpus` removes.

    If *stamped*, what an earlier call of ours wrote is no reason to warn.
    """
    skipped = (*_stamps(names), names.translated_from) if stamped else ()
    for key in sorted(changes.keys() - skipped):
        yield f"metadata.annotations[{key}]: dropped, the pod requests no GPU"


def _stamps(names: Names) -> tuple[str, str, str]:
    return names.predicate_time, names.admission_order, names.gpu_assigned


def _only_on_gpu_pods(given: Mapping[str, Any], names: Names) -> list[str]:
    ours = (
        *(names.gpu_assigned, names.gpu_allocation, names.admission_order),
        names.translated_from,
    )
    return [key for key in given if key in ours or key.startswith(names.predicate_gpu_idx_prefix)]


def _is_written_later(key: str, names: Names) -> bool:
    later = (names.bind_order, names.predicate_node, names.gpu_allocation)
    return key in later or key.startswith(names.predicate_gpu_idx_prefix)
