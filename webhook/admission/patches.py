"""JSON patches (RFC 6902) of annotations and fields. Only this module imports ``jsonpatch``.

A patch is built from its operations and not by comparing two documents: the changes are
known, and a comparison costs half of the time that a whole review may take.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonpatch import JsonPatch, JsonPointer

from webhook.admission.decision import Operation

_dumps = json.JSONEncoder(separators=(",", ":")).encode


def patch_annotations(
    metadata: Mapping[str, Any] | None, changes: Mapping[str, str | None]
) -> tuple[Operation, ...]:
    """Build the operations that make *changes* to the annotations of an object.

    Only keys in *changes* are read: no other annotation can be changed, or costs time. Missing
    parents are added; ``null`` counts as missing, because "add" replaces an existing value.
    Removals come first, then all other operations, both sorted by key, with at most one operation
    for each key.

    Args:
        metadata: the object's ``metadata``; ``None`` if it has none. Its ``annotations``, if
            there are any, must be a mapping.
        changes: annotation to its new value, or to ``None`` to remove it.
    """
    existing = None if metadata is None else metadata.get("annotations")
    if existing is None:
        added = {key: value for key, value in sorted(changes.items()) if value is not None}
        if not added:
            return ()
        if metadata is None:
            return (_operation("add", "/metadata", {"annotations": added}),)
        return (_operation("add", "/metadata/annotations", added),)
    removals: list[Operation] = []
    writes: list[Operation] = []
    for key, value in sorted(changes.items()):
        if value is None:
            if key in existing:
                removals.append({"op": "remove", "path": _path(key)})
        elif key not in existing:
            writes.append(_operation("add", _path(key), value))
        elif not _equals_text(existing[key], value):
            writes.append(_operation("replace", _path(key), value))
    return (*removals, *writes)


def set_value(steps: tuple[str | int, ...], value: object) -> Operation:
    """Return the operation that adds a field, or replaces it ("add" does both).

    Args:
        steps: path from the root to the field; all steps but the last must exist. ``-`` is the end
            of a list.
        value: its new value.
    """
    return _operation("add", _pointer(steps), value)


def remove_value(steps: tuple[str | int, ...]) -> Operation:
    """Return the operation that removes a field, which must exist."""
    return {"op": "remove", "path": _pointer(steps)}


def encode_patch(operations: Sequence[Operation]) -> bytes:
    """Encode a patch as JSON.

    Raises:
        jsonpatch.JsonPatchException: an operation is invalid by RFC 6902.
    """
    _check(tuple((each["op"], each["path"], "value" in each) for each in operations))
    return _dumps(operations).encode("ascii")


@lru_cache(maxsize=256)
def _check(operations: tuple[tuple[str, str, bool], ...]) -> None:
    """Check a patch with the library, without its values: nearly all patches differ only in these.

    Raises:
        jsonpatch.JsonPatchException: an operation is invalid by RFC 6902.
    """
    JsonPatch(
        [
            {"op": op, "path": path, **({"value": None} if valued else {})}
            for op, path, valued in operations
        ]
    )


def _operation(op: str, path: str, value: object) -> Operation:
    return {"op": op, "path": path, "value": value}


def _path(key: str) -> str:
    return _pointer(("metadata", "annotations", key))


@lru_cache(maxsize=256)
def _pointer(steps: tuple[str | int, ...]) -> str:
    path: str = JsonPointer.from_parts(steps).path
    return path


def _equals_text(found: object, wanted: str) -> bool:
    # Only text is compared: a hostile object may contain values of any type.
    return isinstance(found, str) and found == wanted
