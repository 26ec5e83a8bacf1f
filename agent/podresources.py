"""The kubelet's PodResources ``List``, as a source of plain snapshots."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from agent.errors import Unavailable
from agent.kubeletapi import podresources_pb2, podresources_pb2_grpc
from agent.tickets import Resource
from agent.witness import ListedContainer, ListedPod, Snapshot

# The kubelet allows 100 calls a second (fact K5): after this long one more is due.
_RETRY_SECONDS = 0.012

# Without these a channel that failed once waits up to two minutes before it tries again;
# a kubelet is back in seconds. A node with many places lists more than gRPC's 4 MiB default.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
)


class PodResources:
    """A client of one kubelet. Safe to share between threads."""

    def __init__(
        self,
        socket: Path,
        *,
        resources: Mapping[str, Resource],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a channel; nothing is asked yet.

        Args:
            socket: the kubelet's PodResources socket.
            resources: resource name -> resource; others in the record are passed over.
            clock: seconds, monotonic.
        """
        self._resources = resources
        self._clock = clock
        self._pause = threading.Event()
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._stub = podresources_pb2_grpc.PodResourcesListerStub(self._channel)

    def list(self, *, within: float) -> Snapshot:
        """Ask who holds what; a call turned away by the rate limit is made again.

        Args:
            within: seconds for everything, retries included.

        Raises:
            Unavailable: no answer in time.
        """
        deadline = self._clock() + within
        while True:
            left = deadline - self._clock()
            if left <= 0:
                raise Unavailable("PodResources: rate limited until the deadline")
            try:
                answer = self._stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=left)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise Unavailable(
                        f"PodResources: {error.code().name}: {error.details()}"
                    ) from error
                self._pause.wait(_RETRY_SECONDS)
            else:
                return self._read(answer)

    def close(self) -> None:
        """Close the channel."""
        self._pause.set()
        self._channel.close()

    def _read(self, answer: podresources_pb2.ListPodResourcesResponse) -> Snapshot:
        return Snapshot(
            tuple(
                ListedPod(
                    pod.namespace,
                    pod.name,
                    tuple(self._read_container(container) for container in pod.containers),
                )
                for pod in answer.pod_resources
            )
        )

    def _read_container(self, container: podresources_pb2.ContainerResources) -> ListedContainer:
        held: dict[Resource, set[str]] = {}
        for devices in container.devices:  # one entry per ID, not per resource (fact K16)
            resource = self._resources.get(devices.resource_name)
            if resource is not None:
                held.setdefault(resource, set()).update(devices.device_ids)
        return ListedContainer(
            container.name, {resource: frozenset(ids) for resource, ids in held.items()}
        )
