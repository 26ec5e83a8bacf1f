"""``python -m certs rotate`` and ``status`` as they are run, on a real HTTP API.

And under load: a webhook that serves what its Secret holds, a client that trusts what the
configurations say, and a rotation of everything meanwhile.
"""

import base64
import contextlib
import json
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from certs.__main__ import main
from certs.cluster import ApiCluster
from certs.issue import make_authority, sign_serving
from certs.objects import (
    Json,
    Kind,
    Purpose,
    new_secret,
    parse_configuration,
    with_authority,
    with_serving,
)
from certs.observing import observe
from certs.reading import read_certificate, write_bundle
from certs.replicas import Replicas
from certs.rotation import Done, Environment, rotate
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.certs.fakes import CA, TLS, configuration, settings
from tests.webhook.serving import Running, running

pytestmark = pytest.mark.slow

KINDS = (Kind.MUTATING, Kind.VALIDATING)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as found:
        found.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu"}},
            *(configuration(kind) for kind in KINDS),
        )
        yield found


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for(server.url), encoding="utf-8")
    return path


@pytest.fixture
def environment(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_TURNSTILE_CERTS_NAMESPACE", "gpu")
    monkeypatch.setenv("GPU_TURNSTILE_CERTS_KUBECONFIG", str(kubeconfig))


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines of the log since the last look; nothing else was printed."""
    printed = capsys.readouterr()
    assert printed.out == ""
    return [json.loads(line) for line in printed.err.splitlines()]


@pytest.mark.usefixtures("environment")
def test_rotate_installs_and_status_tells(
    capsys: pytest.CaptureFixture[str], server: ApiServer
) -> None:
    assert main(["rotate"]) == 0
    lines = logged(capsys)
    assert [(each["message"], each.get("reason")) for each in lines] == [
        ("new authority", "is not there"),
        ("trust changed", None),
        ("trust changed", None),
        ("new serving certificate", "is not there"),
        ("nothing to do", None),
    ]
    assert {each["level"] for each in lines} == {"info"}
    assert {each["configuration"] for each in lines[1:3]} == {
        f"{kind.value} gpu-turnstile" for kind in KINDS
    }
    assert main(["rotate", "--wait"]) == 0
    (line,) = logged(capsys)
    assert line["message"] == "nothing to do"
    assert datetime.fromisoformat(line["until"]) > datetime.now(UTC) + timedelta(days=50)
    before = len(server.requests)
    assert main(["status"]) == 0
    assert f"secret {TLS}" in capsys.readouterr().out
    assert main(["status", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(each["acceptsServing"] for each in found["configurations"])
    assert {each.verb for each in server.requests[before:]} == {"get"}


_SECONDS = "must be 0 to 604800 seconds"
_MISSING = (
    "mutatingwebhookconfiguration other: not found: apply it, "
    "or leave it out of --mutating and --validating"
)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["rotate", "--settle", "-1"], 1, f"settle: Invalid value: -1: {_SECONDS}"),
        (["rotate", "--timeout", "-1"], 1, f"timeout: Invalid value: -1: {_SECONDS}"),
        (
            ["rotate", "--wait", "--every", "0"],
            1,
            "every: Invalid value: 0: must be 1 to 604800 seconds, with --wait",
        ),
        (
            ["rotate", "--every", "60"],
            1,
            "every: Invalid value: 60: must be 1 to 604800 seconds, with --wait",
        ),
        (["rotate", "--replicas", "x"], 1, "replicas: Invalid value: 'x': must be HOST:PORT"),
        (["status", "--output", "xml"], 2, "Invalid value for '--output'"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_status(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert main(arguments) == status
    told = capsys.readouterr().err
    assert told.startswith(f"certs: error: {message}")
    assert told.count("\n") == 1


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("more", [[], ["--wait", "--timeout", "0"]], ids=["once", "waiting"])
def test_a_rotation_that_fails_ends_with_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main(["rotate", "--mutating", "other", *more]) == 1
    line = logged(capsys)[-1]
    assert (line["level"], line["message"]) == ("error", "rotation failed")
    assert line["reason"] == _MISSING


@pytest.mark.parametrize(("command", "count"), [("rotate", 15), ("status", 15), ("issue", 5)])
def test_every_flag_is_an_environment_variable(
    capsys: pytest.CaptureFixture[str], command: str, count: int
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    flags = set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)) - {"help"}
    assert len(flags) >= count
    text = "".join(text.split())
    for flag in flags:
        assert f"GPU_TURNSTILE_CERTS_{flag.replace('-', '_').upper()}" in text


_FIRST_RUN = ["new authority", "trust changed", "trust changed", "new serving certificate"]


def test_a_secret_that_is_deleted_is_made_again_until_it_is_told_to_end(
    server: ApiServer, kubeconfig: Path
) -> None:
    cluster = ApiCluster("gpu", kubeconfig)
    command = [sys.executable, "-m", "certs", "rotate", "--namespace", "gpu", "--wait"]
    command += ["--every", "1", "--component", "mine", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = _made(cluster, before=None)
            labels = first["metadata"]["labels"]
            assert labels["app.kubernetes.io/part-of"] == "gpu-turnstile"
            assert labels["app.kubernetes.io/component"] == "mine"
            with ApiClient(server.url) as admin:
                admin.delete(f"/api/v1/namespaces/gpu/secrets/{TLS}")
            _made(cluster, before=first)
            process.terminate()
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    told = [json.loads(line)["message"] for line in log.splitlines()]
    assert told[:5] == [*_FIRST_RUN, "nothing to do"]
    assert all(each != after for each, after in pairwise(told[4:])), "a line for each look"


def _made(cluster: ApiCluster, *, before: Json | None) -> Json:
    """Wait for the Secret of the webhook, another one than *before*."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = cluster.get_secret(TLS)
        if found is not None and (before is None or found["data"] != before["data"]):
            return found
        time.sleep(0.05)
    raise AssertionError("no certificate")


class Mount:
    """A directory as the kubelet mounts a Secret: all files change at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._count = 0

    def update(self, obj: Json) -> None:
        self._count += 1
        version = self.directory / f"..{self._count}"
        version.mkdir(parents=True)
        for key, value in obj["data"].items():
            (version / key).write_bytes(base64.b64decode(value))
        link = self.directory / "..new"
        link.symlink_to(version.name)
        link.replace(self.directory / "..data")
        for key in obj["data"]:
            if not (self.directory / key).is_symlink():
                (self.directory / key).symlink_to(Path("..data") / key)


class Client:
    """An API server: calls the webhook all the time, and trusts what it saw in a configuration."""

    def __init__(self, hook: Running, trusts: bytes) -> None:
        self._hook = hook
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._call)
        self.trusts = trusts
        self.calls = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def wait_for(self, calls: int) -> None:
        wanted = self.calls + calls
        self._hook.wait(lambda: self.calls >= wanted)

    def _call(self) -> None:
        while not self._over.is_set():
            context = ssl.create_default_context(cadata=self.trusts.decode("ascii"))
            try:
                with contextlib.closing(self._hook.http(context)) as connection:
                    connection.request("GET", "/healthz")
                    if connection.getresponse().status != 200:
                        self.failures.append("status")
            except OSError as error:
                self.failures.append(repr(error))
            self.calls += 1


def _trusted(api: ApiCluster) -> bytes:
    found = api.get_configuration(Kind.MUTATING, "gpu-turnstile")
    assert found is not None
    (bundle,) = set(parse_configuration(Kind.MUTATING, "gpu-turnstile", found).bundles)
    return write_bundle(bundle)


def _secret(api: ApiCluster) -> Json:
    found = api.get_secret(TLS)
    assert found is not None
    return found


@pytest.mark.timeout(180)
def test_a_rotation_of_everything_under_load_fails_no_request(
    server: ApiServer, tmp_path: Path, kubeconfig: Path
) -> None:
    """The webhook's own reload, real handshakes, and both late: API server and kubelet."""
    now = datetime.now(UTC)
    past = now - timedelta(days=70)  # of 90: all is due
    wanted = settings(dns=("localhost",), asks=True, ca_days=90)
    authority = make_authority(now=past, days=90)
    before = sign_serving(authority, wanted.subject, now=past)
    old = read_certificate(authority.certificate)
    server.apply(
        with_authority(new_secret(CA, "gpu", Purpose.AUTHORITY), authority),
        with_serving(new_secret(TLS, "gpu", Purpose.SERVING), before, trusted=(old,), now=past),
        *(_trusting(configuration(kind), authority.certificate) for kind in KINDS),
    )
    mount, logs = Mount(tmp_path / "mount"), tmp_path / "logs"
    logs.mkdir()
    (logs / "ca.crt").write_bytes(authority.certificate)
    api = ApiCluster("gpu", kubeconfig)
    mount.update(_secret(api))
    with (
        running(logs, logs, serving=mount.directory) as hook,
        Client(hook, authority.certificate) as client,
    ):
        passed = timedelta()

        def sleep(duration: timedelta) -> None:
            """What takes minutes in a cluster happens as soon as a rotation waits for it."""
            nonlocal passed
            passed += duration
            client.wait_for(2)
            client.trusts = _trusted(api)
            client.wait_for(2)
            mount.update(_secret(api))

        said: list[object] = []
        replicas = Replicas("127.0.0.1", hook.port, "localhost")
        env = Environment(
            lambda: datetime.now(UTC) + passed,
            sleep,
            replicas.served,
            lambda message, /, **fields: said.append((message, fields)),
        )
        done = rotate(api, wanted, env, until=now + timedelta(hours=3))
        client.trusts = _trusted(api)
        client.wait_for(20)
        observed = observe(api, wanted)
        assert replicas.served() == {"127.0.0.1": observed.serving.certificate}
    assert isinstance(done, Done)
    assert client.failures == []
    assert client.calls > 50
    new = observed.authority.certificate
    assert new not in (None, old)
    assert {bundle for each in observed.configurations for bundle in each.bundles} == {(new,)}
    assert "PRIVATE" not in repr(said)
    assert len(said) > 5


def _trusting(obj: Json, pem: bytes) -> Json:
    bundle = base64.b64encode(pem).decode()
    webhooks: list[dict[str, Any]] = obj["webhooks"]
    for each in webhooks:
        each["clientConfig"]["caBundle"] = bundle
    return obj
