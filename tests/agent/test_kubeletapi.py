"""The generated stubs are what their sources give."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import agent.kubeletapi

FOLDER = Path(agent.kubeletapi.__file__).parent
ROOT = FOLDER.parent.parent
STUBS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed: install the extra 'check'")
    into = tmp_path_factory.mktemp("stubs")
    sources = [str(each.relative_to(ROOT)) for each in sorted(FOLDER.glob("*.proto"))]
    outputs = [f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *outputs, *sources],
        cwd=ROOT,
        check=True,
    )
    return into / "agent" / "kubeletapi"


@pytest.mark.parametrize("api", ["deviceplugin", "podresources"])
@pytest.mark.parametrize("stub", STUBS)
def test_a_stub_is_what_make_proto_writes(generated: Path, api: str, stub: str) -> None:
    fresh, kept = generated / f"{api}{stub}", FOLDER / f"{api}{stub}"
    assert kept.read_text() == fresh.read_text(), f"{kept.name} is stale: run make proto"


def test_every_source_has_its_stubs_and_every_stub_its_source() -> None:
    sources = {each.stem for each in FOLDER.glob("*.proto")}
    expected = {f"{source}{stub}" for source in sources for stub in STUBS}
    assert {each.name for each in FOLDER.glob("*_pb2*")} == expected
