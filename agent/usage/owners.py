"""Finds the containers of processes, by cgroup and container runtime."""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from agent.errors import Unavailable
from agent.usage.join import Owner

if TYPE_CHECKING:
    from agent.runtime.cgroups import ContainerCgroup
    from agent.runtime.cri import ContainerInfo

_ANSWER_SECONDS = 2.0


class Processes(Protocol):
    """Finds the containers of processes by their cgroups."""

    def containers_of(self, pids: Iterable[int], /) -> "Mapping[int, ContainerCgroup]":
        """Return the container of each process that is in one."""


class Runtime(Protocol):
    """The container runtime."""

    def container(self, container_id: str, /, *, within: float) -> "ContainerInfo | None":
        """Ask for one container; ``None`` when there is none of a kubelet's making."""


class Owners:
    """Finds the containers of processes. Asks the runtime once for each container."""

    def __init__(self, processes: Processes, runtime: Runtime) -> None:
        self._processes = processes
        self._runtime = runtime
        self._known: dict[str, Owner] = {}

    def find(self, pids: Collection[int]) -> dict[int, Owner]:
        """Return the container of each process that is in one.

        Raises:
            Unavailable: kernel or runtime do not answer, or the agent does not see processes
                other than its own. Nothing is known then: zeros would be lies.
        """
        if os.getpid() == 1:  # the first process of a PID namespace sees no process of the host
            raise Unavailable("the host's processes are not visible: the agent needs hostPID")
        containers = self._processes.containers_of(pids)
        there = {each.container_id for each in containers.values()}
        self._known = {each: self._known[each] for each in there & self._known.keys()}
        for container_id in sorted(there - self._known.keys()):
            info = self._runtime.container(container_id, within=_ANSWER_SECONDS)
            if info is not None:
                self._known[container_id] = Owner(info.pod_uid, info.name)
        return {
            pid: self._known[each.container_id]
            for pid, each in containers.items()
            if each.container_id in self._known
        }
