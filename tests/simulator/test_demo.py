"""The demo as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _demo(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulator", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
    )


@pytest.mark.timeout(150)
def test_the_demo_tells_what_each_container_got_and_leaves_nothing_behind(tmp_path: Path) -> None:
    short = Path("/tmp") / f"d{os.getpid()}"  # unix sockets need a short path
    short.mkdir()
    try:
        done = _demo("--pods", "20", "--clients", "8", folder=short)
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(short.iterdir()) == []
    finally:
        for each in short.iterdir():
            each.unlink()
        short.rmdir()
    assert "two-cards" in done.stdout
    assert "more than one card must be a multiple of 100" in done.stdout
    assert "20 of 20 pods running" in done.stdout
    assert "Cards by their links: hgx-h100.yaml, 8 NVIDIA H100 80GB HBM3" in done.stdout
    for name, links in (("train-four", "NV18"), ("train-two", "NV18"), ("debug-one", "-")):
        (line,) = (each for each in done.stdout.splitlines() if each.startswith(name))
        assert line.split()[-2] == links, line
    assert "Nothing was wrong" in done.stdout


def test_a_folder_without_examples_is_one_clear_line(tmp_path: Path) -> None:
    done = _demo("--examples", str(tmp_path), folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}: no *.yaml files there\n"
