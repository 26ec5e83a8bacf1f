"""The API server, as the scheduler extender uses it: raw JSON in and out."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.apiserver.client import Client, Json, object_path
from common.apiserver.errors import CredentialsError
from common.apiserver.rest import MOST_KEPT
from common.errors import SettingsError, Unavailable

BIND_SECONDS = 4.0
"""For one Binding; the API server gives it up after as long, so that none takes effect later."""

T = TypeVar("T")

_USER_AGENT = "gpu-turnstile-scheduler"
_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"
_LEASES, _SLICES = "/apis/coordination.k8s.io/v1", "/apis/discovery.k8s.io/v1"
# A page is held in memory as a whole, and 100,000 pods are half a gigabyte.
_PAGE = "500"
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
_GET_SECONDS = 1.0
_WRITE_SECONDS = 4.0


class SchedulerApi:
    """A client for one replica. Safe to share between threads; the coroutines wait for threads.

    What asks for one object, or writes one, raises ``Rejected`` where the API server says no: 404
    where there is none, 409 where it is there, or has changed since it was read. It raises
    ``Unavailable`` where no usable answer came in time: nobody knows whether a write was done.
    """

    def __init__(self, kubeconfig: Path | None, *, bindings: int = MOST_KEPT) -> None:
        """Read the credentials; nothing is asked yet.

        Args:
            kubeconfig: a kubeconfig file; ``None`` for the service account of the pod.
            bindings: how many are made at the same time.

        Raises:
            SettingsError: neither can be used.
        """
        try:
            self._client = Client(kubeconfig, user_agent=_USER_AGENT)
            self._pods = Client(kubeconfig, user_agent=_USER_AGENT)  # whose watch is ended alone
        except CredentialsError as error:
            raise SettingsError(f"--{error}") from error
        self._threads = ThreadPoolExecutor(bindings, "api")

    def list_pods(self, more: str) -> tuple[list[Json], str, str]:
        """List one page of the pods that have not ended, as of now.

        Args:
            more: what the page before handed over; empty for the first.

        Returns:
            The pods, the resource version, and what to hand over for the next page, if any.
        """
        query = {"fieldSelector": _RUNNING, "limit": _PAGE}
        return self._pods.list(_PODS, {**query, "continue": more} if more else query)

    def watch_pods(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream their changes; one that ends is ``DELETED``."""
        query = {"fieldSelector": _RUNNING, "resourceVersion": version}
        return self._pods.watch(_PODS, query)

    def end_watch_of_pods(self) -> None:
        """End it at once, so that a list can follow."""
        self._pods.end_watches()

    def list_nodes(self, more: str) -> tuple[list[Json], str, str]:
        """List one page of the nodes; as :meth:`list_pods`."""
        query = {"limit": _PAGE}
        return self._client.list(_NODES, {**query, "continue": more} if more else query)

    def watch_nodes(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream their changes."""
        return self._client.watch(_NODES, {"resourceVersion": version})

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` when there is none."""
        path = object_path("pods", namespace, name)
        return await self._within(_GET_SECONDS, partial(self._client.find, path))

    async def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Create a Binding."""
        path = object_path("pods", namespace, name) + "/binding"
        await self._within(BIND_SECONDS, partial(self._client.call, "POST", path, binding))

    def get_lease(self, namespace: str, name: str) -> Json | None:
        """Get a lease; ``None`` when there is none."""
        path = object_path("leases", namespace, name, api=_LEASES)
        return self._client.find(path, timeout=_WRITE_SECONDS)

    def create_lease(self, namespace: str, lease: Json) -> None:
        """Create a lease."""
        path = object_path("leases", namespace, api=_LEASES)
        self._client.call("POST", path, lease, timeout=_WRITE_SECONDS)

    def replace_lease(self, namespace: str, lease: Json) -> None:
        """Replace a lease, if it is still the one that was read."""
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
        """End every watch; requests that wait for a thread are not made."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._pods.close()

    async def _within(self, seconds: float, ask: Callable[..., T]) -> T:
        """Make a request in a thread; the time that it waits for one counts.

        The API server is told how much is left: it gives up then, too.
        """
        latest = time.monotonic() + seconds

        def call() -> T:
            left = latest - time.monotonic()
            if left <= 0:
                raise TimeoutError
            query = {"timeout": f"{max(left, 0.001):.3f}s"}  # 0 would be as long as it likes
            return ask(timeout=left, query=query)

        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError as error:
            raise Unavailable(f"API server: no answer in {seconds:g} s") from error
