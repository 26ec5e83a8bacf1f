"""Which life of the kubelet is there, by its socket's file."""

import logging
from pathlib import Path

import pytest

from agent.kubelet.kubelet_life import KubeletLife


def test_each_kubelet_has_a_life_of_its_own_which_outlasts_it_until_another_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    socket, life = tmp_path / "kubelet.sock", KubeletLife(tmp_path)

    def start() -> str:
        """Start a kubelet, which makes its socket anew, and give the name of its life."""
        beside = tmp_path / "new"  # the old file is there until then: another inode
        beside.touch()
        beside.replace(socket)
        return life.current()

    assert life.current() == ""
    first = start()
    assert "" != first == life.current()
    assert caplog.messages == []  # the first is no restart
    second = start()
    assert first != second == life.current()
    socket.unlink()
    assert life.current() == second
    assert caplog.messages == ["the kubelet has restarted"]
    assert start() not in {first, second}
    assert KubeletLife(tmp_path).current() == life.current()  # the next agent names it alike
    assert caplog.messages == ["the kubelet has restarted"] * 2
