"""A client of the container runtime, through CRI: finds pod and name of a container by its ID.

The kubelet sets the labels of a container, and a pod's author cannot change them. A process cannot
choose the cgroup from which its container's ID was read (:mod:`agent.runtime.cgroups`).
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from agent.errors import Unavailable
from agent.runtime.api import runtime_pb2
from common.grpc_services import PATIENT_CHANNEL, make_stub

NAME_LABEL = "io.kubernetes.container.name"
UID_LABEL = "io.kubernetes.pod.uid"
"""The labels that the kubelet puts on each container."""

# Only one container is requested, but a runtime that ignores the filter may list more than 4 MiB.
_CHANNEL_OPTIONS = (*PATIENT_CHANNEL, ("grpc.max_receive_message_length", 16 * 1024 * 1024))

_STARTING = "server is not initialized yet"
"""containerd serves its socket before its CRI: 1.6 with the code UNKNOWN, 2 with UNAVAILABLE."""
_RETRY_SECONDS = 0.1

# Kubernetes names; a kubelet sets no others.
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?\Z", re.ASCII)
_UID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,126}[A-Za-z0-9])?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """One container that a kubelet has created."""

    name: str
    pod_uid: str
    """Its pod's UID in the runtime; for a static pod it differs from the UID in the API."""
    ended: bool
    """Whether the runtime reports that it has ended."""


class Cri:
    """A client of one container runtime. Safe to share between threads."""

    def __init__(self, socket: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Open a channel to *socket*; nothing is requested yet. *clock* returns seconds."""
        self._socket = socket
        self._clock = clock
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._runtime = make_stub(self._channel, runtime_pb2.DESCRIPTOR, "RuntimeService")

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        """Return one container; ``None`` if the runtime has none with that ID from a kubelet.

        The sandbox of a pod is not a container. The call waits for a runtime that is starting.

        Raises:
            Unavailable: no response *within* so many seconds.
        """
        wanted = runtime_pb2.ContainerFilter(id=container_id)
        with self._translated():
            response = self._request(
                self._runtime.ListContainers,
                runtime_pb2.ListContainersRequest(filter=wanted),
                self._clock() + within,
            )
        # The filter also matches IDs that begin with its ID; an empty one matches all.
        return next((_read(each) for each in response.containers if each.id == container_id), None)

    def succeeded(self, pod_uid: str, *, within: float) -> frozenset[str]:
        """Return the containers of a pod that have ended with status 0 in its newest sandbox.

        With a new sandbox a pod starts again with its first init container. *pod_uid* is the UID in
        the labels; it must not be empty, which would match all pods.

        Raises:
            Unavailable: no response to all requests *within* so many seconds.
        """
        label = {UID_LABEL: pod_uid}
        end = self._clock() + within

        def remaining() -> float:
            return max(end - self._clock(), 0.001)

        with self._translated():
            sandboxes = self._request(
                self._runtime.ListPodSandbox,
                runtime_pb2.ListPodSandboxRequest(
                    filter=runtime_pb2.PodSandboxFilter(label_selector=label)
                ),
                end,
            ).items
            newest = max(sandboxes, key=lambda each: (each.created_at, each.id), default=None)
            if newest is None:
                return frozenset()
            wanted = runtime_pb2.ContainerFilter(pod_sandbox_id=newest.id, label_selector=label)
            containers = self._runtime.ListContainers(
                runtime_pb2.ListContainersRequest(filter=wanted), timeout=remaining()
            ).containers
            last: dict[str, runtime_pb2.Container] = {}
            for each in sorted(containers, key=lambda each: (each.created_at, each.id)):
                last[each.labels.get(NAME_LABEL, "")] = each
            return frozenset(
                name
                for name, each in last.items()
                if each.state == runtime_pb2.CONTAINER_EXITED
                and self._runtime.ContainerStatus(
                    runtime_pb2.ContainerStatusRequest(container_id=each.id), timeout=remaining()
                ).status.exit_code
                == 0
            )

    def _request(self, method: Callable[..., Any], request: object, end: float) -> Any:
        """Send the first request of a call until *end*, also to a runtime that is starting."""
        while True:
            try:
                remaining = max(end - self._clock(), 0.001)
                return method(request, timeout=remaining, wait_for_ready=True)
            except grpc.RpcError as error:
                if (
                    _STARTING not in (error.details() or "")
                    or self._clock() + _RETRY_SECONDS >= end
                ):
                    raise
                time.sleep(_RETRY_SECONDS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if not self._socket.exists():
            raise Unavailable(f"CRI: no socket at {self._socket}")
        try:
            yield
        except grpc.RpcError as error:
            raise Unavailable(f"CRI: {error.code().name}: {error.details()}") from error
        except ValueError as error:  # gRPC raises it if the channel is closed
            raise Unavailable("CRI: closed") from error

    def close(self) -> None:
        """Close the channel; calls in flight end as unavailable."""
        self._channel.close()


def _read(container: runtime_pb2.Container) -> ContainerInfo | None:
    labels = container.labels
    name, pod_uid = labels.get(NAME_LABEL, ""), labels.get(UID_LABEL, "")
    if not (_UID.match(pod_uid) and _NAME.match(name)):
        return None
    return ContainerInfo(name, pod_uid, ended=container.state == runtime_pb2.CONTAINER_EXITED)
