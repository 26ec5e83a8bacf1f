"""Fixtures: installations first, which work on the whole cluster, then one stage of processes."""

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.deploy.kustomize import kubectl as find_kubectl
from tests.e2e.cluster import Cluster, Kubectl
from tests.e2e.ground import Ground, choose_node, occupied
from tests.e2e.installation import Deploy, Deployed, deploying
from tests.e2e.settings import NotRequested, Settings, read_settings
from tests.e2e.stage import Stage

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that need the whole cluster first: a stage stays up until the run is over."""
    items.sort(key=lambda each: "whole_stage" in getattr(each, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash[_LINES]
    if lines:
        terminalreporter.section("real cluster")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    try:
        found = read_settings(os.environ, marks=str(pytestconfig.getoption("markexpr")))
    except NotRequested as reason:
        pytest.skip(str(reason))
    return found


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    return pytestconfig.stash[_LINES].append


@pytest.fixture(scope="session")
def kubectl(settings: Settings) -> Kubectl:
    return Kubectl(settings.kubectl or find_kubectl(), settings.kubeconfig)


@pytest.fixture(scope="session")
def node(settings: Settings) -> str:
    """The node to work on, which is this host."""
    if not (settings.plugin_dir / "kubelet.sock").exists():
        pytest.skip(f"must run on the node, as root: no kubelet.sock in {settings.plugin_dir}")
    cluster = Cluster(settings.kubeconfig, "default")
    try:
        chosen = choose_node(cluster.nodes(), settings.node, socket.gethostname())
    finally:
        cluster.close()
    if chosen is None:
        pytest.fail("no node is named as this host: set GPU_TURNSTILE_E2E_NODE")
    return chosen


@pytest.fixture(scope="module")
def cluster(settings: Settings) -> Cluster:
    """The cluster, with the name of a namespace that does not exist yet."""
    return _cluster(settings)


@pytest.fixture(scope="module")
def ground(
    settings: Settings, cluster: Cluster, node: str, report: Callable[[str], None]
) -> Iterator[Ground]:
    """The node, without an agent, and a namespace for the tests' pods."""
    with occupied(Ground(settings, cluster, node=node, report=report, enforced=False)) as ground:
        yield ground


@pytest.fixture(scope="module")
def deploy(
    settings: Settings, ground: Ground, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Deploy:
    """Installs what a module's tests want; removed in the end."""
    return partial(deploying, settings, kubectl, ground, tmp_path_factory.mktemp("deployed"))


@pytest.fixture
def deployed(whole: Deployed) -> Iterator[Deployed]:
    """What the module has installed, ready, with no pod of the tests on it."""
    yield whole
    whole.ground.clear()


@pytest.fixture(scope="session")
def whole_stage(
    settings: Settings,
    node: str,
    report: Callable[[str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("e2e")
    stage = Stage(settings, _cluster(settings), node=node, folder=folder, report=report)
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
    for each in (whole_stage.proxy, whole_stage.agent, whole_stage.webhook):
        if not each.alive:
            each.start()
    whole_stage.clear()
    assert failed == [], "the agent failed by a fault of its own"


@pytest.fixture
def admitting(stage: Stage) -> Stage:
    """The stage, with a webhook that the API server reaches."""
    if stage.no_webhook is not None:
        pytest.skip(f"the API server does not reach the webhook: {stage.no_webhook}")
    return stage


def _cluster(settings: Settings) -> Cluster:
    return Cluster(settings.kubeconfig, f"gpu-turnstile-e2e-{secrets.token_hex(3)}")
