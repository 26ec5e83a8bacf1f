"""The kubelet's PodResources ``List``, as a source of plain snapshots."""

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
from common.backoff import spread
from common.kubelet_api import podresources_pb2
from contract.resource import Resource

# The kubelet allows 100 calls a second (fact K5): after this long one more is due.
_RETRY_SECONDS = 0.012

# The longest pause between attempts to connect (see the options), and a little.
_BACKOFF_SECONDS = 0.6

# Without these a channel that failed once waits up to two minutes before it tries again;
# a kubelet is back in seconds. A node with many places lists more than gRPC's 4 MiB default.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
)


def _raw_list() -> Any:
    """Make a message like ``ListPodResourcesResponse`` whose entries stay bytes.

    On the wire a message and a field of bytes are the same. A node lists every place that is
    taken (fact K16), megabytes in all, and nearly every pod as in the answer before: bytes
    that were seen before need not be read again.
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
        readable: whether the last ``List`` was answered; ``True`` before the first.
    """

    def __init__(
        self,
        socket: Path,
        *,
        resources: Mapping[str, Resource],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a channel to *socket*; nothing is asked yet. Only *resources* are read."""
        self._resources = resources
        self._socket = socket
        self._clock = clock
        self._pause = threading.Event()
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._ask = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=podresources_pb2.ListPodResourcesRequest.SerializeToString,
            response_deserializer=_RawList.FromString,
        )
        self._seen: Mapping[bytes, ListedPod] = {}
        self.readable = True

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        """Ask who holds what; a call turned away by the rate limit is made again.

        Raises:
            Unavailable: no answer *within* so many seconds, retries included.
        """
        try:
            found = self._list(within)
        except Unavailable:
            self.readable = False
            raise
        self.readable = True
        return found

    def _list(self, within: float) -> tuple[ListedPod, ...]:
        deadline = self._clock() + within
        patience = self._clock() + _BACKOFF_SECONDS
        reason = "PodResources: no time left to ask"
        while True:
            left = deadline - self._clock()
            if left <= 0:
                raise Unavailable(reason)
            try:
                answer = self._ask(podresources_pb2.ListPodResourcesRequest(), timeout=left)
            except grpc.RpcError as error:
                limited = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                reason = f"PodResources: {error.code().name}: {error.details()}"
                # A kubelet that has just come up is there before the channel tries again.
                coming = (
                    error.code() is grpc.StatusCode.UNAVAILABLE
                    and self._clock() < patience
                    and self._socket.exists()
                )
                if not coming and not limited:
                    raise Unavailable(reason) from error
                if limited:
                    reason = "PodResources: rate limited until the deadline"
                self._pause.wait(spread(_RETRY_SECONDS))
            except ValueError as error:  # how gRPC says that the channel is closed
                raise Unavailable("PodResources: closed") from error
            else:
                return self._read(answer)

    def close(self) -> None:
        """Close the channel."""
        self._pause.set()
        self._channel.close()

    def _read(self, answer: Any) -> tuple[ListedPod, ...]:
        # Two threads at once may each read an entry; what is kept is right either way.
        before = self._seen
        raws = list(answer.pod_resources)
        pods = tuple([before.get(raw) or self._read_pod(raw) for raw in raws])
        self._seen = dict(zip(raws, pods, strict=True))
        return pods

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
