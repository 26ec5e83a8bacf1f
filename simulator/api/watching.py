"""What a watcher sees of a change, given what it selects."""

from collections.abc import Callable

from simulator.api.resources import ApiResource, Json
from simulator.api.selectors import Matches
from simulator.api.store import ObjectWrite


def line_of(change: ObjectWrite, *, namespace: str, matches: Matches) -> Json | None:
    """Turn a change into a watch event, or ``None`` when the watcher is not to see it.

    An object that starts to match is ``ADDED`` for this watcher, one that stops is
    ``DELETED``: so a kubelet that selects ``spec.nodeName`` sees a pod appear when it is
    bound.
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
    """Make the event that only says how far the watch has come."""
    return {
        "type": "BOOKMARK",
        "object": {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        },
    }


def error_line(status: Json) -> Json:
    """Make the event that ends a watch with a refusal."""
    return {"type": "ERROR", "object": status}


def with_kind(resource: ApiResource, obj: Json) -> Json:
    """Return what the object is, as objects outside a list do."""
    return {**obj, "kind": resource.kind, "apiVersion": resource.api_version}


def _last_seen(change: ObjectWrite) -> Json:
    """Return the last state that the watcher selected, with the version of its going."""
    old = change.old or change.last
    return {**old, "metadata": {**old["metadata"], "resourceVersion": str(change.version)}}


def all_of(*predicates: Matches) -> Callable[[Json], bool]:
    """Select what every predicate selects."""
    return lambda obj: all(matches(obj) for matches in predicates)
