"""Kubelets come and go, forget, and have their folders emptied; plugins need not notice."""

import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from common.errors import SettingsError
from proxy.program import Proxy
from simulator.kubelet.errors import PluginCallFailed, TurnedAway
from tests.proxy.conftest import MakePlugin
from tests.proxy.plugin import register
from tests.proxy.site import RESOURCE, Site, wait

pytestmark = pytest.mark.slow


def _is_known(running: Site) -> None:
    wait("the devices are known", lambda: running.healthy == 4)


def test_a_new_kubelet_is_registered_with_while_no_plugin_is_there(
    running: Site, plugin: MakePlugin
) -> None:
    first = plugin("a").register()
    _is_known(running)
    first.end()

    running.kubelet.restart()

    _is_known(running)
    names: list[str] = []
    calling = threading.Thread(target=lambda: names.append(running.allocate("d0").envs["BY"]))
    calling.start()
    plugin("b").register()
    calling.join()
    assert names == ["b"]


def test_a_kubelet_that_drops_the_proxy_is_registered_with_again(
    running: Site, plugin: MakePlugin
) -> None:
    """An agent of an earlier version registered directly, and ends (K18)."""
    direct = plugin("direct")
    shutil.move(running.plugin_dir / "direct.sock", running.kubelet_dir / "direct.sock")
    register(running.kubelet_dir, "direct.sock")
    _is_known(running)
    plugin("a").register()
    wait("the kubelet knows the newest", lambda: running.connections == 2)
    wait("both lists", lambda: len(running.lists) == 2)

    direct.end()

    wait("it is dropped", lambda: running.losses == 1)
    wait("it is registered again", lambda: running.connections == 3)
    wait("and serves", lambda: len(running.lists) == 3)
    assert running.allocate("d0").envs["BY"] == "a"


def test_the_kubelets_folder_may_be_emptied(running: Site, plugin: MakePlugin) -> None:
    """Its own socket too: it lives on, but nobody can register until the next."""
    plugin("a").register()
    _is_known(running)
    for each in running.kubelet_dir.iterdir():
        each.unlink()

    time.sleep(0.1)
    assert running.allocate("d0").envs["BY"] == "a"
    running.kubelet.restart()
    _is_known(running)
    assert running.allocate("d0").envs["BY"] == "a"


def test_a_socket_of_its_own_that_is_removed_is_made_again_without_a_gap(
    running: Site, plugin: MakePlugin
) -> None:
    plugin("a").register()
    _is_known(running)
    (socket,) = running.kubelet_dir.glob("proxy-*.sock")
    socket.unlink()

    wait("it is registered again", lambda: running.connections == 2)
    assert running.losses == 0
    assert running.allocate("d0").envs["BY"] == "a"


def test_the_plugins_folder_may_be_emptied(running: Site, plugin: MakePlugin) -> None:
    plugin("a").register()
    _is_known(running)
    for each in running.plugin_dir.iterdir():
        each.unlink()

    assert running.allocate("d0").envs["BY"] == "a"
    wait("plugins can register", (running.plugin_dir / "kubelet.sock").exists)
    plugin("b").register()
    assert running.allocate("d0").envs["BY"] == "b"
    assert running.losses == 0


def test_the_plugins_folder_may_be_made_anew(running: Site, plugin: MakePlugin) -> None:
    plugin("a").register()
    _is_known(running)
    running.plugin_dir.rename(running.plugin_dir.with_name("gone"))

    wait("plugins can register", (running.plugin_dir / "kubelet.sock").exists)
    plugin("b").register()
    assert running.allocate("d0").envs["BY"] == "b"


def test_a_proxy_may_wait_for_the_kubelets_folder(folder: Path) -> None:
    with Site(folder) as running:
        running.kubelet.kill()
        shutil.rmtree(running.kubelet_dir)
        made = running.plugin().wait_registered()
        time.sleep(0.2)
        running.kubelet.start()

        _is_known(running)
        assert running.allocate("d0").envs == {"BY": str(made.pid)}


def test_a_proxy_that_starts_again_has_plugins_register_and_leaves_no_socket(
    running: Site, plugin: MakePlugin
) -> None:
    made = plugin("a").register()
    _is_known(running)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(running.kubelet_dir / "proxy-dead0000.sock"))
    running.stop_proxy()
    wait("the kubelet sees its end", lambda: running.losses == 1)
    with pytest.raises((AssertionError, PluginCallFailed)):
        running.allocate("d0")

    running.start_proxy()
    made.register()

    wait("it is registered", lambda: running.connections == 2)
    assert running.allocate("d0").envs["BY"] == "a"
    assert len(list(running.kubelet_dir.glob("proxy-*.sock"))) == 1


def test_a_proxy_that_ends_completes_calls_in_progress(running: Site, plugin: MakePlugin) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(_context: object) -> str:
        asked.set()
        go_on.wait(5)
        return "in time"

    plugin("a").register().on_allocate = slowly
    _is_known(running)
    names: list[str] = []
    calling = threading.Thread(target=lambda: names.append(running.allocate("d0").envs["BY"]))
    calling.start()
    asked.wait(5)
    threading.Timer(0.3, go_on.set).start()
    running.stop_proxy()
    calling.join()

    assert names == ["in time"]


def test_resources_do_not_disturb_each_other(running: Site, plugin: MakePlugin) -> None:
    gone = plugin("a").register()
    plugin("b").register(resource="example.com/other")
    wait("both are known", lambda: running.connections == 2)
    wait("both lists", lambda: len(running.lists) == 2)
    gone.end()

    response = running.client("example.com/other").allocate(("d0",))

    assert response is not None
    assert response.envs["BY"] == "b"
    assert set(running.proxy.endpoints) == {RESOURCE, "example.com/other"}


def test_both_folders_may_not_be_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        Proxy(tmp_path, tmp_path / ".", patience=1)

    assert str(raised.value) == (
        f"plugin-dir: Invalid value: {tmp_path}: must not be the kubelet's own folder"
    )


def test_a_registration_is_answered_as_soon_as_the_kubelet_knows(
    running: Site, plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.registration._KUBELET_SECONDS", 60)

    plugin("a").register(within=10)
    plugin("b").register(within=10)

    _is_known(running)


def test_a_kubelet_that_drops_the_proxy_again_and_again_is_asked_with_growing_pauses(
    running: Site, plugin: MakePlugin
) -> None:
    def drop(_resource: str) -> None:
        raise TurnedAway("dropped")

    at = running.kubelet.settings.misbehavior.at
    at["devices"] = drop
    plugin("a").register()
    wait("it is dropped", lambda: running.losses > 3)
    before = running.connections

    time.sleep(1.5)  # in which a busy loop registers a hundred times

    assert running.connections - before < 15
    del at["devices"]
    _is_known(running)
