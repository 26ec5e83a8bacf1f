"""``kubectl gpu`` in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from view.terminal import commands


class Result:
    """What a command printed, and its exit code."""

    def __init__(self, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
        try:
            commands.main(words)
            self.code: object = 0
        except SystemExit as end:
            self.code = end.code
        self.out, self.err = capsys.readouterr()


Gpu = Callable[..., Result]


@pytest.fixture
def gpu_without_cluster(capsys: pytest.CaptureFixture[str]) -> Gpu:
    """Run ``kubectl gpu`` with these words."""
    return lambda *words: Result(words, capsys)


@pytest.fixture
def gpu(kubeconfig: Path, gpu_without_cluster: Gpu) -> Gpu:
    """Run ``kubectl gpu`` with these words, on the cluster of the module."""
    return gpu_without_cluster
