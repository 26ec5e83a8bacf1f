"""JSON patches of annotations, made by the jsonpatch library."""

from collections.abc import Mapping
from typing import Any

import jsonpatch

from webhook.verdicts import Operation


def patch_annotations(
    metadata: Mapping[str, Any] | None, changes: Mapping[str, str | None]
) -> tuple[Operation, ...]:
    """Make the patch that brings the annotations of an object to what *changes* says.

    Only keys in *changes* are compared, so nothing else can be touched, and what
    other annotations hold costs no time. Missing parents are added; ``null`` counts
    as missing, because "add" replaces what is there.

    Args:
        metadata: the object's ``metadata``; ``None`` when it has none. Its
            ``annotations``, when there are any, must be a mapping.
        changes: annotation to its new value, or to ``None`` to drop it.
    """
    written = {key: value for key, value in changes.items() if value is not None}
    if metadata is None:
        return _make({}, {"metadata": {"annotations": written}})
    there = metadata.get("annotations")
    if there is None:
        return _make({"metadata": {}}, {"metadata": {"annotations": written}})
    # Only a text can already be right; what else a hostile object holds is not looked into.
    before = {
        key: there[key] if isinstance(there[key], str) else None for key in changes if key in there
    }
    kept = {key: value for key, value in before.items() if key in written}
    # In two steps, or a dropped annotation with the value of a new one becomes a "move"
    # of whichever of them a set happened to give first.
    return (
        *_make(_annotated(before), _annotated(kept)),
        *_make(_annotated(kept), _annotated(written)),
    )


def _annotated(annotations: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(annotations)}}


def _make(before: dict[str, Any], after: dict[str, Any]) -> tuple[Operation, ...]:
    """Compare, in an order that depends on nothing but the paths; no two operations share one."""
    if before == after:
        return ()
    made: Any = jsonpatch.make_patch(before, after)
    return tuple(sorted(made.patch, key=lambda operation: str(operation["path"])))
