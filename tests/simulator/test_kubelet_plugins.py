"""The simulated kubelet's registration service."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from tests.proxy.node import Kubelet
from tests.proxy.plugin import Plugin


def test_a_kubelet_dies_while_it_takes_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may end before the thread that reads the plugin's list has begun."""
    kubelet = Kubelet(tmp_path)
    kubelet.start()
    ended: list[BaseException | None] = []
    dying = threading.Thread(target=lambda: ended.append(_raised(kubelet.die)))
    start = threading.Thread.start

    def die_first(thread: threading.Thread) -> None:
        if thread.name.startswith("watch-"):
            start(dying)
            dying.join(0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", die_first)
    plugin = Plugin(tmp_path, "a")
    try:
        with suppress(grpc.RpcError):  # the kubelet that dies may not answer any more
            plugin.register()
        dying.join(10)
    finally:
        plugin.end()
    assert ended == [None]


def _raised(call: Callable[[], None]) -> BaseException | None:
    try:
        call()
    except RuntimeError as error:
        return error
    return None
