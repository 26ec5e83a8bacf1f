"""The extender's client for the API server: raw JSON in and out."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.apiserver.client import Client, Json, object_path
from common.apiserver.errors import REQUEST_ERRORS, CredentialsError
from common.apiserver.events import Notice, create
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

_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_GROUPS = "/apis/scheduling.k8s.io/v1alpha2"
_LEASES, _SLICES = "/apis/coordination.k8s.io/v1", "/apis/discovery.k8s.io/v1"
_WRITE_SECONDS = 4.0


class SchedulerApi:
    """A client for one replica. Thread-safe; the coroutines run their requests in threads.

    Methods that get or write one object raise ``Rejected`` if the API server rejects the request:
    404 if the object does not exist, 409 if it exists already or has changed since it was read.
    They raise ``Unavailable`` if no usable response came in time; a write may then have succeeded.

    Attributes:
        client: sends all requests but those about the collection of pods.
        pod_client: lists and watches pods: its watch can be ended alone.
        user_agent: the program, in the audit logs of the API server.
    """

    user_agent = "gpu-turnstile-scheduler"

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        bindings: int = MOST_KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the credentials; no request is sent yet.

        *bindings* is the most Bindings at the same time; without a *kubeconfig* the pod's service
        account counts. *clock* is monotonic, in seconds.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        try:
            self.client = Client(kubeconfig, user_agent=self.user_agent)
            self.pod_client = Client(kubeconfig, user_agent=self.user_agent)
        except CredentialsError as error:
            raise SettingsError(f"--{error}") from error
        self._threads = ThreadPoolExecutor(bindings, "api")
        self._clock = clock

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` if it does not exist."""
        path = object_path("pods", namespace, name)
        return await self._within(GET_SECONDS, partial(self.client.find, path))

    async def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Create a Binding."""
        path = object_path("pods", namespace, name) + "/binding"
        await self._within(BIND_SECONDS, partial(self.client.call, "POST", path, binding))

    def find_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` if it does not exist."""
        return self.client.find(object_path("pods", namespace, name), timeout=_WRITE_SECONDS)

    def patch_pod_status(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to the status of a pod."""
        path = object_path("pods", namespace, name) + "/status"
        self.client.call("PATCH", path, patch, timeout=SharedTimeout(EVICT_SECONDS))

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod, with its own grace period; another pod of its name stays (409)."""
        path = object_path("pods", namespace, name) + "/eviction"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self.client.call("POST", path, eviction, timeout=SharedTimeout(EVICT_SECONDS))

    def list_budgets(self) -> list[Json]:
        """List all PodDisruptionBudgets."""
        return self.client.list(_BUDGETS, {}, _WRITE_SECONDS)[0]

    def create_event(self, notice: Notice, at: float) -> None:
        """Create an Event, see :func:`common.apiserver.events.create`."""
        create(self.client, notice, at=at, timeout=_WRITE_SECONDS)

    def read_enough(self, group: str) -> int | None:
        """Return ``minCount`` of a PodGroup, by namespace and name.

        ``None`` if it cannot be read: also if the API server does not serve this version, or the
        account may not get it.
        """
        namespace, _, name = group.partition("/")
        path = object_path("podgroups", namespace, name, api=_GROUPS)
        try:
            found = self.client.find(path, timeout=GET_SECONDS)
        except REQUEST_ERRORS:
            return None
        policy = ((found or {}).get("spec") or {}).get("schedulingPolicy") or {}
        count = (policy.get("gang") or {}).get("minCount", 1) if policy else None
        return count if isinstance(count, int) else None

    def get_lease(self, namespace: str, name: str) -> Json | None:
        """Get a lease; ``None`` if it does not exist."""
        path = object_path("leases", namespace, name, api=_LEASES)
        return self.client.find(path, timeout=_WRITE_SECONDS)

    def create_lease(self, namespace: str, lease: Json) -> None:
        """Create a lease."""
        path = object_path("leases", namespace, api=_LEASES)
        self.client.call("POST", path, lease, timeout=_WRITE_SECONDS)

    def replace_lease(self, namespace: str, lease: Json) -> None:
        """Replace a lease, unless it has changed since it was read."""
        path = object_path("leases", namespace, lease["metadata"]["name"], api=_LEASES)
        self.client.call("PUT", path, lease, timeout=_WRITE_SECONDS)

    def get_slice(self, namespace: str, name: str) -> Json:
        """Get an EndpointSlice."""
        path = object_path("endpointslices", namespace, name, api=_SLICES)
        return self.client.call("GET", path, timeout=_WRITE_SECONDS)

    def patch_slice(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to an EndpointSlice."""
        path = object_path("endpointslices", namespace, name, api=_SLICES)
        self.client.call("PATCH", path, patch, timeout=_WRITE_SECONDS)

    def close(self) -> None:
        """End every watch; requests that still wait for a thread are not sent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.client.close()
        self.pod_client.close()

    async def _within(self, seconds: float, request: Callable[..., T]) -> T:
        """Send a request from a thread; *seconds* includes the wait for the thread.

        The API server gets the rest as its own timeout, so that it gives up at the same time.
        """
        deadline = self._clock() + seconds

        def call() -> T:
            rest = deadline - self._clock()
            if rest <= 0:
                raise TimeoutError
            return request(timeout=SharedTimeout(rest))

        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError as error:
            raise Unavailable(f"API server: no response in {seconds:g} s") from error
