"""The server for tests and processes: it runs in a thread, with methods that inject faults."""

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Self

from simulator.api import errors
from simulator.api.admission import AdmissionChain
from simulator.api.caller import WebhookCaller
from simulator.api.faults import Fault, Outage, RequestRecord
from simulator.api.http import HttpServer
from simulator.api.operations import Operations
from simulator.api.resources import (
    NAMESPACES,
    Json,
    RequestTarget,
    resource_of_kind,
)
from simulator.api.selectors import labels_of
from simulator.api.store import ObjectStore

_HOST = "127.0.0.1"
_CONTROL_TIMEOUT_S = 30.0
_NAMESPACES_AT_START = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a server.

    Attributes:
        port: the port; 0 takes a free one.
        seed: seed of the UIDs.
        bookmark_s: seconds between two bookmarks of a watch without changes.
        tls: the context for HTTPS; HTTP without it.
    """

    port: int = 0
    seed: int = 0
    bookmark_s: float = 5.0
    tls: ssl.SSLContext | None = None


class ApiServer:
    """A running API server; a context manager for synchronous code.

    Every method may be called from any thread while the server runs.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        random = Random(self._settings.seed)  # noqa: S311 - a simulation must be repeatable
        self._store = ObjectStore(random)
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="apiserver", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._http: HttpServer
        self._operations: Operations
        self._stop: asyncio.Event

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the base URL."""
        scheme = "http" if self._settings.tls is None else "https"
        return f"{scheme}://{_HOST}:{self._started.result(0)}"

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """Return every request so far that named a resource and was permitted."""
        return tuple(self._http.records)

    def start(self) -> None:
        """Start serving; returns when the port is open.

        Raises:
            OSError: the port cannot be opened.
        """
        self._thread.start()
        self._started.result(_CONTROL_TIMEOUT_S)

    def stop(self) -> None:
        """Reset every connection and stop serving."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CONTROL_TIMEOUT_S)

    def apply(self, *objects: Json) -> None:
        """Create objects as an administrator would, replacing those that exist.

        Raises:
            StatusError: an object is refused, or its kind is not served.
        """
        self._control(lambda: self._apply(objects))

    def fail(self, fault: Fault, asked: str = ".*") -> None:
        """Apply a fault to requests until :meth:`restore`.

        Args:
            fault: what the requests get.
            asked: a regular expression that their verb and path match, such as
                ``list /api/v1/pods``.
        """
        self._control(lambda: self._http.faults.update({asked: fault}))

    def restore(self) -> None:
        """Remove all faults; delayed requests get their responses."""
        self._control(self._http.restore)

    def expire_history(self) -> None:
        """Drop all history: a watch from any older version gets 410."""
        self._control(self._store.expire_history)

    def drop_watches(self) -> None:
        """Reset the connection of every running watch."""
        self._control(self._http.drop_watches)

    def set_outage(self, outage: Outage) -> None:
        """Start or end an outage; port and objects stay the same."""
        self._control(lambda: self._set_outage(outage))

    def deny(self, *asked: str) -> None:
        """Refuse requests with 403 until :meth:`restore`.

        Args:
            asked: regular expressions that their verb and path match.
        """
        for each in asked:
            self.fail(Fault(403, message='User "ana" cannot {asked}'), each)

    def _control(self, work: Callable[[], Awaitable[None] | None]) -> None:
        async def do() -> None:
            if (rest := work()) is not None:
                await rest

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(_CONTROL_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        async with WebhookCaller() as caller:
            admission = AdmissionChain(
                caller=caller,
                new_uid=self._store.new_uid,
                stored=self._store.list,
                namespace_labels=self._namespace_labels,
            )
            self._operations = Operations(self._store, admission)
            self._http = HttpServer(
                self._store,
                self._operations,
                bookmark_s=self._settings.bookmark_s,
                tls=self._settings.tls,
            )
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self._apply(_namespace(name) for name in _NAMESPACES_AT_START)
            port = await self._http.start(_HOST, self._settings.port)
            self._started.set_result(port)
            await self._stop.wait()
            await self._http.stop()

    async def _apply(self, objects: Iterable[Json]) -> None:
        for obj in objects:
            api_version, kind = str(obj.get("apiVersion")), str(obj.get("kind"))
            resource = resource_of_kind(api_version, kind)
            if resource is None:
                raise errors.bad_request(f'no matches for kind "{kind}" in version "{api_version}"')
            metadata = obj["metadata"]
            namespace = metadata.get("namespace", "default") if resource.namespaced else ""
            target = RequestTarget(resource, namespace, metadata.get("name", ""))
            if self._store.find(resource, namespace, target.name) is None:
                await self._operations.create(RequestTarget(resource, namespace), obj, [])
            else:
                await self._operations.edit(target, partial(_replacement, obj), [])

    async def _set_outage(self, outage: Outage) -> None:
        self._http.outage = outage
        if outage is Outage.REFUSED:
            await self._http.refuse()
            return
        if outage is Outage.UNAVAILABLE:
            self._http.drop_watches()
        await self._http.listen()

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        found = self._store.find(NAMESPACES, "", namespace)
        return labels_of(found) if found is not None else {}


def kubeconfig_for(url: str) -> str:
    """Return a kubeconfig as JSON, which is valid YAML."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "simulated", "cluster": {"server": url}}],
            "users": [{"name": "admin", "user": {}}],
            "contexts": [
                {"name": "simulated", "context": {"cluster": "simulated", "user": "admin"}}
            ],
            "current-context": "simulated",
        },
        indent=2,
    )


def _replacement(new: Json, _old: Json) -> Json:
    return new


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
