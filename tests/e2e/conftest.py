"""One stage for the whole run; every test finds it empty and leaves it so."""

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.settings import NotAsked, Settings, read_settings
from tests.e2e.stage import Stage, choose_node

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash[_LINES]
    if lines:
        terminalreporter.section("real cluster")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    try:
        asked = read_settings(os.environ, marks=str(pytestconfig.getoption("markexpr")))
    except NotAsked as reason:
        pytest.skip(str(reason))
    if not (asked.plugin_dir / "kubelet.sock").exists():
        pytest.skip(f"must run on the node, as root: no kubelet.sock in {asked.plugin_dir}")
    return asked


@pytest.fixture(scope="session")
def whole_stage(
    settings: Settings, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    cluster = Cluster(settings.kubeconfig, f"gpu-turnstile-e2e-{secrets.token_hex(3)}")
    node = choose_node(cluster.nodes(), settings.node, socket.gethostname())
    if node is None:
        pytest.fail("no node is named as this host: set GPU_TURNSTILE_E2E_NODE")
    folder: Path = tmp_path_factory.mktemp("e2e")
    lines = pytestconfig.stash[_LINES]
    stage = Stage(settings, cluster, node=node, folder=folder, report=lines.append)
    try:
        stage.open()
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(whole_stage: Stage) -> Iterator[Stage]:
    """The stage with agent and webhook up and no pod on it."""
    whole_stage.wait_for_cards()
    whole_stage.agent.mark()
    yield whole_stage
    failed = whole_stage.agent.events("call failed")
    if not whole_stage.agent.alive:
        whole_stage.agent.start()
    if not whole_stage.webhook.alive:
        whole_stage.start_webhook()
    whole_stage.clear()
    assert failed == [], "the agent failed by a fault of its own"


@pytest.fixture
def admitting(stage: Stage) -> Stage:
    """The stage, with a webhook that the API server reaches."""
    if stage.no_webhook is not None:
        pytest.skip(f"the API server does not reach the webhook: {stage.no_webhook}")
    return stage
