"""Apply patches; the simulator's only module that imports jsonpatch and jsonpointer."""

import copy
from collections.abc import Sequence

import jsonpatch
from jsonpatch import JsonPatchException
from jsonpointer import JsonPointerException

from simulator.api.resources import Json


class InvalidPatch(ValueError):
    """A patch is malformed, or does not apply to the object."""


def apply_merge_patch(obj: Json, patch: object) -> Json:
    """Apply an RFC 7386 merge patch to a copy of *obj*.

    Strategic merge patches are applied the same way. The result is the same for maps
    (annotations, labels, status fields). Lists are replaced; a real server merges them by key.

    Raises:
        InvalidPatch: the patch, or its result, is not an object.
    """
    if not isinstance(patch, dict):
        raise InvalidPatch("a merge patch of an object must be an object")
    merged = _merge(copy.deepcopy(obj), patch)
    if not isinstance(merged, dict):
        raise InvalidPatch("a merge patch of an object must leave an object")
    return merged


def apply_json_patch(obj: Json, patch: object) -> Json:
    """Apply an RFC 6902 JSON patch to a copy of *obj*.

    Raises:
        InvalidPatch: it is not a list of operations, or an operation does not apply.
    """
    if not isinstance(patch, Sequence) or isinstance(patch, str):
        raise InvalidPatch("a JSON patch must be a list of operations")
    try:
        patched = jsonpatch.apply_patch(obj, list(patch))
    # The library raises the last three if an operation is not even a mapping.
    except (JsonPatchException, JsonPointerException, TypeError, AttributeError, KeyError) as error:
        raise InvalidPatch(str(error)) from error
    if not isinstance(patched, dict):
        raise InvalidPatch("a JSON patch of an object must leave an object")
    return patched


def _merge(target: object, patch: object) -> object:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged
