"""The limit of open files."""

import resource

import pytest

from agent.host.open_files import raise_limit


def test_the_soft_limit_becomes_the_hard_one_unless_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 512)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert raise_limit() == 512
    assert limits == {resource.RLIMIT_NOFILE: (512, 512)}

    def refuses(_limit: int, _wanted: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    limits[resource.RLIMIT_NOFILE] = 64, -1
    monkeypatch.setattr(resource, "setrlimit", refuses)
    assert raise_limit() == 64
