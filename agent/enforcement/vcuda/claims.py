"""Decides whether a container may register: compares proven facts with the request's claims.

A request proves nothing. The client is identified by its connection (the process), the process's
cgroup (the container), the container runtime (name and pod) and the agent's snapshot (the devices
that the container holds). The request's claims must not contradict any of these; each claim may be
empty.

No I/O here. Each check returns or raises :class:`Forbidden`; its text is for the log, and a
container does not get it.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from agent.enforcement.vcuda.config import legacy_bus_id
from agent.errors import EnforcementError
from agent.holdings.holding import Holding
from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z", re.ASCII)
_SHOWN = 80


class Forbidden(Exception):
    """The container does not hold these devices, or claims to be another."""


class NotYet(Exception):
    """What this container holds is not known yet."""


@dataclass(frozen=True, slots=True)
class ClaimedIdentity:
    """The claims of a request about its sender; each may be empty."""

    bus_id: str = ""
    pod_uid: str = ""
    container_name: str = ""
    container_id: str = ""

    def log_fields(self) -> dict[str, str]:
        """Return log fields, cut to a safe length, since the values are not trusted."""
        return {
            "pod_uid": self.pod_uid[:_SHOWN],
            "container": self.container_name[:_SHOWN],
            "container_id": self.container_id[:_SHOWN],
            "bus_id": self.bus_id[:_SHOWN],
        }


def is_container_id(text: str) -> bool:
    """Return whether a text may be the name of a container's folder."""
    return _CONTAINER_ID.match(text) is not None


def aliases(container_id: str) -> frozenset[str]:
    """Return the IDs that a container may claim.

    Under CRI-O with the cgroupfs driver the real client takes the prefix as a part of the ID, and
    then reads the directory with that name.
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
    """Compare the runtime's data of a container with its cgroup."""
    if info is None:
        raise Forbidden("the container runtime has no such container")
    if ref.pod_uid not in {None, info.pod_uid}:
        raise Forbidden(f"its pod is {ref.pod_uid} by its cgroup, {info.pod_uid} by the runtime")
    if not _LABEL.match(info.name):
        raise Forbidden(f"its container's name is not a DNS label: {info.name!r}")
    return info


def check_holding(holding: Holding, info: ContainerInfo) -> None:
    """Check that a holding, found by pod and name, is this container's."""
    pod, name = holding.ref.pod, holding.ref.container
    if holding.uid not in {"", info.pod_uid} or name != info.name:
        raise Forbidden(f"these devices are held by {pod} {name}")


def check_claims(claims: ClaimedIdentity, info: ContainerInfo, bus_ids: Collection[str]) -> None:
    """Compare the remaining claims.

    *bus_ids* are those of the container's cards. An empty one is not known, and may be the claimed
    one.
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
    """Return the folders that a container reads in its directory; "" is the directory itself.

    vcuda-controller registers in two ways. If ``/etc/vcuda/vcuda.config`` exists, it reads that,
    registers with its pod and container name, and reads ``/etc/vcuda/pids.config``. Otherwise it
    takes its container ID from its memory cgroup (so only with cgroups v1, and without a cgroup
    namespace), registers with that, and reads both files in ``/etc/vcuda/<container ID>``.
    """
    folders = {ref.container_id, claims.container_id} - {""}
    if claims.container_name:
        folders |= {"", info.name}
    return frozenset(folders)


def _claimed(container: str) -> Forbidden:
    return Forbidden(f"it claims to be container {container[:_SHOWN]!r}")
