import functools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs import objects
from certs import rotation as phases
from certs.issue import Issued, issue
from certs.names import parse_subject
from certs.objects import WebhookKind
from simulator.api.server import ApiServer, kubeconfig_for
from tests.certs import fakes
from tests.certs.fakes import configuration


@pytest.fixture(scope="session")
def issued() -> Issued:
    """What ``certs issue --dns localhost --dns turnstile.example.svc --ip 127.0.0.1`` makes."""
    subject = parse_subject(["localhost", "turnstile.example.svc"], ["127.0.0.1"], 30)
    return issue(subject, now=datetime.now(UTC))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as found:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu"}}
        found.apply(namespace, *map(configuration, WebhookKind))
        yield found


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for(server.url), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def certificates_read_once() -> Iterator[None]:
    """Cache pure functions: the same certificates are read thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (objects, "read_bundle"),
            (objects, "read_pair"),
            (phases, "is_issued_by"),
            (fakes, "is_issued_by"),
        ):
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield
