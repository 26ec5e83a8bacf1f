"""Plugins come, end, hang and are replaced behind a kubelet that does not see it."""

import os
import signal
import threading
import time

import grpc
import pytest

from proxy import resource as proxy_resource
from proxy import waiting as proxy_waiting
from simulator.kubelet.errors import PluginCallFailed
from tests.proxy.conftest import PATIENCE, MakePlugin
from tests.proxy.site import RESOURCE, Site, wait

pytestmark = pytest.mark.slow

AWAY = f"the device plugin of {RESOURCE} has been unavailable for more than {PATIENCE:g} s"


def _by(running: Site) -> str:
    return running.allocate("d0").envs["BY"]


def _is_known(running: Site, devices: int = 4) -> None:
    wait(f"{devices} devices are known", lambda: running.healthy == devices)


def test_calls_lists_and_options_pass(running: Site, plugin: MakePlugin) -> None:
    made = plugin().register()
    _is_known(running)

    client = running.client()
    assert client.prefer(("d0", "d1"), (), 1) == ("d1",)
    assert _by(running) == "a"
    client.pre_start(("d0",))

    assert running.options == {"pre_start": True, "preferred": True}
    assert made.asked == [
        "GetDevicePluginOptions",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ]
    made.offer(7)
    _is_known(running, 7)


def test_a_plugin_without_devices_is_registered_as_well(running: Site, plugin: MakePlugin) -> None:
    plugin(devices=0).register()

    wait("a list", lambda: running.lists)
    assert running.lists == [(0, 0)]


def test_a_refusal_of_the_plugin_passes_as_it_is(running: Site, plugin: MakePlugin) -> None:
    def refuse(context: grpc.ServicerContext) -> str:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no card fits")
        raise AssertionError

    plugin().register().on_allocate = refuse
    _is_known(running)

    with pytest.raises(PluginCallFailed, match=r"code = FailedPrecondition desc = no card fits$"):
        _by(running)


def test_the_end_of_a_plugin_is_not_seen_and_its_successor_is_asked(
    running: Site, plugin: MakePlugin
) -> None:
    first = plugin("a").register()
    _is_known(running)
    first.end()
    late = threading.Timer(0.5, lambda: plugin("b").register())
    late.start()

    assert _by(running) == "b"

    late.join()
    assert running.losses == 0
    assert len(running.lists) == 1


@pytest.mark.parametrize("patience", [PATIENCE])
def test_calls_wait_beside_each_other(running: Site, plugin: MakePlugin) -> None:
    first = plugin("a").register()
    _is_known(running)
    first.end()
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(_by(running))) for _ in range(20)]
    for each in threads:
        each.start()
    calls = running.proxy.endpoints[RESOURCE].resource
    wait("all wait", lambda: calls.waits.waiting == 20)
    plugin("b").register()
    for each in threads:
        each.join()

    assert names == ["b"] * 20
    assert 0 < calls.waits.longest() < PATIENCE


def test_a_list_of_an_older_plugin_is_not_passed_on(running: Site, plugin: MakePlugin) -> None:
    older = plugin("a", devices=4).register()
    plugin("b", devices=5).register()
    _is_known(running, 5)

    older.offer(3)
    plugin(
        "c", devices=6, endpoint="c.sock"
    ).register()  # lists arrive in the order of their sending

    _is_known(running, 6)
    assert running.lists[-2:] == [(5, 5), (6, 6)]


@pytest.mark.parametrize("patience", [PATIENCE])
def test_after_the_timeout_devices_are_unhealthy_and_calls_fail_with_a_reason(
    running: Site, plugin: MakePlugin
) -> None:
    first = plugin("a").register()
    _is_known(running)
    first.end()

    with pytest.raises(PluginCallFailed, match=f"code = Unavailable desc = {AWAY}$"):
        _by(running)
    _is_known(running, 0)
    assert running.lists[-1] == (4, 0)
    began = time.monotonic()
    with pytest.raises(PluginCallFailed, match=AWAY):
        _by(running)
    assert time.monotonic() - began < PATIENCE / 2, "nobody waits once all is given up"

    plugin("b").register()
    _is_known(running, 4)
    assert _by(running) == "b"


def test_a_plugin_that_answers_unavailable_itself_is_not_asked_again(
    running: Site, plugin: MakePlugin
) -> None:
    def refuse(context: grpc.ServicerContext) -> str:
        context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        raise AssertionError

    made = plugin("a").register()
    made.on_allocate = refuse
    _is_known(running)

    with pytest.raises(PluginCallFailed, match=r"code = Unavailable desc = busy$"):
        _by(running)

    assert made.asked.count("Allocate") == 1


