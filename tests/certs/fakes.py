"""A cluster in memory that can be stopped at every call, and that checks trust at any time."""

import copy
import functools
import marshal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import jsonpatch

from certs.cluster import RotationApi
from certs.errors import CertsError, Conflict
from certs.loop import Environment, rotate
from certs.objects import (
    Json,
    ObservedObjects,
    Purpose,
    Served,
    WebhookKind,
    parse_configuration,
    parse_secret,
)
from certs.reading import Certificate, is_issued_by
from certs.replicas import Replicas
from certs.rotation import Done, Wait
from certs.settings import Settings

START = datetime(2030, 1, 1, tzinfo=UTC)
CA, TLS = "gpu-turnstile-webhook-ca", "gpu-turnstile-webhook-tls"
SETTLE, GRACE = timedelta(seconds=120), timedelta(seconds=600)
SECRETS = "/api/v1/namespaces/gpu/secrets"
MUTATING, VALIDATING = (
    f"/apis/admissionregistration.k8s.io/v1/{kind.value}s/gpu-turnstile" for kind in WebhookKind
)
PATCHES = [f"PATCH {kind.value}s/gpu-turnstile" for kind in WebhookKind]


def settings(**changed: Any) -> Settings:
    given: dict[str, Any] = {"namespace": "gpu", "service": "hook"}
    return Settings(**given | changed)


@dataclass(frozen=True)
class FakeReplicas(Replicas):
    shown: Served

    def fetch_served(self, server_name: str, *, timeout: float = 5.0) -> Served:
        assert server_name == "hook.gpu.svc"
        return self.shown


def configuration(kind: WebhookKind = WebhookKind.MUTATING, *, webhooks: int = 2) -> Json:
    capital = {WebhookKind.MUTATING: "Mutating", WebhookKind.VALIDATING: "Validating"}[kind]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{capital}WebhookConfiguration",
        "metadata": {"name": "gpu-turnstile"},
        "webhooks": [
            {
                "name": f"hook{index}.example.com",
                "clientConfig": {"service": {"name": "hook", "namespace": "gpu", "path": "/x"}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "rules": [],
            }
            for index in range(webhooks)
        ],
    }


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, duration: timedelta) -> None:
        self.now += duration


@dataclass
class FakeApi:
    """Keeps objects by path as the API server does: versions, conflicts, copies."""

    after: Callable[[], None]
    objects: dict[str, Json] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    version: int = 0

    def put(self, path: str, obj: Json) -> None:
        self.version += 1
        obj = _copy(obj)
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = obj

    def install(self) -> None:
        for kind, path in zip(WebhookKind, (MUTATING, VALIDATING), strict=True):
            self.put(path, configuration(kind))

    def request(self, method: str, path: str, body: Any) -> Json | None:
        if method == "GET":
            found: Json | None = _copy(self.objects.get(path))
            return found
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        if method == "PATCH":
            body = jsonpatch.apply_patch(self.objects[path], body)
        before = self.objects.get(path, {"metadata": {}})["metadata"].get("resourceVersion")
        if body["metadata"].get("resourceVersion") != before:
            raise Conflict("has changed")
        self.put(path, body)
        self.writes.append(f"{method} {'/'.join(path.split('/')[-2:])}")
        self.after()
        return None


def _copy(obj: Any) -> Any:
    """Copy JSON, many times as fast as ``deepcopy`` does."""
    return marshal.loads(marshal.dumps(obj, 2))  # from version 3 on what is twice stays one


class FakeCluster(RotationApi):
    """The API seen by one run: *gate* is called before every request, and after every write."""

    def __init__(self, settings: Settings, api: FakeApi, gate: Callable[[], None]) -> None:
        self.settings = settings
        self._api = api
        self._gate = gate

    def request(self, method: str, path: str, body: Json | list[Json] | None = None) -> Json | None:
        self._gate()
        response = self._api.request(method, path, body)
        if method != "GET":
            self._gate()
        return response


def _nothing() -> None:
    """Do nothing before a request."""


