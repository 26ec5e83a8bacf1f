"""A node with a kubelet and a proxy, and plugins of this process that end with it."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.proxy.plugin import Plugin
from tests.proxy.site import Site

MakePlugin = Callable[..., Plugin]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    made = Path(tempfile.mkdtemp(prefix="gt-proxy-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def running(short_folder: Path) -> Iterator[Site]:
    with Site(short_folder) as made:
        yield made


@pytest.fixture
def plugin(running: Site) -> Iterator[MakePlugin]:
    """Makes plugins that serve, and are not registered yet."""
    made: list[Plugin] = []

    def make(name: str = "a", **how: object) -> Plugin:
        made.append(Plugin(running.plugin_dir, name, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.end()
