"""Whether a container may register: what is proven of it, and what it says of itself.

A request is worth nothing as evidence. Who registers is told by its connection (the process),
the process's cgroup (the container), the container runtime (name and pod) and the agent's record
(what that container holds). What the request says of itself must not contradict any of it; each
part may be empty.

No I/O here. Each check returns or raises :class:`Forbidden`, whose text is for the log: a
container is told nothing of it.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from agent.allocator.grants import Entitlement
from agent.enforcement.vcuda.config import legacy_bus_id
from agent.errors import EnforcementError
from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z", re.ASCII)
_SHOWN = 80


class Forbidden(Exception):
    """The container does not hold these devices, or claims to be another."""


class NotYet(Exception):
    """The agent does not know yet what this container may use."""


@dataclass(frozen=True, slots=True)
class ClaimedIdentity:
    """What a request says of its sender; each part may be empty."""

    bus_id: str = ""
    pod_uid: str = ""
    container_name: str = ""
    container_id: str = ""

    def shown(self) -> dict[str, str]:
        """Return them for the log: cut, since they are a stranger's."""
        return {
            "pod_uid": self.pod_uid[:_SHOWN],
            "container": self.container_name[:_SHOWN],
            "container_id": self.container_id[:_SHOWN],
            "bus_id": self.bus_id[:_SHOWN],
        }


def is_container_id(text: str) -> bool:
    """Whether a text may be the name of a container's folder."""
    return _CONTAINER_ID.match(text) is not None


def aliases(container_id: str) -> frozenset[str]:
    """Return the IDs by which a container may call itself.

    Under CRI-O with the cgroupfs driver the real client takes the prefix for a part of it, and
    then reads the directory that is named so.
    """
    return frozenset({container_id, f"crio-{container_id}"})


def check_container(ref: ContainerCgroup | None, claims: ClaimedIdentity) -> ContainerCgroup:
    """Compare the claimed ID with the container that the connection came from."""
    if ref is None:
        raise Forbidden("its process is in no container")
    if not is_container_id(ref.container_id):
        raise Forbidden(f"its container's ID is not 64 hexadecimal digits: {ref.container_id!r}")
    if claims.container_id and claims.container_id not in aliases(ref.container_id):
        raise _claimed(claims.container_id)
    return ref


def check_runtime(ref: ContainerCgroup, info: ContainerInfo | None) -> ContainerInfo:
    """Compare what the runtime says of a container with its cgroup."""
    if info is None:
        raise Forbidden("the container runtime does not know its container")
    if ref.pod_uid not in {None, info.pod_uid}:
        raise Forbidden(f"its cgroup is of pod {ref.pod_uid}, the runtime says {info.pod_uid}")
    if not _LABEL.match(info.name):
        raise Forbidden(f"its container's name is not a DNS label: {info.name!r}")
    return info


def check_record(entitlement: Entitlement, info: ContainerInfo) -> None:
    """Check that the record's entry, found by pod and name, is this container's."""
    pod, name = entitlement.ref.pod, entitlement.ref.container
    if entitlement.uid not in {"", info.pod_uid} or name != info.name:
        raise Forbidden(f"the record has {pod} {name} in its place")


def check_claims(claims: ClaimedIdentity, info: ContainerInfo, bus_ids: Collection[str]) -> None:
    """Compare the rest of what is claimed.

    A card that the container holds and whose bus ID is not known has an empty one: it may be the
    one that is claimed.
    """
    if claims.pod_uid not in {"", info.pod_uid}:
        raise Forbidden(f"it claims to be of pod {claims.pod_uid[:_SHOWN]!r}")
    if claims.container_name not in {"", info.name}:
        raise _claimed(claims.container_name)
    if not claims.bus_id:
        return
    try:
        claimed = legacy_bus_id(claims.bus_id)
    except EnforcementError as error:
        raise Forbidden(str(error)) from error
    known = {legacy_bus_id(each) for each in bus_ids}
    if claimed not in known and "" not in known:
        raise Forbidden(f"it holds no card {claimed}, but {', '.join(sorted(known))}")


def folders_of(
    claims: ClaimedIdentity, ref: ContainerCgroup, info: ContainerInfo
) -> frozenset[str]:
    """Return the folders that a container reads in its directory; "" is the top one.

    vcuda-controller asks in two forms. Where it finds ``/etc/vcuda/vcuda.config`` it reads that,
    registers with its pod and container name, and reads ``/etc/vcuda/pids.config``. Else it reads
    its container ID out of its memory cgroup (so only with cgroups v1, and without a cgroup
    namespace), registers with that, and reads both files in ``/etc/vcuda/<container ID>``.
    """
    folders = {ref.container_id, claims.container_id} - {""}
    if claims.container_name:
        folders |= {"", info.name}
    return frozenset(folders)


def _claimed(container: str) -> Forbidden:
    return Forbidden(f"it claims to be container {container[:_SHOWN]!r}")
