"""Kubelets restart, drop the proxy and have their folders emptied; plugins need not notice."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.known_resources import HIDDEN_SECONDS, SHOWN_LATE
from common.kubelet_api import CHECKPOINT_FILE
from simulator.kubelet.errors import PluginCallFailed, TurnedAway
from tests.proxy.plugin import RESOURCE, WITHIN, register
from tests.proxy.site import Site, wait


def test_the_proxy_registers_with_a_new_kubelet_without_a_plugin(running: Site) -> None:
    first = running.serve("a")
    first.end()
    running.kubelet.restart()
    running.wait_known()
    (call,) = running.begin_waiting()
    running.plugin("b").register()
    assert call.result(WITHIN) == "b"


def test_the_proxy_registers_again_with_a_kubelet_that_drops_it(running: Site) -> None:
    """An agent of an earlier version registered directly, and ends (K18)."""
    direct = running.plugin("direct")
    shutil.move(running.plugin_dir / "direct.sock", running.kubelet_dir / "direct.sock")
    register(running.kubelet_dir, "direct.sock")
    running.wait_known()
    running.plugin("a").register()
    wait("both lists", lambda: len(running.lists) == 2)
    direct.end()
    wait("it is dropped", lambda: running.losses == 1)
    wait("it is registered again", lambda: len(running.lists) == 3)
    assert running.connections == 3
    assert running.allocate() == "a"


def test_calls_are_served_although_the_kubelets_folder_is_emptied(running: Site) -> None:
    """Its own socket too: the kubelet runs on, but no plugin can register until the next one."""
    running.serve("a")
    for each in running.kubelet_dir.iterdir():
        each.unlink()
    wait("the proxy notices", lambda: not running.service.registered)
    assert running.allocate() == "a"
    running.kubelet.restart()
    running.wait_known()
    assert running.allocate() == "a"


def test_a_deleted_socket_of_the_proxy_is_replaced_without_a_gap(running: Site) -> None:
    running.serve("a")
    (socket,) = running.kubelet_dir.glob("proxy-*.sock")
    socket.unlink()
    wait("it is registered again", lambda: running.connections == 2)
    assert running.losses == 0
    assert running.allocate() == "a"


@pytest.mark.parametrize("happens", ["emptied", "moved"])
def test_the_plugins_folder_may_be_emptied_or_replaced(running: Site, happens: str) -> None:
    running.serve("a")
    if happens == "moved":
        running.plugin_dir.rename(running.plugin_dir.with_name("moved"))
    else:
        for each in running.plugin_dir.iterdir():
            each.unlink()
    assert running.allocate() == "a"
    socket = running.plugin_dir / "kubelet.sock"
    running.advance_until("plugins can register", socket.exists)
    running.plugin("b").register()
    assert running.allocate() == "b"
    assert running.losses == 0


def test_the_proxy_waits_for_the_kubelets_folder(running: Site) -> None:
    running.kubelet.kill()
    shutil.rmtree(running.kubelet_dir)
    made = running.plugin()
    registering = running.begin(made.register)
    missing = f"{RESOURCE} is not registered with the kubelet: no kubelet is running"
    wait("the plugin serves", lambda: running.proxy.readiness_problem() == missing)
    running.advance_until("the plugin gets its response", registering.done)
    running.kubelet.start()
    running.advance_until("the devices are known", lambda: running.healthy == 4)
    assert running.allocate() == "a"


def test_plugins_register_with_the_next_proxy_which_removes_old_sockets(running: Site) -> None:
    made = running.serve("a")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(running.kubelet_dir / "proxy-dead0000.sock"))
    running.stop_proxy()
    wait("the kubelet notices its end", lambda: running.losses == 1)
    with pytest.raises((AssertionError, PluginCallFailed)):
        running.allocate()
    running.start_proxy()
    made.register()
    wait("it is registered", lambda: running.connections == 2)
    assert running.allocate() == "a"
    assert len(list(running.kubelet_dir.glob("proxy-*.sock"))) == 1


def test_a_proxy_completes_calls_in_progress_before_it_ends(running: Site) -> None:
    made = running.serve("a")
    made.hang("Allocate")
    call = running.begin_allocate()
    wait("it is called", lambda: "Allocate" in made.calls)
    wait_for_end = running.terminate()
    socket = running.plugin_dir / "kubelet.sock"
    running.advance_until("plugins cannot register", lambda: not socket.exists())
    made.go_on()
    assert call.result(WITHIN) == "a"
    wait_for_end()


def test_a_plugin_gets_its_response_as_soon_as_the_kubelet_has_registered_it(
    running: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.registration._KUBELET_SECONDS", 3600)
    running.plugin("a").register()
    running.serve("b")


def test_pauses_grow_before_registrations_with_a_kubelet_that_drops_the_proxy(
    short_folder: Path,
) -> None:
    def drop(_resource: str) -> None:
        raise TurnedAway("dropped")

    with Site(short_folder, speed=1) as running:
        at = running.kubelet.settings.misbehavior.at
        at["devices"] = drop
        began = time.monotonic()
        running.plugin("a").register()
        wait("it is dropped", lambda: running.losses == 9)
        assert time.monotonic() - began > 0.005 * (2**7 - 1)  # the sum of the first seven pauses
        del at["devices"]
        running.wait_known()


OTHER = "example.com/gadget"
TOGETHER = f"{RESOURCE},{OTHER}"


def _admit(running: Site, name: str) -> tuple[set[str], str]:
    """Return what a pod with both resources got, and why it was rejected."""
    container = {"name": "main", "resources": {"limits": {RESOURCE: "1", OTHER: "1"}}}
    running.kubelet.add_pods(
        {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": "n1", "containers": [container]},
            "status": {"phase": "Pending"},
        }
    )
    wait("it is admitted or rejected", running.kubelet.idle)
    held = {each.resource for each in running.kubelet.held_devices() if each.pod_uid == name}
    return held, (running.kubelet.status(name) or {}).get("message", "")


def _wait_both(running: Site) -> None:
    wait("both are healthy", lambda: running.kubelet.capacity()[1] == {RESOURCE: 4, OTHER: 4})


@pytest.fixture
def gate(running: Site) -> Iterator[threading.Event]:
    """Two plugins, and a kubelet without checkpoint that handles one's lists when this is set."""
    running.plugin("a").register(resources=TOGETHER)
    running.plugin("b").register(resource=OTHER, resources=TOGETHER)
    _wait_both(running)
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
    _wait_both(running)
    assert _admit(running, "late") == ({RESOURCE, OTHER}, "")


def test_a_proxy_that_knows_the_first_resource_only_waits_for_the_other(running: Site) -> None:
    running.plugin("a").register(resources=TOGETHER)
    wait("it knows the first", lambda: RESOURCE in running.kubelet.capacity()[0])
    assert _admit(running, "early")[0] == set()
    running.plugin("b").register(resource=OTHER, resources=TOGETHER)
    _wait_both(running)
    assert _admit(running, "late") == ({RESOURCE, OTHER}, "")


def test_a_kubelet_that_has_a_checkpoint_gets_each_list_once(running: Site) -> None:
    running.plugin("a").register(resources=TOGETHER)
    running.plugin("b").register(resource=OTHER, resources=TOGETHER)
    _wait_both(running)
    before = len(running.lists)
    running.kubelet.restart()
    _wait_both(running)
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
