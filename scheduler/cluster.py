"""The extender's client for the API server: raw JSON in and out."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.apiserver.client import Client, Json, object_path
from common.apiserver.errors import CredentialsError
from common.apiserver.rest import MOST_KEPT, SharedTimeout
from common.errors import SettingsError, Unavailable

BIND_SECONDS = 4.0
"""Timeout of a Binding, also for the API server, so that no Binding takes effect later."""

GET_SECONDS = 1.0
"""Timeout of a request for one object."""

LONGEST_BINDING = GET_SECONDS + BIND_SECONDS
"""Seconds from the check whether this replica may bind until its Binding has ended.

A pod that the watch has not shown is read first.
"""

EVICT_SECONDS = BIND_SECONDS
"""Timeout of an eviction, and of the write before it, likewise."""

T = TypeVar("T")

_USER_AGENT = "gpu-turnstile-scheduler"
_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_LEASES, _SLICES = "/apis/coordination.k8s.io/v1", "/apis/discovery.k8s.io/v1"
# Pods per page: a whole page is in memory, and 100,000 pods are half a gigabyte.
_PAGE = "500"
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
_WRITE_SECONDS = 4.0


class SchedulerApi:
    """A client for one replica. Thread-safe; the coroutines run their requests in threads.

    Methods that get or write one object raise ``Rejected`` if the API server rejects the request:
    404 if the object does not exist, 409 if it exists already or has changed since it was read.
    They raise ``Unavailable`` if no usable response came in time; a write may then have succeeded.
    """

    def __init__(self, kubeconfig: Path | None, *, bindings: int = MOST_KEPT) -> None:
        """Read the credentials; no request is sent yet.

        Args:
            kubeconfig: a kubeconfig file; ``None`` for the pod's service account.
            bindings: most Bindings at the same time.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        try:
            self._client = Client(kubeconfig, user_agent=_USER_AGENT)
            self._pods = Client(kubeconfig, user_agent=_USER_AGENT)  # its watch can be ended alone
        except CredentialsError as error:
            raise SettingsError(f"--{error}") from error
        self._threads = ThreadPoolExecutor(bindings, "api")

    def list_pods(self, more: str) -> tuple[list[Json], str, str]:
        """List one page of the pods that have not ended.

        Args:
            more: the ``continue`` token of the page before; empty for the first page.

        Returns:
            The pods, the resource version, and the ``continue`` token; empty after the last page.
        """
        query = {"fieldSelector": _RUNNING, "limit": _PAGE}
        return self._pods.list(_PODS, {**query, "continue": more} if more else query)

    def watch_pods(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of pods; a pod that ends is ``DELETED``."""
        query = {"fieldSelector": _RUNNING, "resourceVersion": version}
        return self._pods.watch(_PODS, query)

    def end_watch_of_pods(self) -> None:
        """End the watch of pods at once, so that a list can follow."""
        self._pods.end_watches()

    def list_nodes(self, more: str) -> tuple[list[Json], str, str]:
        """List one page of the nodes, like :meth:`list_pods`."""
        query = {"limit": _PAGE}
        return self._client.list(_NODES, {**query, "continue": more} if more else query)

    def watch_nodes(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of nodes."""
        return self._client.watch(_NODES, {"resourceVersion": version})

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` if it does not exist."""
        path = object_path("pods", namespace, name)
        return await self._within(GET_SECONDS, partial(self._client.find, path))

    async def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Create a Binding."""
        path = object_path("pods", namespace, name) + "/binding"
        await self._within(BIND_SECONDS, partial(self._client.call, "POST", path, binding))

    def find_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` if it does not exist."""
        return self._client.find(object_path("pods", namespace, name), timeout=_WRITE_SECONDS)

    def patch_pod_status(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to the status of a pod."""
        path = object_path("pods", namespace, name) + "/status"
        self._client.call("PATCH", path, patch, timeout=SharedTimeout(EVICT_SECONDS))

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod, with its own grace period; another pod of its name stays (409)."""
        path = object_path("pods", namespace, name) + "/eviction"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._client.call("POST", path, eviction, timeout=SharedTimeout(EVICT_SECONDS))

    def list_budgets(self) -> list[Json]:
        """List all PodDisruptionBudgets."""
        return self._client.list(_BUDGETS, {}, _WRITE_SECONDS)[0]

    def create_event(self, namespace: str, event: Json) -> None:
        """Create an Event; one that exists already is a conflict (409)."""
        path = object_path("events", namespace)
        self._client.call("POST", path, event, timeout=_WRITE_SECONDS)

    def get_lease(self, namespace: str, name: str) -> Json | None:
        """Get a lease; ``None`` if it does not exist."""
        path = object_path("leases", namespace, name, api=_LEASES)
        return self._client.find(path, timeout=_WRITE_SECONDS)

    def create_lease(self, namespace: str, lease: Json) -> None:
        """Create a lease."""
        path = object_path("leases", namespace, api=_LEASES)
        self._client.call("POST", path, lease, timeout=_WRITE_SECONDS)

    def replace_lease(self, namespace: str, lease: Json) -> None:
        """Replace a lease, unless it has changed since it was read."""
        path = object_path("leases", namespace, lease["metadata"]["name"], api=_LEASES)
        self._client.call("PUT", path, lease, timeout=_WRITE_SECONDS)

    def get_slice(self, namespace: str, name: str) -> Json:
        """Get an EndpointSlice."""
        path = object_path("endpointslices", namespace, name, api=_SLICES)
        return self._client.call("GET", path, timeout=_WRITE_SECONDS)

    def patch_slice(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an EndpointSlice."""
        path = object_path("endpointslices", namespace, name, api=_SLICES)
        self._client.call("PATCH", path, patch, timeout=_WRITE_SECONDS)

    def close(self) -> None:
        """End every watch; requests that still wait for a thread are not sent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._pods.close()

    async def _within(self, seconds: float, request: Callable[..., T]) -> T:
        """Send a request from a thread; *seconds* includes the wait for the thread.

        The API server gets the rest as its own timeout, so that it gives up at the same time.
        """
        deadline = time.monotonic() + seconds

        def call() -> T:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise TimeoutError
            return request(timeout=SharedTimeout(rest))

        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError as error:
            raise Unavailable(f"API server: no response in {seconds:g} s") from error
