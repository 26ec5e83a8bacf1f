"""Watch events: the form in which a change reaches a watcher with a selector."""

from collections.abc import Callable

from simulator.api.resources import ApiResource, Json
from simulator.api.selectors import Matches
from simulator.api.store import ObjectWrite


def line_of(change: ObjectWrite, *, namespace: str, matches: Matches) -> Json | None:
    """Turn a change into a watch event; ``None`` if the watcher does not select the object.

    If an object starts to match, this watcher gets ``ADDED``; if it stops, ``DELETED``. So a
    kubelet that selects ``spec.nodeName`` gets ``ADDED`` for a pod when the pod is bound.
    """
    if namespace and change.key[0] != namespace:
        return None
    before = change.old is not None and matches(change.old)
    after = change.new is not None and matches(change.new)
    match before, after:
        case False, True:
            kind = "ADDED"
        case True, True:
            kind = "MODIFIED"
        case True, False:
            return {"type": "DELETED", "object": with_kind(change.resource, _last_seen(change))}
        case _:
            return None
    return {"type": kind, "object": with_kind(change.resource, change.last)}


def bookmark(resource: ApiResource, version: int) -> Json:
    """Return the event that carries only the newest resourceVersion."""
    return {
        "type": "BOOKMARK",
        "object": {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        },
    }


def error_line(status: Json) -> Json:
    """Return the event with an error *status*; it ends a watch."""
    return {"type": "ERROR", "object": status}


def with_kind(resource: ApiResource, obj: Json) -> Json:
    """Return *obj* with ``kind`` and ``apiVersion``, which objects in a list do not have."""
    return {**obj, "kind": resource.kind, "apiVersion": resource.api_version}


def _last_seen(change: ObjectWrite) -> Json:
    """Return the last state that the watcher selected, with the version of this change."""
    old = change.old or change.last
    return {**old, "metadata": {**old["metadata"], "resourceVersion": str(change.version)}}


def all_of(*predicates: Matches) -> Callable[[Json], bool]:
    """Return a predicate that holds if all *predicates* hold."""
    return lambda obj: all(matches(obj) for matches in predicates)
