"""The bench of others' libraries: what is not there is skipped, what disagrees is wrong."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agent.allocator.grants import ContainerEdits
from bench import confined, libraries, limits
from tests.agent.nvml_node import NvmlScript, build

WHOLE = limits.Container(100, {})


def rows(**environment: Path) -> list[tuple[str, str]]:
    (table,) = libraries.run({name: str(path) for name, path in environment.items()}).tables
    return [(str(each[2]), str(each[3])) for each in table.rows]


def test_what_is_not_named_is_skipped_in_words() -> None:
    assert rows() == [
        (f"{variable} is not set: {get}", "skipped")
        for variable, (_, _, get) in libraries.VARIABLES.items()
    ]


@pytest.mark.slow
def test_a_library_is_looked_at_through_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in of NVML takes the place of the mock, and then of a library without a driver."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "one.yaml").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to(build() / "libnvidia-ml.so.1")
    node = NvmlScript(tmp_path / "script")
    monkeypatch.setenv("NVML_STUB", str(node.path))
    assert rows(GPU_TURNSTILE_MOCK_NVML=tmp_path)[0] == (
        "2 x NVIDIA A100-SXM4-80GB, 0 left out, all linked",
        "right",
    )
    node.fail("nvmlInitWithFlags", 9)
    found = rows(GPU_TURNSTILE_NVML=tmp_path)[1]
    assert found[1] == "right"
    assert "Driver Not Loaded" in found[0]


def test_limits_are_skipped_in_words_where_they_cannot_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libvgpu.so").write_text("of another time")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = rows(GPU_TURNSTILE_HAMI_CORE=tmp_path, GPU_TURNSTILE_VCUDA=tmp_path)[2:]
    why = "no mount namespace: [Errno 2] No such file or directory: 'unshare'", "skipped"
    vcuda = f"{tmp_path}/libcuda-control.so is not there", "wrong"
    assert found == [("too old", "wrong"), why, why, vcuda]
    monkeypatch.setattr(confined, "check", lambda: None)
    assert rows(GPU_TURNSTILE_HAMI_CORE=tmp_path)[3] == (
        "there is no C compiler for the stand-in of a driver",
        "skipped",
    )


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (("0: 512 MiB", "busy 40%", "limit 30"), True),
        (("0: 512 MiB", "busy 20%", "limit 30"), True),
        (("0: 512 MiB", "busy 41%", "limit 30"), False),
        (("0: 512 MiB", "limit 30"), False),
        (("0: 512 MiB", "busy 30%"), False),
    ],
)
def test_what_is_said_must_be_the_same_and_the_card_about_as_busy(
    found: tuple[str, ...], *, right: bool
) -> None:
    case = libraries.Case("a share", WHOLE, ("0: 512 MiB", "limit 30"), 30)
    assert case.agrees(found) is right
    assert str(case) == "0: 512 MiB; limit 30; busy 30% ± 10"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The stand-in for a driver, where containers can be confined."""
    folder = tmp_path / "driver"
    try:
        confined.check()
        limits.build_driver(folder)
    except confined.NotHere as error:
        pytest.skip(str(error))
    return folder


@pytest.mark.slow
def test_a_library_that_limits_nothing_is_wrong(
    tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in itself takes the places of the libraries, behind which it should be."""
    for name in ("BY_HAMI", "BY_VCUDA"):
        cases = [
            replace(each, container=replace(each.container, spin=0))
            for each in getattr(libraries, name)
        ]
        monkeypatch.setattr(libraries, name, cases)
    library = (driver / "libcuda.so.1").read_bytes()
    (tmp_path / "libvgpu.so").write_bytes(library + b"postinit lock")
    (tmp_path / "libcuda-control.so").write_bytes(library)
    shutil.copy("/bin/true", tmp_path / "gpu-client")
    free = "0000:01:00.0: 4096 MiB, half given, all given"
    others = (
        "0000:02:00.0: 16384 MiB, half given, all given; "
        "0000:03:00.0: 8192 MiB, half given, all given"
    )
    assert rows(GPU_TURNSTILE_HAMI_CORE=tmp_path, GPU_TURNSTILE_VCUDA=tmp_path)[2:] == [
        ("new enough", "right"),
        (f"{free}", "wrong"),
        (f"{free}; {others}", "wrong"),
        (f"{free}", "wrong"),
        (f"{free}", "wrong"),
    ]


@pytest.mark.slow
def test_a_program_that_does_not_end_well_is_wrong_with_its_last_word(
    tmp_path: Path, driver: Path
) -> None:
    """It gets a library without NVML's functions."""
    assert driver.is_dir()
    compiler = shutil.which("cc") or "gcc"
    for name in ("libcuda-control.so", "gpu-client"):
        command = [compiler, "-shared", "-o", str(tmp_path / name), "-x", "c", "-"]
        subprocess.run(command, input="int nothing;", text=True, check=True, timeout=60)
    found = rows(GPU_TURNSTILE_VCUDA=tmp_path)[-1]
    assert found == ("pynvml.NVMLError_FunctionNotFound: Function Not Found", "wrong")


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_its_children(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.is_dir()
    monkeypatch.setattr(confined, "_SECONDS", 0.5)
    with pytest.raises(confined.ProgramFailed, match=r"it had not ended after 0\.5 s"):
        confined.run(ContainerEdits(), ["sh", "-c", "sleep 1000 & wait"], {})
