import threading
from pathlib import Path

import pytest

from agent.driver.folder import DriverFolder
from agent.driver.keeper import DriverKeeper
from tests.agent.driver.driver_host import DriverHost, expected, tree
from tests.agent.fakes import eventually
from tests.agent.threads import running


def test_the_folder_comes_late_follows_the_host_and_outlives_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.driver.keeper._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("agent.driver.keeper._RETRY_SECONDS", 0.01)
    host, link, stop = DriverHost(tmp_path / "host"), tmp_path / "driver/current", threading.Event()
    results: list[bool] = []
    keeper = DriverKeeper(
        host.host(),
        DriverFolder(link),
        idle=lambda: True,
        on_result=results.append,
    )
    with running(lambda: keeper.run(stop), stop.set):
        eventually(lambda: False in results, "it has looked")
        assert "there is no /etc/ld.so.cache" in keeper.problem
        assert not keeper.ready.is_set()
        host.install("535.1")
        assert keeper.ready.wait(30)
        eventually(lambda: results[-1], "all is right")
        host.install("550.2")
        eventually(lambda: tree(link) == expected("550.2"), "it follows")
        (host.root / "etc/ld.so.cache").unlink()
        eventually(lambda: bool(keeper.problem), "the host has no driver now")
    assert tree(link) == expected("550.2")
    assert DriverKeeper(host.host(), DriverFolder(link), idle=lambda: True).ready.is_set()
