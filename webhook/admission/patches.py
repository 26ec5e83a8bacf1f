"""JSON patches (RFC 6902) of annotations.

Written out and not found by comparing two documents: what changes is known, and
comparing cost half of what a whole review may take.
"""

from collections.abc import Mapping
from typing import Any

from webhook.admission.verdicts import Operation


def patch_annotations(
    metadata: Mapping[str, Any] | None, changes: Mapping[str, str | None]
) -> tuple[Operation, ...]:
    """Make the patch that brings the annotations of an object to what *changes* says.

    Only keys in *changes* are looked at, so nothing else can be touched, and what
    other annotations hold costs no time. Missing parents are added; ``null`` counts
    as missing, because "add" replaces what is there. What goes is removed first; each
    key has one operation at most, and their order depends on nothing but the keys.

    Args:
        metadata: the object's ``metadata``; ``None`` when it has none. Its
            ``annotations``, when there are any, must be a mapping.
        changes: annotation to its new value, or to ``None`` to drop it.
    """
    there = None if metadata is None else metadata.get("annotations")
    if there is None:
        written = {key: value for key, value in sorted(changes.items()) if value is not None}
        if not written:
            return ()
        if metadata is None:
            return (_set("add", "/metadata", {"annotations": written}),)
        return (_set("add", "/metadata/annotations", written),)
    removed: list[Operation] = []
    settled: list[Operation] = []
    for key, value in sorted(changes.items()):
        if value is None:
            if key in there:
                removed.append({"op": "remove", "path": _path(key)})
        elif key not in there:
            settled.append(_set("add", _path(key), value))
        elif not _is_text(there[key], value):
            settled.append(_set("replace", _path(key), value))
    return (*removed, *settled)


def _set(op: str, path: str, value: object) -> Operation:
    return {"op": op, "path": path, "value": value}


def _path(key: str) -> str:
    """Point to an annotation (RFC 6901): ``~`` first, or the escapes would be escaped."""
    return f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}"


def _is_text(found: object, wanted: str) -> bool:
    """Compare with text alone: whatever else a hostile object holds is not looked into."""
    return isinstance(found, str) and found == wanted
