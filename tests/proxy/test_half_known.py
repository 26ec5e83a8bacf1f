"""A kubelet without a checkpoint learns two resources one by one: no container gets one alone."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from common.known_resources import HIDDEN_SECONDS, SHOWN_LATE
from common.kubelet_api import CHECKPOINT_FILE
from tests.proxy.conftest import MakePlugin
from tests.proxy.plugin import RESOURCE, WITHIN, Plugin
from tests.proxy.site import Site, wait

OTHER = "example.com/gadget"
BOTH = {RESOURCE: 4, OTHER: 4}
TOGETHER = f"{RESOURCE},{OTHER}"


def _pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {RESOURCE: "1", OTHER: "1"}}}],
        },
        "status": {"phase": "Pending"},
    }


def _admit(running: Site, name: str) -> tuple[set[str], str]:
    """Let a pod with both resources be admitted; return what it got, and why it was rejected."""
    running.kubelet.add_pods(_pod(name))
    wait("it is admitted or rejected", running.kubelet.idle)
    held = {each.resource for each in running.kubelet.held_devices() if each.pod_uid == name}
    return held, (running.kubelet.status(name) or {}).get("message", "")


def _register(first: Plugin, second: Plugin) -> None:
    first.register(resources=TOGETHER)
    second.register(resource=OTHER, resources=TOGETHER)


@pytest.fixture
def gate(running: Site, plugin: MakePlugin) -> Iterator[threading.Event]:
    """Two plugins, and a kubelet without checkpoint that handles one's lists when this is set."""
    _register(plugin("a"), plugin("b"))
    wait("both are known", lambda: running.kubelet.capacity()[1] == BOTH)
    running.kubelet.kill()
    (running.kubelet_dir / CHECKPOINT_FILE).unlink()
    opened = threading.Event()
    running.kubelet.settings.misbehavior.at["devices"] = lambda resource: (
        resource != OTHER or opened.wait(WITHIN)
    )
    yield opened
    opened.set()  # or the kubelet's thread would wait on


def test_no_container_gets_one_resource_while_the_kubelet_does_not_know_the_other(
    running: Site, gate: threading.Event
) -> None:
    running.kubelet.start()
    wait("it knows the first", lambda: RESOURCE in running.kubelet.capacity()[0])
    held, why = _admit(running, "early")
    assert held == set()
    assert "no healthy devices present" in why

    gate.set()
    wait("both are healthy", lambda: running.kubelet.capacity()[1] == BOTH)
    assert _admit(running, "late") == ({RESOURCE, OTHER}, "")


def test_a_proxy_that_knows_the_first_resource_only_waits_for_the_other(
    running: Site, plugin: MakePlugin
) -> None:
    plugin("a").register(resources=TOGETHER)
    wait("it knows the first", lambda: RESOURCE in running.kubelet.capacity()[0])
    assert _admit(running, "early")[0] == set()

    plugin("b").register(resource=OTHER, resources=TOGETHER)
    wait("both are healthy", lambda: running.kubelet.capacity()[1] == BOTH)
    assert _admit(running, "late") == ({RESOURCE, OTHER}, "")


def test_a_kubelet_that_has_a_checkpoint_gets_each_list_once(
    running: Site, plugin: MakePlugin
) -> None:
    _register(plugin("a"), plugin("b"))
    wait("both are known", lambda: running.kubelet.capacity()[1] == BOTH)
    before = len(running.lists)
    running.kubelet.restart()
    wait("both are known", lambda: running.kubelet.capacity()[1] == BOTH)
    assert running.lists[before:] == [(4, 4), (4, 4)]


def test_a_resource_that_the_kubelet_never_learns_hides_the_other_for_a_while_only(
    running: Site, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    running.kubelet.start()
    wait("it knows the first", lambda: running.kubelet.capacity()[0].get(RESOURCE) == 4)
    assert running.healthy == 0

    running.clock.advance(HIDDEN_SECONDS)

    running.wait_known()
    assert SHOWN_LATE in {each.getMessage() for each in caplog.records}
