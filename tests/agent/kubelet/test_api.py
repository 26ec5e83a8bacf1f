"""The generated stubs are what their sources give, in all three packages of them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import agent

pytestmark = pytest.mark.slow

ROOT = Path(next(iter(agent.__path__))).parent
STUBS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
SOURCES = sorted(
    each.relative_to(ROOT)
    for folder in ("agent", "common", "tests/runtime")
    for each in (ROOT / folder).rglob("*.proto")
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed: install the extra 'check'")
    into = tmp_path_factory.mktemp("stubs")
    outputs = [f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *outputs]
        + [str(each) for each in SOURCES],
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    return into


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_stubs_are_what_make_proto_writes(generated: Path, source: Path) -> None:
    for stub in STUBS:
        path = source.with_name(f"{source.stem}{stub}")
        fresh, kept = (generated / path).read_text(), (ROOT / path).read_text()
        assert kept == fresh, f"{path} is stale: run make proto"


def test_every_source_has_its_stubs_and_every_stub_its_source() -> None:
    assert len(SOURCES) == 8
    expected = {each.with_name(f"{each.stem}{stub}") for each in SOURCES for stub in STUBS}
    stubs = [each for top in ("agent", "common", "tests") for each in ROOT.glob(f"{top}/**/*_pb2*")]
    assert {each.relative_to(ROOT) for each in stubs if each.suffix != ".pyc"} == expected
