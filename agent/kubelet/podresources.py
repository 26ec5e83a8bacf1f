"""The kubelet's PodResources ``List``, read as plain data."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from agent.allocator.interfaces import ListedContainer, ListedPod
from agent.errors import Unavailable
from agent.host.stale_sockets import refuses
from common.backoff import spread
from common.grpc_services import PATIENT_CHANNEL
from common.kubelet_api import podresources_pb2
from contract.resource import Resource

# The kubelet allows 100 calls a second (fact K5): after this long it allows one more.
_RETRY_SECONDS = 0.012

# A little more than the longest pause between attempts to connect.
_BACKOFF_SECONDS = 0.6

# The List of a node with many slots exceeds gRPC's default of 4 MiB.
_CHANNEL_OPTIONS = (*PATIENT_CHANNEL, ("grpc.max_receive_message_length", 64 * 1024 * 1024))


def _raw_list() -> Any:
    """Return a message class like ``ListPodResourcesResponse`` whose entries stay bytes.

    On the wire a message and a field of bytes are the same. A node lists every slot that is held
    (fact K16), megabytes in all, and nearly every pod is as in the last response. Bytes that were
    parsed before are not parsed again.
    """
    field = descriptor_pb2.FieldDescriptorProto(
        name="pod_resources",
        number=podresources_pb2.ListPodResourcesResponse.POD_RESOURCES_FIELD_NUMBER,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    file = descriptor_pb2.FileDescriptorProto(
        name="gpu_turnstile/raw_list.proto",
        package="gpu_turnstile",
        message_type=[descriptor_pb2.DescriptorProto(name="RawList", field=[field])],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("gpu_turnstile.RawList"))


_RawList = _raw_list()


class PodResources:
    """A client of one kubelet. Safe to share between threads.

    Attributes:
        readable: whether the last ``List`` succeeded; ``True`` before the first.
    """

    def __init__(
        self,
        socket: Path,
        *,
        resources: Mapping[str, Resource],
        kubelet_socket: Path | None = None,
        own: tuple[str, str] = ("", ""),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a channel to *socket*; nothing is requested yet. Only *resources* are read.

        *kubelet_socket* is the kubelet's socket for plugins. A kubelet that starts serves ``List``
        before, and lists nothing: its responses do not count until it serves plugins, too (K11).
        *own* has namespace and name of this agent's pod: it and the others of its DaemonSet, which
        request no GPU, are left out, so that they are no target while the API shows no pods.
        """
        self._resources = resources
        self._kubelet_socket = kubelet_socket
        self._own_namespace, self._own_set = own[0], own[1].rpartition("-")[0]
        self._socket = socket
        self._clock = clock
        self._pause = threading.Event()
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._call = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=podresources_pb2.ListPodResourcesRequest.SerializeToString,
            response_deserializer=_RawList.FromString,
        )
        self._parsed: Mapping[bytes, ListedPod] = {}
        self.readable = True

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        """Return the listed pods; a call that the rate limit rejects is repeated.

        Raises:
            Unavailable: no response *within* so many seconds, retries included.
        """
        try:
            found = self._list(within)
            if self._kubelet_socket is not None and refuses(self._kubelet_socket):
                raise Unavailable("PodResources: the kubelet is starting")
        except Unavailable:
            self.readable = False
            raise
        self.readable = True
        return found

    def _list(self, within: float) -> tuple[ListedPod, ...]:
        deadline = self._clock() + within
        start_deadline = self._clock() + _BACKOFF_SECONDS
        reason = "PodResources: no time left for a call"
        while True:
            left = deadline - self._clock()
            if left <= 0:
                raise Unavailable(reason)
            try:
                response = self._call(podresources_pb2.ListPodResourcesRequest(), timeout=left)
            except grpc.RpcError as error:
                limited = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                reason = f"PodResources: {error.code().name}: {error.details()}"
                # The socket of a kubelet that has just started exists before the channel retries.
                starting = (
                    error.code() is grpc.StatusCode.UNAVAILABLE
                    and self._clock() < start_deadline
                    and self._socket.exists()
                )
                if not starting and not limited:
                    raise Unavailable(reason) from error
                if limited:
                    reason = "PodResources: rate limited until the deadline"
                self._pause.wait(spread(_RETRY_SECONDS))
            except ValueError as error:  # gRPC raises it if the channel is closed
                raise Unavailable("PodResources: closed") from error
            else:
                return self._read(response)

    def close(self) -> None:
        """Close the channel."""
        self._pause.set()
        self._channel.close()

    def _read(self, response: Any) -> tuple[ListedPod, ...]:
        # Two threads may parse the same entry at once; the results are equal.
        before = self._parsed
        raws = list(response.pod_resources)
        pods = tuple([before.get(raw) or self._read_pod(raw) for raw in raws])
        self._parsed = dict(zip(raws, pods, strict=True))
        return pods if not self._own_set else tuple(filter(self._may_request, pods))

    def _may_request(self, pod: ListedPod) -> bool:
        own_set = pod.name.rpartition("-")[0]
        return (pod.namespace, own_set) != (self._own_namespace, self._own_set)

    def _read_pod(self, raw: bytes) -> ListedPod:
        pod = podresources_pb2.PodResources.FromString(raw)
        return ListedPod(
            pod.namespace,
            pod.name,
            tuple(self._read_container(container) for container in pod.containers),
        )

    def _read_container(self, container: podresources_pb2.ContainerResources) -> ListedContainer:
        held: dict[Resource, set[str]] = {}
        for devices in container.devices:  # one entry per ID, not per resource (fact K16)
            resource = self._resources.get(devices.resource_name)
            if resource is not None:
                held.setdefault(resource, set()).update(map(sys.intern, devices.device_ids))
        return ListedContainer(
            container.name, {resource: frozenset(ids) for resource, ids in held.items()}
        )
