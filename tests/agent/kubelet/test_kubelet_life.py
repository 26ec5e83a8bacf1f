"""Which life of the kubelet is there, by its socket's file."""

import logging
from pathlib import Path

import pytest

from agent.kubelet.kubelet_life import KubeletLife


class Site:
    """A kubelet's folder; its socket is made anew whenever a kubelet starts."""

    def __init__(self, folder: Path, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO)
        self.log = log
        self.socket = folder / "kubelet.sock"
        self.life = KubeletLife(folder)

    def start(self) -> str:
        """Start a kubelet, and give the name of its life."""
        beside = self.socket.with_name("new")  # the old file is there until then: another inode
        beside.touch()
        beside.replace(self.socket)
        return self.life.current()

    @property
    def restarts(self) -> int:
        """How often the log tells of a restart."""
        return self.log.messages.count("the kubelet has restarted")


@pytest.fixture
def site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Site:
    return Site(tmp_path, caplog)


def test_before_any_kubelet_there_is_no_life_and_the_first_is_no_restart(site: Site) -> None:
    assert site.life.current() == ""
    assert site.start() == site.life.current() != ""
    assert site.restarts == 0


def test_each_kubelet_has_a_life_of_its_own_and_is_told_of_once(site: Site) -> None:
    first, second = site.start(), site.start()
    assert first != second == site.life.current()
    assert site.restarts == 1


def test_a_kubelet_that_is_down_keeps_its_life_until_another_comes(site: Site) -> None:
    first = site.start()
    site.socket.unlink()
    assert site.life.current() == first
    assert site.restarts == 0
    assert site.start() != first
    assert site.restarts == 1


def test_the_next_agent_names_the_same_life_alike(site: Site) -> None:
    assert site.start() == KubeletLife(site.socket.parent).current()
