"""Whose a ticket's directory is: what is written down about it, and who may have it."""

import json
from collections.abc import Callable, Collection

from agent.allocator.model.pod_view import PodId


def encode(owner: PodId) -> bytes:
    """Write an owner down."""
    return json.dumps(owner._asdict(), sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> PodId | None:
    """Read an owner; ``None`` when it does not parse: then it is nobody's."""
    try:
        read = json.loads(data)
    except ValueError:
        return None
    if not isinstance(read, dict) or set(read) != set(PodId._fields):
        return None
    if not all(isinstance(each, str) for each in read.values()):
        return None
    return PodId(**read) if read["name"] and read["namespace"] else None


def is_that(owner: PodId, pod: PodId) -> bool:
    """Whether a pod that is admitted is surely the owner.

    Where a UID is not known it may be another of the same name.
    """
    return bool(pod.uid) and owner == pod


def may_be(owner: PodId, pod: PodId) -> bool:
    """Whether the owner may be *pod*: a UID that one of them lacks is no difference."""
    return owner.key == pod.key and (owner.uid == pod.uid or not owner.uid or not pod.uid)


def among(pods: Collection[PodId]) -> Callable[[PodId], bool]:
    """Return what tells whether an owner may be one of *pods*, of which there may be many."""
    known = frozenset(pods)
    names = {pod.key for pod in known}
    unsure = {pod.key for pod in known if not pod.uid}
    return lambda owner: owner in known or owner.key in (unsure if owner.uid else names)
