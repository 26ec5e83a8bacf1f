"""The server's HTTP side; besides ``caller`` the only module that imports aiohttp.

It decodes requests and encodes responses; ``operations`` does what they ask for. The module is
long because requests, watches and the port all need aiohttp.
"""

import asyncio
import json
import math
import re
import ssl
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from simulator.api import errors
from simulator.api.faults import Fault, Outage, RequestRecord
from simulator.api.operations import Edit, Operations
from simulator.api.patching import apply_json_patch, apply_merge_patch
from simulator.api.resources import PODS, Json, RequestTarget, parse_path
from simulator.api.selectors import InvalidSelector, Matches, by_fields, by_labels
from simulator.api.store import ObjectStore, ObjectWrite
from simulator.api.watching import all_of, bookmark, error_line, line_of, with_kind

_LARGEST_BODY = 8 * 1024 * 1024
_DEFAULT_WATCH_S = 1800.0
_ROUNDS_TO_CONNECT = 5  # of the event loop, from accept() to connection_made(): 3 in CPython 3.11
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2-simulated", "platform": "linux"}


class HttpServer:
    """Serves a store on a port; all methods run on one event loop.

    Args:
        store: the objects.
        operations: the verbs that change objects.
        bookmark_s: seconds between two bookmarks of a watch without changes.
        tls: the context for HTTPS; HTTP without it.
    """

    def __init__(
        self,
        store: ObjectStore,
        operations: Operations,
        *,
        bookmark_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._store = store
        self._operations = operations
        self.outage = Outage.NONE
        self.faults: dict[str, Fault] = {}
        self._restored = asyncio.Event()
        self._bookmark_s = bookmark_s
        self._tls = tls
        self._watchers: set[asyncio.Transport] = set()
        self.records: list[RequestRecord] = []
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._handle)
        # A watch must end with its client, not with the next event.
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        self._listener: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one.

        Returns:
            The port.
        """
        await self._runner.setup()
        self._address = (host, port)
        listener = await self.listen()
        self._address = (host, listener.sockets[0].getsockname()[1])
        return self._address[1]

    async def stop(self) -> None:
        """Reset every connection and stop listening."""
        await self.refuse()
        await self._runner.cleanup()

    async def listen(self) -> asyncio.Server:
        """Start accepting connections, unless the server already does."""
        if self._listener is None:
            if self._runner.server is None:
                raise RuntimeError("the HTTP server is not set up")
            self._listener = await asyncio.get_running_loop().create_server(
                self._runner.server, *self._address, reuse_address=True, ssl=self._tls
            )
        return self._listener

    async def refuse(self) -> None:
        """Stop listening and reset every connection, also those just accepted."""
        if self._listener is not None:
            # asyncio loses an accepted connection if the listener closes before
            # connection_made() (Server._attach asserts). So accept no more connections, wait
            # until the accepted ones are made, then close.
            loop = asyncio.get_running_loop()
            for each in self._listener.sockets:
                loop.remove_reader(each.fileno())
            for _ in range(_ROUNDS_TO_CONNECT):
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    def drop_watches(self) -> None:
        """Reset the connection of every running watch."""
        for transport in tuple(self._watchers):
            transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        warnings: list[str] = []
        try:
            return await self._route(request, warnings)
        except errors.StatusError as error:
            return _respond(error.body(), warnings, error.code)
        except InvalidSelector as error:
            return _respond(errors.bad_request(str(error)).body(), warnings, 400)

    async def _route(self, request: web.Request, warnings: list[str]) -> web.StreamResponse:
        if self.outage is Outage.UNAVAILABLE:
            raise errors.unavailable()
        if request.path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        target = parse_path(request.path)
        fault = self._fault_of(_describe(request))
        if target is not None and not (fault and fault.status == HTTPStatus.FORBIDDEN):
            self.records.append(_record(request, target))
        if fault is not None:
            await self._wait(fault.delay_s)
            if fault.status:
                return await _faulty(request, fault)
        return await self._serve(request, target, warnings)

    async def _serve(
        self, request: web.Request, target: RequestTarget | None, warnings: list[str]
    ) -> web.StreamResponse:
        if request.path == "/version":
            return _respond(_VERSION, warnings)
        if target is None:
            raise errors.no_such_path()
        if request.method == "GET":
            if target.name:
                found = self._store.get(target.resource, target.namespace, target.name)
                return _respond(with_kind(target.resource, found), warnings)
            if _is_watch(request):
                return await self._watch(request, target)
            return _respond(self._list(request, target), warnings)
        return await self._write(request, target, warnings)

    def restore(self) -> None:
        """Remove all faults; delayed requests continue."""
        self.faults.clear()
        self._restored.set()
        self._restored = asyncio.Event()

    def _fault_of(self, call: str) -> Fault | None:
        found = (fault for pattern, fault in self.faults.items() if re.fullmatch(pattern, call))
        return next(found, None)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._restored.wait(), None if seconds == math.inf else seconds)

    async def _write(
        self, request: web.Request, target: RequestTarget, warnings: list[str]
    ) -> web.Response:
        operations, dry_run = self._operations, "dryRun" in request.query
        creates = (request.method, bool(target.name), target.subresource) == ("POST", False, "")
        if dry_run and not creates and request.method != "PATCH":
            raise errors.bad_request(
                "dryRun: the simulated API server can only create and patch in a dry run"
            )
        match request.method, bool(target.name), target.subresource:
            case "POST", False, "":
                created = await operations.create(
                    target, await _object(request), warnings, dry_run=dry_run
                )
                return _respond(created, warnings, 201)
            case "POST", True, "binding" if target.resource == PODS:
                await operations.bind(target, await _object(request), warnings)
                return _respond(_success(), warnings, 201)
            case "POST", True, "eviction" if target.resource == PODS:
                await operations.evict(target, await _object(request), warnings)
                return _respond(_success(), warnings, 201)
            case "PUT", True, "" | "status":
                obj = await _object(request)
                return _respond(await operations.edit(target, lambda _: obj, warnings), warnings)
            case "PATCH", True, "" | "status":
                patch = await _edit(request)
                edited = await operations.edit(target, patch, warnings, dry_run=dry_run)
                return _respond(edited, warnings)
            case "DELETE", True, "":
                deleted = await operations.delete(target, await _options(request), warnings)
                if target.resource != PODS:
                    deleted = _success(name=target.name, kind=target.resource.plural)
                return _respond(deleted, warnings)
            case _:
                raise errors.method_not_allowed()

    def _list(self, request: web.Request, target: RequestTarget) -> Json:
        """List a collection; ``limit`` is ignored, the whole list is one page."""
        resource, matches = target.resource, _selection(request)
        return {
            "kind": resource.list_kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(self._store.version)},
            "items": [
                {k: v for k, v in each.items() if k not in ("kind", "apiVersion")}
                for each in self._store.list(resource, target.namespace)
                if matches(each)
            ],
        }

    async def _watch(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        transport, version = request.transport, _version(request) or self._store.version
        if transport is None:
            raise ConnectionResetError("the client disconnected")
        queue: asyncio.Queue[ObjectWrite] = asyncio.Queue()
        expired: errors.StatusError | None = None
        try:
            for change in self._store.changes_since(target.resource, version):
                queue.put_nowait(change)
        except errors.StatusError as error:
            expired = error
        enqueue = queue.put_nowait  # one object, so that it can be unsubscribed
        self._store.subscribe(enqueue)
        self._watchers.add(transport)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            if expired is not None:  # an event, because the status code 200 is already sent
                await _write_line(response, error_line(expired.body()))
            else:
                await self._stream(request, response, target, queue)
            await response.write_eof()
        except ConnectionResetError:
            pass  # the client disconnected, or drop_watches reset the connection
        finally:
            self._watchers.discard(transport)
            self._store.unsubscribe(enqueue)
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        target: RequestTarget,
        queue: asyncio.Queue[ObjectWrite],
    ) -> None:
        """Write changes and bookmarks until the watch's timeout."""
        now = asyncio.get_running_loop().time
        end = now() + float(request.query.get("timeoutSeconds") or _DEFAULT_WATCH_S)
        bookmarks = request.query.get("allowWatchBookmarks") == "true"
        matches = _selection(request)
        while (left := end - now()) > 0:
            line = None
            try:
                within = min(left, self._bookmark_s) if bookmarks else left
                change = await asyncio.wait_for(queue.get(), within)
            except TimeoutError:
                if bookmarks:
                    line = bookmark(target.resource, self._store.version)
            else:
                if change.resource == target.resource:
                    line = line_of(change, namespace=target.namespace, matches=matches)
            await self._wait_out_fault(request)
            if line is not None and now() < end:
                await _write_line(response, line)

    async def _wait_out_fault(self, request: web.Request) -> None:
        fault = self._fault_of(_describe(request))
        if fault is not None:
            await self._wait(fault.delay_s)


