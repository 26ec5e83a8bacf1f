"""The generated messages are what their sources give, in all three packages of them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import agent

pytestmark = pytest.mark.slow

ROOT = Path(next(iter(agent.__path__))).parent
MESSAGES = ("_pb2.py", "_pb2.pyi")
SOURCES = sorted(
    each.relative_to(ROOT)
    for folder in ("agent", "common", "tests/runtime")
    for each in (ROOT / folder).rglob("*.proto")
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed: install the extra 'check'")
    into = tmp_path_factory.mktemp("messages")
    outputs = [f"--{kind}_out={into}" for kind in ("python", "pyi")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *outputs]
        + [str(each) for each in SOURCES],
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    return into


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_messages_are_what_make_proto_writes(generated: Path, source: Path) -> None:
    for kind in MESSAGES:
        path = source.with_name(f"{source.stem}{kind}")
        fresh, kept = (generated / path).read_text(), (ROOT / path).read_text()
        assert kept == fresh, f"{path} is stale: run make proto"


def test_every_source_has_its_messages_and_all_messages_their_source() -> None:
    assert len(SOURCES) == 8
    expected = {each.with_name(f"{each.stem}{kind}") for each in SOURCES for kind in MESSAGES}
    found = [each for top in ("agent", "common", "tests") for each in ROOT.glob(f"{top}/**/*_pb2*")]
    assert {each.relative_to(ROOT) for each in found if each.suffix != ".pyc"} == expected
