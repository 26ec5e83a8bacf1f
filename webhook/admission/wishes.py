"""Warnings about wishes that nobody reads: by a wrong name, or in a wrong place."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from contract.names import Names
from contract.spelling import intended_wish, keys_of
from webhook.admission.decision import short

_MOST = 256
"""Most annotations and labels that are compared: a hostile object may have 100,000."""


def about_wishes(pod: Mapping[str, Any], names: Names, *, path: str = "") -> Iterator[str]:
    """Warn of annotations of a GPU pod that are nearly wishes, and of labels.

    Args:
        pod: the pod, or the template of its workload, possibly hostile.
        names: our annotations.
        path: prefix of ``metadata`` in paths.
    """
    for key in _keys(pod, "annotations"):
        right = intended_wish(key, names)
        if right not in ("", key):
            yield f"write {right}: gpu-turnstile does not read {short(key)}"
    for key in _keys(pod, "labels"):
        if right := intended_wish(key, names):
            yield f"write {right} in {path}metadata.annotations, not in labels"


def about_misplaced(
    workload: Mapping[str, Any], names: Names, *, steps: tuple[str, ...]
) -> Iterator[str]:
    """Warn of wishes in the metadata of a workload, or of a CronJob's ``jobTemplate``.

    Only a pod's own annotations are read, and these are the pod template's.

    Args:
        workload: the object, possibly hostile; its pods request GPUs.
        names: our annotations.
        steps: path to the pod template.
    """
    found: object = workload
    place, template = "", ".".join(steps)
    for step in steps:
        if not isinstance(found, Mapping):
            return
        for key in (*_keys(found, "annotations"), *_keys(found, "labels")):
            if right := intended_wish(key, names):
                yield f"write {right} in {template}.metadata.annotations, not in {place}metadata"
        found, place = found.get(step), f"{place}{step}."


def _keys(obj: Mapping[str, Any], field: str) -> Iterator[str]:
    return islice(keys_of(obj, field), _MOST)