class World:
    """A cluster, its clock, and everything a client may have seen of it lately."""

    def __init__(self, wanted: Settings | None = None) -> None:
        self.clock = Clock()
        self.settings = wanted or settings()
        self.api = FakeApi(after=self.remember)
        self.api.install()
        self.logged: list[str] = []
        self.watched = False
        self._serving: list[tuple[datetime, Certificate]] = []
        self._bundles: dict[tuple[str, int], list[tuple[datetime, tuple[Certificate, ...]]]] = {}

    def log(self, message: str, /, **fields: object) -> None:
        self.logged.append(": ".join([message, *map(str, fields.values())]))

    def run(
        self, gate: Callable[[], None] = _nothing, *, until: datetime | None = None
    ) -> Wait | Done:
        env = Environment(self.clock, self.clock.sleep, self.log)
        return rotate(FakeCluster(self.settings, self.api, gate), env, until=until)

    def secret(self, name: str) -> Json:
        return self.api.objects[f"{SECRETS}/{name}"]

    def configurations(self) -> list[Json]:
        return [self.api.objects[each] for each in (MUTATING, VALIDATING)]

    def kill_after(self, writes: int) -> Callable[[], None]:
        """Make a gate that ends the process after so many writes."""
        last = len(self.api.writes) + writes

        def gate() -> None:
            if len(self.api.writes) >= last:
                raise Killed

        return gate

    def run_to_the_end(self) -> Done:
        for _ in range(20):
            found = self.run()
            if isinstance(found, Done):
                return found
            self.clock.now = found.until
        raise AssertionError(f"never done: {found}")

    def observed(self) -> ObservedObjects:
        return FakeCluster(self.settings, self.api, _nothing).observe()

    def serving(self) -> Certificate:
        found = self.observed().serving.certificate
        assert found is not None
        return found

    def authority(self) -> Certificate:
        found = self.observed().authority.certificate
        assert found is not None
        return found

    def remember(self) -> None:
        now = self.clock.now
        obj = self.api.objects.get(f"{SECRETS}/{TLS}")
        certificate = parse_secret(TLS, Purpose.SERVING, obj).certificate
        if certificate is not None and not self._is_last(self._serving, certificate):
            if self._serving and not self._serving[-1][1].is_valid_at(now):
                self._begin_anew()  # no client was served any more
            self._serving.append((now, certificate))
        for path in (MUTATING, VALIDATING):
            found = parse_configuration(WebhookKind.MUTATING, path, self.api.objects.get(path, {}))
            for index, bundle in enumerate(found.bundles):
                history = self._bundles.setdefault((path, index), [])
                if not self._is_last(history, bundle):
                    history.append((now, bundle))
        if self.watched:
            self.check()

    def forget(self) -> None:
        """Let time pass until only the current state is remembered; it is watched from now on."""
        self.clock.now += timedelta(hours=1)
        self._begin_anew()
        self.watched = True

    def _begin_anew(self) -> None:
        del self._serving[:-1]
        for history in self._bundles.values():
            del history[:-1]

    def check(self) -> None:
        """Every API server accepts every webhook, however late both are within what is allowed."""
        now = self.clock.now
        current = [each for each in _lately(self._serving, now - GRACE) if each.is_valid_at(now)]
        for history in self._bundles.values():
            for bundle in _lately(history, now - SETTLE):
                for certificate in current:
                    assert any(is_issued_by(certificate, each) for each in bundle), self.logged

    @staticmethod
    def _is_last(history: Sequence[tuple[datetime, Any]], value: object) -> bool:
        return bool(history) and history[-1][1] == value

    def accepted_now(self) -> bool:
        observed, now = self.observed(), self.clock.now
        serving = observed.serving.certificate
        return (
            serving is not None
            and serving.is_valid_at(now)
            and all(
                any(is_issued_by(serving, each) and each.is_valid_at(now) for each in bundle)
                for found in observed.configurations
                for bundle in found.bundles
            )
        )


def _lately(history: Sequence[tuple[datetime, Any]], since: datetime) -> Iterator[Any]:
    """Give each value that was current at some time after *since*."""
    for index, (_, value) in enumerate(history):
        ended = history[index + 1][0] if index + 1 < len(history) else None
        if ended is None or ended > since:
            yield value


@dataclass
class _Turn:
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: bool = False
    error: BaseException | None = None

    def gate(self) -> None:
        self.stopped.release()
        assert self.go.acquire(timeout=60)


def interleave(
    runs: Sequence[Callable[[Callable[[], None]], object]], schedule: Sequence[int]
) -> None:
    """Run several rotations alternately, call by call, by *schedule*; then each to its end."""
    turns = [_Turn() for _ in runs]

    def work(turn: _Turn, run: Callable[[Callable[[], None]], object]) -> None:
        turn.gate()
        try:
            run(turn.gate)
        except (CertsError, AssertionError, Killed) as error:
            turn.error = error
        turn.done = True
        turn.stopped.release()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(turns, runs, strict=True)]
    for thread, turn in zip(threads, turns, strict=True):
        thread.start()
        assert turn.stopped.acquire(timeout=60)
    fair = (choice // 50 for choice in range(100_000))  # each may finish what it is at
    for choice in chain(schedule, fair):
        alive = [each for each in turns if not each.done]
        if not alive:
            break
        turn = alive[choice % len(alive)]
        turn.go.release()
        assert turn.stopped.acquire(timeout=60)
    for thread in threads:
        thread.join(60)
    for turn in turns:
        if turn.error is not None:
            raise turn.error


def at(begin: Callable[[World], None]) -> World:
    return copy.deepcopy(_begun(begin))


@functools.cache
def _begun(begin: Callable[[World], None]) -> World:
    if begin is install:
        return World()
    world = World()
    assert isinstance(world.run(), Done)
    world.forget()
    begin(world)
    return world


def install(world: World) -> None:
    """Nothing is there yet."""


def installed(world: World) -> None:
    """Nothing is to do."""


def renew_serving(world: World) -> None:
    world.clock.now = world.serving().renew_at


def renew_both(world: World) -> None:
    world.clock.now = world.authority().renew_at - timedelta(days=1)
    world.run()  # after so long the serving certificate has ended
    world.forget()
    world.clock.now = world.authority().renew_at


def switch(world: World) -> None:
    renew_both(world)
    found = world.run()
    assert isinstance(found, Wait)
    world.clock.now = found.until


def drop(world: World) -> None:
    switch(world)
    found = world.run()
    assert isinstance(found, Wait)
    world.clock.now = found.until
