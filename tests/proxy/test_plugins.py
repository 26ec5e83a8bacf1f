"""Plugins come, end, hang and are replaced behind a kubelet that does not notice it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from proxy import waiting
from simulator.kubelet.errors import PluginCallFailed
from tests.proxy.plugin import RESOURCE, WITHIN, Plugin
from tests.proxy.site import PATIENCE, Site, wait

UNAVAILABLE = f"the device plugin of {RESOURCE} has been unavailable for more than {PATIENCE:g} s"
SILENT = f"the device plugin of {RESOURCE} has not responded to Allocate within {PATIENCE:g} s"


def _begin_hung_call(running: Site, hung: Plugin) -> Future[str]:
    """Call a plugin that hangs, and let its patience end; return when the test call has begun."""
    call = running.begin_allocate()
    wait("it is called", lambda: hung.calls[-1] == "Allocate")
    running.clock.advance(PATIENCE)
    wait("it is tested", lambda: hung.calls[-1] == "GetDevicePluginOptions")
    return call


def test_calls_lists_and_options_pass(running: Site) -> None:
    made = running.serve()
    client = running.client()
    assert client.prefer(("d0", "d1"), (), 1) == ("d1",)
    assert running.allocate() == "a"
    client.pre_start(("d0",))
    assert running.options == {"pre_start": True, "preferred": True}
    assert made.calls == [
        "GetDevicePluginOptions",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ]
    made.offer(7)
    running.wait_known(7)


def test_a_plugin_that_registers_again_serves_by_its_newest_registration(running: Site) -> None:
    made = running.serve()
    made.register()
    assert running.allocate() == "a"
    assert len(running.service.roster.instances) == 1
    assert running.lists == [(4, 4)]


def test_a_plugin_without_devices_is_registered_as_well(running: Site) -> None:
    running.plugin(devices=0).register()
    wait("a list", lambda: running.lists)
    assert running.lists == [(0, 0)]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, "FailedPrecondition"),
        (grpc.StatusCode.UNAVAILABLE, "Unavailable"),  # as if it had ended, but it runs
    ],
)
def test_a_refusal_of_the_plugin_passes_unchanged_and_is_not_sent_again(
    running: Site, code: grpc.StatusCode, shown: str
) -> None:
    made = running.plugin().register()
    made.on_allocate = lambda context: context.abort(code, "no card fits")
    running.wait_known()
    call = running.begin_allocate()
    running.advance_until("the call ends", call.done)
    with pytest.raises(PluginCallFailed, match=f"code = {shown} desc = no card fits$"):
        call.result()
    assert made.calls.count("Allocate") == 1


def test_the_kubelet_does_not_notice_a_plugins_end_and_its_calls_wait_for_the_successor(
    running: Site,
) -> None:
    first = running.serve("a")
    first.end()
    calls = running.begin_waiting(20)
    running.plugin("b").register()
    assert [each.result(WITHIN) for each in calls] == ["b"] * 20
    assert running.losses == 0
    assert len(running.lists) == 1
    assert 0 < running.service.waits.longest() < PATIENCE


def test_a_list_of_an_older_plugin_is_not_passed_on(running: Site) -> None:
    older = running.plugin("a", devices=4).register()
    running.plugin("b", devices=5).register()
    running.wait_known(5)
    older.offer(3)
    running.plugin("c", devices=6).register()  # lists arrive in the order of their sending
    running.wait_known(6)
    assert running.lists[-2:] == [(5, 5), (6, 6)]


def test_after_patience_devices_are_unhealthy_and_calls_fail_with_a_reason(running: Site) -> None:
    first = running.serve("a")
    first.end()
    (call,) = running.begin_waiting()
    running.clock.advance(PATIENCE)
    with pytest.raises(PluginCallFailed, match=f"code = Unavailable desc = {UNAVAILABLE}$"):
        call.result(WITHIN)
    running.wait_known(0)
    assert running.lists[-1] == (4, 0)
    with pytest.raises(PluginCallFailed, match=UNAVAILABLE):  # at once, not after patience
        running.allocate()
    running.plugin("b").register()
    running.wait_known(4)
    assert running.allocate() == "b"


def test_an_ending_plugin_finishes_its_calls(running: Site) -> None:
    """Its stream ends first; the call in progress keeps its time."""
    made = running.serve("a")
    made.hang("Allocate")
    call = running.begin_allocate()
    wait("it is called", lambda: "Allocate" in made.calls)
    made.end_stream()
    wait("its stream has ended", lambda: not running.service.roster.instances)
    made.go_on()
    assert call.result(WITHIN) == "a"


def test_a_hung_plugin_is_skipped_until_it_responds(running: Site) -> None:
    running.plugin("a", devices=5).register()
    hung = running.plugin("b").register()
    running.wait_known(4)
    hung.hang()
    call = _begin_hung_call(running, hung)
    running.advance_until("the call ends", call.done)
    with pytest.raises(PluginCallFailed, match=SILENT):
        call.result()
    running.wait_known(5)
    assert running.allocate() == "a"
    hung.go_on()
    running.wait_known(4)
    assert running.allocate() == "b"


@pytest.mark.parametrize("errors", [0, 2], ids=["responds", "responds with errors first"])
def test_a_hung_plugin_alone_is_given_up_until_it_responds(running: Site, errors: int) -> None:
    hung = running.serve()
    hung.hang(*(["Allocate"] if errors else []))
    hung.fail_options = errors
    call = _begin_hung_call(running, hung)
    running.advance_until("the call ends", call.done)
    with pytest.raises(PluginCallFailed, match=SILENT):
        call.result()
    wait("its devices are unhealthy", lambda: (4, 0) in running.lists)
    hung.go_on()
    running.advance_until("it serves again", lambda: running.healthy == 4)
    assert running.allocate() == "a"


def test_a_plugin_that_hangs_in_one_call_only_keeps_its_devices_healthy(running: Site) -> None:
    hung = running.serve()
    hung.hang("Allocate")
    with pytest.raises(PluginCallFailed, match=SILENT):
        _begin_hung_call(running, hung).result(WITHIN)
    hung.go_on()
    assert running.allocate() == "a"
    assert running.lists == [(4, 4)]


def test_an_older_plugin_that_hangs_is_not_called_after_the_newest_has_ended(running: Site) -> None:
    older = running.plugin("a").register()
    newer = running.serve("b")
    older.hang()
    newer.end()
    (call,) = running.begin_waiting()
    running.plugin("c").register()
    assert call.result(WITHIN) == "c"
    assert "Allocate" not in older.calls


def test_waiting_and_calling_together_take_no_longer_than_patience(running: Site) -> None:
    """PreStartContainer has 30 s in all (K10)."""
    first = running.serve("a")
    first.end()
    (call,) = running.begin_waiting()
    running.clock.advance(PATIENCE - 1)
    hung = running.plugin("b")
    hung.hang("Allocate")
    hung.register()
    wait("it is called", lambda: "Allocate" in hung.calls)
    running.clock.advance(1)
    with pytest.raises(PluginCallFailed, match=SILENT):
        call.result(WITHIN)


def test_a_call_ends_after_patience_if_each_plugin_ends_in_it(running: Site) -> None:
    """What kills a plugin in a call may kill the next one, too."""

    def start() -> Plugin:
        made = running.plugin()
        made.hang("Allocate")
        return made.register()

    current = start()
    running.wait_known()
    call = running.begin_allocate()
    wait("it is called", lambda: "Allocate" in current.calls)
    running.clock.advance(PATIENCE / 2)  # so the call ends before the plugins are given up
    current.end()
    following = start()
    wait("the next is called", lambda: "Allocate" in following.calls)
    following.end()
    wait("the call waits", lambda: running.service.waits.waiting == 1)
    running.clock.advance(PATIENCE / 2)
    taken = f"is unavailable, and the call has taken {PATIENCE:g} s$"
    with pytest.raises(PluginCallFailed, match=taken):
        call.result(WITHIN)
    assert running.service.repeated == 2


def test_an_unreadable_list_ends_its_plugin_and_never_reaches_the_kubelet(running: Site) -> None:
    running.serve("a")
    broken = running.plugin("b")
    broken.lists = [b"\x0a\xff\xff\xff"]
    with pytest.raises(grpc.RpcError) as raised:
        broken.register()
    assert raised.value.details() == "b.sock: its list of devices cannot be read"
    assert running.allocate() == "a"
    assert len(running.lists) == 1


def test_changed_options_are_registered_with_the_kubelet(running: Site) -> None:
    running.serve("a")
    newer = running.plugin("b", devices=5)
    newer.options = b""
    newer.register()
    wait("the kubelet knows", lambda: not running.options["pre_start"])
    running.wait_known(5)
    assert running.allocate() == "b"


def test_the_number_of_calls_is_bounded(running: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_CALLS", 2)
    first = running.serve("a")
    first.end()
    calls = running.begin_waiting(2)
    with pytest.raises(
        PluginCallFailed, match=f"ResourceExhausted desc = 2 calls for {re.escape(RESOURCE)} "
    ):
        running.allocate()
    running.plugin("b").register()
    assert [each.result(WITHIN) for each in calls] == ["b", "b"]


def test_an_endpoint_is_a_file_name_and_not_a_uri(running: Site) -> None:
    running.plugin("a", endpoint="xA.sock", devices=9)
    running.plugin("b", endpoint="x%41.sock", devices=5).register()
    running.wait_known(5)
    assert running.allocate() == "b"


@contextmanager
def _process(folder: Path, endpoint: str, kill_at: str = "") -> Iterator["subprocess.Popen[str]"]:
    """Run a plugin in a process of its own, which a call may kill: ``plugin.py``."""
    command = [sys.executable, "-m", "tests.proxy.plugin", str(folder), endpoint, kill_at]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "method",
    ["GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate",
     "PreStartContainer"],
)  # fmt: skip
def test_a_plugin_killed_at_any_point_of_a_call_fails_no_pod(
    running: Site, method: str, moment: str
) -> None:
    """Either process may register first; the killed one never does if its registration kills it."""
    with (
        _process(running.plugin_dir, "killed.sock", f"{method}:{moment}"),
        _process(running.plugin_dir, "next.sock") as following,
    ):
        if method in {"GetDevicePluginOptions", "ListAndWatch"}:
            assert following.stdout is not None
            assert following.stdout.readline() == "registered\n"
        running.wait_known()
        client = running.client()
        assert client.prefer(("d0", "d1"), (), 1) == ("d1",)
        assert running.allocate() in {"killed.sock", "next.sock"}
        client.pre_start(("d0",))
        assert running.losses == 0