def _verb(request: web.Request, target: RequestTarget | None) -> str:
    verb = _VERBS.get(request.method, "get")
    if verb == "get" and target is not None and not target.name:
        return "watch" if _is_watch(request) else "list"
    return verb


def _describe(request: web.Request) -> str:
    return f"{_verb(request, parse_path(request.path))} {request.path}"


def _record(request: web.Request, target: RequestTarget) -> RequestRecord:
    plural = target.resource.plural
    return RequestRecord(
        method=request.method,
        path=request.path,
        verb=_verb(request, target),
        group=target.resource.group,
        resource=f"{plural}/{target.subresource}" if target.subresource else plural,
        namespace=target.namespace,
        name=target.name,
        query=unquote(request.rel_url.raw_query_string),
        headers=request.headers,
    )


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch", "").lower() in ("true", "1")


def _version(request: web.Request) -> int:
    text = request.query.get("resourceVersion", "")
    if text and not (text.isascii() and text.isdigit()):
        raise errors.bad_request(f'resourceVersion: Invalid value: "{text}": must be a number')
    return int(text or 0)


def _selection(request: web.Request) -> Matches:
    return all_of(
        by_fields(request.query.get("fieldSelector", "")),
        by_labels(request.query.get("labelSelector", "")),
    )


async def _body(request: web.Request) -> Any:
    raw = await request.read()
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise errors.bad_request(f"the object provided is unrecognized: {error}") from error


