"""One replica put together in this process: threads, readiness, gunicorn's settings and hooks."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.serving.errors import SettingsError
from common.serving.tls import Certificate, Files
from placement.scoring import Policy
from scheduler import server as module
from scheduler.server import Extender, Master, serve
from scheduler.settings import Settings
from simulator.api.server import ApiServer, kubeconfig_for
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import NAMES, make_node
from tests.scheduler.test_server import certificates


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.apply(
            make_node("n1", 2),
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-turnstile"}},
        )
        yield running


@pytest.fixture
def settings(api: ApiServer, tmp_path: Path) -> Settings:
    certificates(tmp_path)
    (tmp_path / "kubeconfig").write_text(kubeconfig_for(api.url))
    return Settings(
        "127.0.0.1",
        8444,
        Files(tmp_path / "tls.crt", tmp_path / "tls.key"),
        NAMES,
        kubeconfig=tmp_path / "kubeconfig",
        policy=Policy.SPREAD,
        threads=4,
    )


def test_a_replica_is_ready_once_in_step_and_gives_the_lease_back(settings: Settings) -> None:
    extender = Extender(settings)
    assert extender.not_ready() == "not in step yet: nodes and pods are being listed"
    extender.start()
    eventually(lambda: not extender.not_ready(), "it is ready")
    eventually(lambda: not extender.leadership.not_binding(), "it binds")
    text = extender.metrics.render().decode()
    for line in ("leader 1.0", "in_step 1.0", "known_nodes 1.0", "known_pods 0.0"):
        assert f"gpu_turnstile_scheduler_{line}" in text
    extender.stop()
    assert extender.not_ready() == "shutting down"
    assert extender.leadership.not_binding() == "shutting down"
    assert not extender.leadership.leads


def test_the_worker_serves_the_replica_and_ends_it(settings: Settings) -> None:
    master = Master(settings, Certificate(settings.files))
    client = master.load().test_client()  # type: ignore[attr-defined]  # a Flask application
    eventually(lambda: client.get("/readyz").status_code == 200, "it is ready")
    master.cfg.worker_exit(None, None)
    assert client.get("/readyz").text == "shutting down\n"
    master.cfg.worker_int(None)


def test_gunicorn_is_given_one_worker_with_threads(settings: Settings) -> None:
    master = Master(settings, Certificate(settings.files))
    found = master.cfg.settings
    assert (found["workers"].value, found["threads"].value) == (1, 4)
    assert found["bind"].value == ["127.0.0.1:8444"]
    assert found["worker_class"].value == "gthread"


def test_each_connection_gets_the_certificate_of_now(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("scheduler.server.time.monotonic", lambda: now[0])
    master = Master(settings, Certificate(settings.files))
    first = master._context(None, None)
    assert isinstance(first, ssl.SSLContext)
    certificates(settings.files.cert.parent)
    assert master._context(None, None) is first  # looked at a moment ago
    now[0] += 2
    assert master._context(None, None) is not first


@pytest.mark.parametrize(("peer", "verified"), [({"subject": ()}, True), (None, False)])
def test_a_client_is_verified_by_its_certificate(
    monkeypatch: pytest.MonkeyPatch, peer: Any, *, verified: bool
) -> None:
    class Connection:
        def getpeercert(self) -> Any:
            return peer

    monkeypatch.setattr("scheduler.server.ssl.SSLSocket", Connection)
    assert module._is_verified({"gunicorn.socket": Connection()}) is verified
    assert module._is_verified({}) is False


def test_what_cannot_be_used_is_found_before_the_port_is_opened(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Master] = []

    def run(master: Master) -> None:
        ran.append(master)

    monkeypatch.setattr(Master, "run", run)
    serve(settings)
    assert len(ran) == 1
    settings.files.key.write_bytes(b"junk")
    with pytest.raises(SettingsError, match=r"is not a PEM private key$"):
        serve(settings)
    certificates(tmp_path)
    (tmp_path / "kubeconfig").write_text("[]")
    with pytest.raises(SettingsError, match=r"^--kubeconfig: cannot use "):
        serve(settings)
    assert len(ran) == 1
