"""The command line, on a real HTTP API, and a rotation of everything under load."""

import base64
import contextlib
import json
import ssl
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.__main__ import main
from certs.cluster import RotationApi
from certs.issue import make_authority, sign_serving
from certs.loop import Environment, rotate
from certs.names import CertificateSubject
from certs.objects import Json, Purpose, WebhookKind, changed, new_secret
from certs.reading import read_certificate, write_bundle
from certs.replicas import Replicas
from certs.rotation import Done
from certs.settings import SERVING_DAYS, Settings
from common.serving.tls import ServedCertificate
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.certs.fakes import CA, TLS, configuration, settings
from tests.common.serving.in_process import Load, MountedSecret, served
from webhook.server import WebhookServer
from webhook.settings import Settings as WebhookSettings

INSTALLED = [
    *("new authority", "trust changed", "trust changed", "new serving certificate"),
    "nothing to do",
]
_NAME = "must be a name that Kubernetes allows"
_SAME = "must not be --ca-secret: webhooks must not see the CA key"


@pytest.fixture
def environment(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_TURNSTILE_CERTS_NAMESPACE", "gpu")
    monkeypatch.setenv("GPU_TURNSTILE_CERTS_KUBECONFIG", str(kubeconfig))


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    printed = capsys.readouterr()
    assert printed.out == ""
    return [json.loads(line) for line in printed.err.splitlines()]


@pytest.mark.usefixtures("environment")
def test_rotate_installs_and_status_reports(
    capsys: pytest.CaptureFixture[str], server: ApiServer
) -> None:
    assert main(["rotate"]) == 0
    lines = logged(capsys)
    assert [each["message"] for each in lines] == INSTALLED
    assert [each.get("reason", "") for each in lines] == [
        "is not there",
        "",
        "",
        "is not there",
        "",
    ]
    assert {each["level"] for each in lines} == {"info"}
    assert {each["configuration"] for each in lines[1:3]} == {
        f"{kind.value} gpu-turnstile" for kind in WebhookKind
    }
    assert main(["rotate", "--wait"]) == 0
    (line,) = logged(capsys)
    assert line["message"] == "nothing to do"
    assert datetime.fromisoformat(line["until"]) > datetime.now(UTC) + timedelta(days=50)
    before = len(server.requests)
    assert main(["status"]) == 0
    table = capsys.readouterr().out
    assert f"secret {TLS}" in table
    assert "renewed from " in table
    assert table.count("  accepts  trusts ") == 2
    assert "\nnext: nothing to do, until: " in table
    assert {each.verb for each in server.requests[before:]} == {"get"}


@pytest.mark.usefixtures("environment")
def test_problems_are_reported_and_what_rotation_would_refuse(
    capsys: pytest.CaptureFixture[str], server: ApiServer
) -> None:
    assert main(["status"]) == 0
    table = capsys.readouterr().out
    assert table.count("  absent") == 2
    assert table.count("does not accept  trusts nobody") == 2
    assert table.endswith("next: new authority, reason: is not there\n")
    with ApiClient(server.url) as admin:
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        admin.delete(f"{path}/gpu-turnstile")
    server.apply(new_secret(TLS, Purpose.SERVING, namespace="gpu") | {"data": {"tls.crt": "YQ=="}})
    assert main(["status"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert f"secret {TLS} foreign tls.crt: not a PEM certificate" in table
    assert "validatingwebhookconfiguration gpu-turnstile absent" in table
    assert f"next: refused: secret {TLS}: belongs to another owner" in table
    assert main(["rotate"]) == 1
    line = logged(capsys)[-1]
    assert (line["level"], line["message"]) == ("error", "rotation failed")
    assert line["reason"].startswith(f"secret {TLS}: belongs to another owner")


@pytest.mark.usefixtures("environment")
def test_a_server_that_api_servers_do_not_call_gets_two_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rotate", "--secrets-only"]) == 0
    messages = [each["message"] for each in logged(capsys)]
    assert messages == [each for each in INSTALLED if each != "trust changed"]


def test_the_process_rotates_until_sigterm(kubeconfig: Path) -> None:
    command = [sys.executable, "-m", "certs", "rotate", "--namespace", "gpu", "--wait"]
    command += ["--every", "3600", "--component", "mine", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            messages = []
            while "nothing to do" not in messages:
                messages.append(json.loads(process.stderr.readline())["message"])
            process.terminate()
            assert process.wait(120) == 0
        finally:
            process.kill()
    assert messages == INSTALLED
    made = RotationApi(settings(kubeconfig=kubeconfig)).observe().serving.obj
    labels = made["metadata"]["labels"]
    assert labels["app.kubernetes.io/part-of"] == "gpu-turnstile"
    assert labels["app.kubernetes.io/component"] == "mine"


class Local(Settings):
    @property
    def subject(self) -> CertificateSubject:
        return CertificateSubject(("localhost",), (), SERVING_DAYS)


def _trusted(api: RotationApi) -> bytes:
    (bundle,) = set(api.observe().configurations[0].bundles)
    return write_bundle(bundle)


def test_a_rotation_of_everything_under_load_fails_no_request(
    server: ApiServer, tmp_path: Path, kubeconfig: Path
) -> None:
    """The webhook's own reload, real handshakes, and both late: API server and kubelet."""
    now = datetime.now(UTC)
    past = now - timedelta(days=70)  # of 90: all is due
    settle, grace = timedelta(seconds=30), timedelta(seconds=60)
    wanted = Local(namespace="gpu", ca_days=90, kubeconfig=kubeconfig, settle=settle, grace=grace)
    authority = make_authority(now=past, days=90)
    before = sign_serving(authority, wanted.subject, now=past)
    pem = authority.certificate
    held = {"tls.crt": before.certificate, "tls.key": before.key, "ca.crt": pem}
    server.apply(
        changed(
            new_secret(CA, Purpose.AUTHORITY, namespace="gpu"),
            {"ca.crt": pem, "ca.key": authority.key},
        ),
        changed(new_secret(TLS, Purpose.SERVING, namespace="gpu"), held, since=past),
        *(_trusting(configuration(kind), pem) for kind in WebhookKind),
    )
    mount, api = MountedSecret(tmp_path), RotationApi(wanted)

    def update_mount() -> None:
        data = api.observe().serving.obj["data"]
        mount.update({name: base64.b64decode(each) for name, each in data.items()})

    update_mount()
    serving = WebhookSettings(host="127.0.0.1", port=1, files=mount.files)
    webhook = WebhookServer(serving, ServedCertificate(mount.files))
    trusts, passed, logged = pem, timedelta(), list[object]()

    def call(_number: int) -> None:
        """As an API server, which trusts what it saw in a configuration."""
        context = ssl.create_default_context(cadata=trusts.decode("ascii"))
        with contextlib.closing(hook.http(context)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200

    with served(webhook, tmp_path) as hook, Load(call, clients=1) as load:

        def sleep(duration: timedelta) -> None:
            """What takes minutes in a cluster happens as soon as a rotation waits for it."""
            nonlocal passed, trusts
            passed += duration
            eventually(load.more(2), "calls", 120)
            trusts = _trusted(api)
            eventually(load.more(2), "calls", 120)
            update_mount()
            hook.advance(1)

        replicas = Replicas("127.0.0.1", hook.port)
        env = Environment(
            lambda: datetime.now(UTC) + passed,
            sleep,
            lambda message, /, **fields: logged.append((message, fields)),
        )
        checking = RotationApi(replace(wanted, replicas=replicas))
        assert isinstance(rotate(checking, env, until=now + timedelta(hours=3)), Done)
        trusts = _trusted(api)
        eventually(load.more(20), "calls", 120)
        observed = api.observe()
        served_now = replicas.fetch_served("localhost", timeout=60)
    assert served_now == {"127.0.0.1": observed.serving.certificate}
    assert load.failures == []
    assert len(load.seconds) > 30
    new = observed.authority.certificate
    assert new not in (None, read_certificate(pem))
    assert {bundle for each in observed.configurations for bundle in each.bundles} == {(new,)}
    assert "PRIVATE" not in repr(logged)
    assert len(logged) > 5


def _trusting(obj: Json, pem: bytes) -> Json:
    bundle = base64.b64encode(pem).decode()
    webhooks: list[dict[str, Any]] = obj["webhooks"]
    for each in webhooks:
        each["clientConfig"]["caBundle"] = bundle
    return obj


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


def test_issue_then_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["issue", "--out", out, "--dns", "localhost", "--ip", "::1", "--days", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ca.crt ca.key tls.crt tls.key, valid until ")
    assert main(["bundle", "--in", out]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert base64.b64decode(printed).startswith(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file or directory"), ("junk", "has no CA certificate")],
)
def test_an_invalid_bundle_is_refused_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    assert main(["bundle", "--in", str(tmp_path)]) == 1
    assert _error(capsys) == f"certs: error: {path}: {message}"


def test_issue_refuses_to_overwrite_until_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["issue", "--out", str(tmp_path), "--dns", "localhost"]
    assert main(arguments) == 0
    before = (tmp_path / "tls.key").read_bytes()
    capsys.readouterr()
    assert main(arguments) == 1
    assert _error(capsys) == (
        f"certs: error: {tmp_path} already has ca.crt, ca.key, tls.crt, tls.key: "
        "give --force to replace"
    )
    assert (tmp_path / "tls.key").read_bytes() == before
    assert main([*arguments, "--force"]) == 0
    assert (tmp_path / "tls.key").read_bytes() != before


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("", 2, "Missing command."),
        ("renew", 2, "No such command 'renew'."),
        ("issue --dns x", 2, "Missing option '--out'"),
        ("issue --out OUT --days x", 2, "Invalid value for '--days'"),
        ("issue --out OUT", 1, "dns: Invalid value: ''"),
        ("issue --out OUT --dns a_b", 1, "dns: Invalid value: 'a_b'"),
        ("issue --out OUT --ip 1", 1, "ip: Invalid value: '1'"),
        ("rotate --settle -1", 2, "Invalid value for '--settle'"),
        ("rotate --ca-days 89", 2, "Invalid value for '--ca-days'"),
        ("rotate --wait --every 0", 2, "Invalid value for '--every'"),
        ("rotate --every 60", 1, "every: Invalid value: 60: needs --wait"),
        ("rotate --replicas x", 1, "replicas: Invalid value: 'x': must be HOST:PORT"),
        ("rotate --service a_b", 1, f"service: Invalid value: 'a_b': {_NAME}"),
        ("rotate --ca-secret Aa", 1, f"ca-secret: Invalid value: 'Aa': {_NAME}"),
        ("rotate --component *.b.c", 1, f"component: Invalid value: '*.b.c': {_NAME}"),
        (f"rotate --tls-secret {CA}", 1, f"tls-secret: Invalid value: '{CA}': {_SAME}"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, status: int, message: str
) -> None:
    out = tmp_path / "out"
    assert main(arguments.replace("OUT", str(out)).split()) == status
    assert _error(capsys).startswith(f"certs: error: {message}")
    assert not out.exists()