@pytest.mark.parametrize("patience", [PATIENCE])
def test_a_call_that_an_ending_plugin_finishes_is_answered_by_it(
    running: Site, plugin: MakePlugin
) -> None:
    """Its stream ends first, as ours does it; the call under way keeps its time."""
    asked, go_on = threading.Event(), threading.Event()

    def slowly(_context: grpc.ServicerContext) -> str:
        asked.set()
        go_on.wait(PATIENCE)
        return "a, late"

    made = plugin("a").register()
    made.on_allocate = slowly
    _is_known(running)
    names: list[str] = []
    calling = threading.Thread(target=lambda: names.append(_by(running)))
    calling.start()
    asked.wait(PATIENCE)
    made.end_stream()
    wait(
        "its stream has ended",
        lambda: not running.proxy.endpoints[RESOURCE].resource.roster.instances,
    )
    go_on.set()
    calling.join()

    assert names == ["a, late"]


@pytest.mark.parametrize("patience", [PATIENCE])
def test_a_stopped_plugin_is_skipped_until_it_responds(running: Site, plugin: MakePlugin) -> None:
    """SIGSTOP: its stream stays open, and nothing is answered."""
    plugin("a", devices=5).register()
    stopped = running.plugin("b.sock").wait_registered()
    _is_known(running, 4)
    stopped.send(signal.SIGSTOP)

    began = time.monotonic()
    with pytest.raises(
        PluginCallFailed, match=f"{RESOURCE} has not responded to Allocate within {PATIENCE:g} s"
    ):
        _by(running)
    assert time.monotonic() - began >= PATIENCE - 0.1

    _is_known(running, 5)
    assert _by(running) == "a"
    stopped.send(signal.SIGCONT)
    _is_known(running, 4)
    assert running.allocate("d0").envs == {"BY": str(stopped.pid)}


@pytest.mark.parametrize("patience", [PATIENCE])
def test_a_stopped_plugin_alone_is_given_up_and_counted_on_again(
    running: Site,
) -> None:
    stopped = running.served()
    stopped.send(signal.SIGSTOP)
    with pytest.raises(PluginCallFailed, match="has not responded"):
        running.allocate("d0")
    _is_known(running, 0)

    stopped.send(signal.SIGCONT)

    _is_known(running, 4)
    assert running.allocate("d0").envs == {"BY": str(stopped.pid)}


def test_a_list_that_cannot_be_read_ends_its_plugin_and_never_reaches_the_kubelet(
    running: Site, plugin: MakePlugin
) -> None:
    first = plugin("a").register()
    _is_known(running)
    broken = plugin("b")
    broken.lists = [b"\x0a\xff\xff\xff"]

    with pytest.raises(grpc.RpcError) as raised:
        broken.register()

    assert raised.value.details() == "b.sock: its list of devices cannot be read"
    assert _by(running) == first.name
    assert len(running.lists) == 1


def test_changed_options_are_registered_with_the_kubelet(running: Site, plugin: MakePlugin) -> None:
    plugin("a").register()
    _is_known(running)
    newer = plugin("b", devices=5)
    newer.options = b""

    newer.register()

    wait("the kubelet knows", lambda: not running.options["pre_start"])
    _is_known(running, 5)
    assert _by(running) == "b"


def test_the_kubelets_refusal_reaches_the_plugin(running: Site, plugin: MakePlugin) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        plugin("a").register(resource="no-domain")

    assert raised.value.code() is grpc.StatusCode.UNKNOWN
    assert 'the ResourceName "no-domain" is invalid' in str(raised.value.details())


def test_no_more_calls_are_kept_than_a_bound(
    running: Site, plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_waiting, "MOST_CALLS", 2)
    first = plugin("a").register()
    _is_known(running)
    first.end()
    threads = [threading.Thread(target=_by, args=(running,)) for _ in range(2)]
    for each in threads:
        each.start()
    wait("both wait", lambda: running.proxy.endpoints[RESOURCE].resource.waits.waiting == 2)

    with pytest.raises(
        PluginCallFailed, match=r"ResourceExhausted desc = 2 calls for example.com/widget"
    ):
        _by(running)

    plugin("b").register()
    for each in threads:
        each.join()


def test_no_more_plugins_of_a_resource_are_followed_than_a_bound(
    running: Site, plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_resource, "MOST_PLUGINS", 1)
    plugin("a").register()

    with pytest.raises(grpc.RpcError) as raised:
        plugin("b").register()

    assert raised.value.details() == f"1 plugins of {RESOURCE} are registered already"


