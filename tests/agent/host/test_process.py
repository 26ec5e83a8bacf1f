"""Memory settings of the process, if the C library has them, and its limit of open files."""

import ctypes
import resource
from types import SimpleNamespace

import pytest

from agent.host import process
from agent.host.process import raise_limit
from tests.agent.builders import raising


def test_all_threads_share_two_arenas_where_the_library_knows_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: options.append(option))
    for each in (library, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, each=each: each)
        process.limit_arenas()
    assert options == [(-8, 2)]


def test_the_soft_limit_becomes_the_hard_one_unless_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 512)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert raise_limit() == 512
    assert limits == {resource.RLIMIT_NOFILE: (512, 512)}

    limits[resource.RLIMIT_NOFILE] = 64, -1
    monkeypatch.setattr(resource, "setrlimit", raising(ValueError("not allowed")))
    assert raise_limit() == 64