async def _object(request: web.Request) -> Json:
    if request.content_type not in ("application/json", "application/octet-stream"):
        raise errors.unsupported_media_type(request.content_type)
    body = await _body(request)
    if not isinstance(body, dict):
        raise errors.bad_request("the object provided is unrecognized: must be a JSON object")
    return body


async def _options(request: web.Request) -> Json:
    options = await _object(request) if request.body_exists and await request.read() else {}
    grace = request.query.get("gracePeriodSeconds")
    return options | ({"gracePeriodSeconds": int(grace)} if grace else {})


async def _edit(request: web.Request) -> Edit:
    patch, kind = await _body(request), request.content_type
    match kind:
        case "application/json-patch+json":
            return lambda old: apply_json_patch(old, patch)
        case "application/merge-patch+json" | "application/strategic-merge-patch+json":
            return lambda old: apply_merge_patch(old, patch)
        case _:
            raise errors.unsupported_media_type(kind)


async def _faulty(request: web.Request, fault: Fault) -> web.StreamResponse:
    body = fault.body
    if body is None:
        reason = HTTPStatus(fault.status).phrase.replace(" ", "")
        message = fault.message.format(asked=_describe(request))
        body = json.dumps(errors.StatusError(fault.status, reason, message).body()).encode()
    if not fault.cut:
        headers = {"Retry-After": fault.retry_after} if fault.retry_after else None
        return web.Response(
            status=fault.status, body=body, headers=headers, content_type="application/json"
        )
    response = web.StreamResponse(status=fault.status)
    response.content_length = len(body) + 1
    await response.prepare(request)
    await response.write(body)
    if request.transport is not None:
        request.transport.abort()
    return response


async def _write_line(response: web.StreamResponse, line: Json) -> None:
    await response.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _success(**details: str) -> Json:
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return status | ({"details": details} if details else {})


def _respond(body: Json, warnings: list[str], status: int = 200) -> web.Response:
    response = web.json_response(body, status=status)
    for warning in dict.fromkeys(warnings):  # each one once, also if several webhooks send it
        response.headers.add("Warning", f"299 - {_quoted(warning)}")
    return response


def _quoted(text: str) -> str:
    printable = "".join(letter for letter in text if letter.isprintable())
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