def test_a_plugin_killed_in_every_call_does_not_block_the_kubelet_forever(
    running: Site, plugin: MakePlugin
) -> None:
    """Whatever it is that kills it comes again whenever it is asked."""
    over = threading.Event()

    def restart() -> None:
        while not over.is_set():
            made = running.plugin("plugin.sock", "SIGKILL:Allocate:before")
            while made.alive and not over.wait(0.02):
                pass

    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        _is_known(running)
        with pytest.raises(PluginCallFailed):
            running.allocate("d0")
    finally:
        over.set()
        restarting.join()
    assert running.proxy.endpoints[RESOURCE].resource.repeated > 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "method",
    ["GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate",
     "PreStartContainer"],
)  # fmt: skip
def test_a_plugin_killed_at_any_point_of_a_call_fails_no_pod(
    running: Site, method: str, moment: str
) -> None:
    running.plugin("dying.sock", f"SIGKILL:{method}:{moment}")
    time.sleep(0)  # the next may overtake it: both orders are right
    if method not in ("GetDevicePluginOptions", "ListAndWatch"):
        _is_known(running)
        running.plugin("next.sock")
    else:
        running.plugin("next.sock").wait_registered()
        _is_known(running)

    client = running.client()
    assert client.prefer(("d0", "d1"), (), 1) == ("d1",)
    on_allocate = running.allocate("d0")
    client.pre_start(("d0",))

    assert int(on_allocate.envs["BY"]) != os.getpid()
    assert running.losses == 0


@pytest.mark.parametrize("patience", [PATIENCE])
def test_a_plugin_that_answers_its_options_with_an_error_is_used_again(
    running: Site, plugin: MakePlugin
) -> None:
    """One question after a call that was left unanswered is not its last chance."""
    hung = threading.Event()

    def hang(_context: object) -> str:
        hung.wait(PATIENCE + 5)
        return "late"

    made = plugin("a").register()
    made.on_allocate = hang
    made.fail_options = 2
    _is_known(running)
    with pytest.raises(PluginCallFailed, match="has not responded"):
        _by(running)
    hung.set()
    made.on_allocate = lambda _context: "again"

    wait("it is asked", lambda: _responds(running) == "again")
    _is_known(running)


def _responds(running: Site) -> str:
    try:
        return _by(running)
    except PluginCallFailed:
        return ""


@pytest.mark.parametrize("patience", [PATIENCE])
def test_a_call_that_hangs_in_a_living_plugin_leaves_its_devices_healthy(
    running: Site, plugin: MakePlugin
) -> None:
    hung = threading.Event()

    def hang(_context: object) -> str:
        hung.wait(PATIENCE + 5)
        return "late"

    plugin("a").register().on_allocate = hang
    _is_known(running)
    with pytest.raises(PluginCallFailed, match="has not responded"):
        _by(running)
    hung.set()

    assert running.lists == [(4, 4)]


def test_an_older_plugin_that_has_hung_meanwhile_is_not_asked_in_the_gap(
    running: Site, plugin: MakePlugin
) -> None:
    stopped = running.plugin("a.sock").wait_registered()
    newer = plugin("b").register()
    _is_known(running)
    stopped.send(signal.SIGSTOP)
    newer.end()
    late = threading.Timer(0.5, lambda: plugin("c").register())
    late.start()

    assert _by(running) == "c"

    late.join()
    stopped.send(signal.SIGCONT)


@pytest.mark.parametrize("patience", [PATIENCE])
def test_waiting_and_calling_together_take_no_longer_than_the_timeout(
    running: Site, plugin: MakePlugin
) -> None:
    """PreStartContainer has 30 s in all (K10)."""
    first = plugin("a").register()
    _is_known(running)
    first.end()

    def hang(_context: object) -> str:
        time.sleep(PATIENCE)
        return "late"

    def come_and_hang() -> None:
        made = plugin("b")
        made.on_allocate = hang
        made.register()

    late = threading.Timer(PATIENCE - 1, come_and_hang)
    late.start()
    began = time.monotonic()
    with pytest.raises(PluginCallFailed):
        _by(running)

    assert time.monotonic() - began < PATIENCE + 1.5
    late.join()


def test_an_endpoint_is_a_file_name_and_no_uri(running: Site, plugin: MakePlugin) -> None:
    plugin("a", endpoint="xA.sock", devices=9)
    plugin("b", endpoint="x%41.sock", devices=5).register()

    _is_known(running, 5)
    assert _by(running) == "b"
