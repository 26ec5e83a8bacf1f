"""A node with a kubelet and a proxy."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.site import Site


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
