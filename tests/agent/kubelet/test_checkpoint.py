"""The kubelet's checkpoint: files that are read, and files that are refused."""

import json
import logging
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.interfaces import Checkpoint
from agent.errors import CheckpointError
from agent.kubelet.checkpoint import CheckpointFile, CheckpointParser
from common.kubelet_api import CHECKPOINT_FILE
from simulator.kubelet import checkpoint as kubelets
from simulator.kubelet.numa import DeviceAllocation
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.state import KubeletCheckpoint
from tests.agent.builders import CORE, MEMORY, cases, patient
from tests.agent.fakes import NAMES, RESOURCES
from tests.examples import any_json

ENTRY = {
    "PodUID": "u",
    "ContainerName": "c",
    "ResourceName": NAMES.core,
    "DeviceIDs": {"-1": ["GPU-0::0", "GPU-0::1"]},
    "AllocResp": "",
}


def text(*entries: Any) -> str:
    data: dict[str, Any] = {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": {}}
    return json.dumps({"Data": data, "Checksum": 1})


def parse(content: str | bytes) -> Checkpoint:
    raw = content.encode() if isinstance(content, str) else content
    return CheckpointParser(RESOURCES).parse(raw)


@cases(
    "content, held",
    {
        "one entry": (text(ENTRY), {"u": {"c": {CORE: {"GPU-0::0", "GPU-0::1"}}}}),
        "by NUMA node": (
            text(ENTRY | {"DeviceIDs": {"0": ["GPU-0::0"], "1": ["GPU-1::7", "GPU-0::0"]}}),
            {"u": {"c": {CORE: {"GPU-0::0", "GPU-1::7"}}}},
        ),
        "foreign": (text(ENTRY | {"ResourceName": "example.com/other", "DeviceIDs": 7}), {}),
        "no IDs": (text(ENTRY | {"DeviceIDs": {}}), {"u": {"c": {CORE: set()}}}),
        "bare": ('{"Data": {"PodDeviceEntries": []}}', {}),
    },
)
def test_a_file_is_read(content: str, held: Any) -> None:
    assert parse(content) == Checkpoint(held)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            b"\xff",
            "not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        ("7", "must be an object, found a number"),
        ("{}", "Data: missing"),
        ('{"Data": {}}', "Data.PodDeviceEntries: missing"),
        (
            '{"Data": {"PodDeviceEntries": {}}}',
            "Data.PodDeviceEntries: must be a list or null, found an object",
        ),
        (text(ENTRY, "x"), "Data.PodDeviceEntries[1]: must be an object, found a string"),
        (
            text(ENTRY | {"PodUID": True}),
            "Data.PodDeviceEntries[0].PodUID: must be a string, found true",
        ),
        (text({"ResourceName": NAMES.core}), "Data.PodDeviceEntries[0].PodUID: missing"),
        (
            text(ENTRY | {"DeviceIDs": ["GPU-0::0"]}),  # before Kubernetes 1.20
            "Data.PodDeviceEntries[0].DeviceIDs: must be an object, found a list",
        ),
        (
            text(ENTRY | {"DeviceIDs": {"0": [7]}}),
            'Data.PodDeviceEntries[0].DeviceIDs["0"]: must be a list of strings',
        ),
    ],
)
def test_another_format_is_refused(content: str | bytes, message: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        parse(content)
    assert str(refused.value) == message


def test_an_entry_with_device_ids_that_no_agent_makes_is_left_out() -> None:
    found = parse(text(ENTRY, ENTRY | {"PodUID": "v", "DeviceIDs": {"-1": ["GPU-0::1", "x"]}}))
    assert list(found.pods) == ["u"]
    (reason,) = found.unreadable
    assert reason == (
        'Data.PodDeviceEntries[1]: device ID "x" is not <card uuid>::<number>: '
        "it does not come from this agent"
    )


def test_unbounded_nesting_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^not JSON: maximum recursion depth exceeded"):
        parse("[" * 200_000)


_names = st.text(max_size=4)
_ids = st.frozensets(st.builds("GPU-{}::{}".format, st.integers(0, 3), st.integers(0, 99)))
_held_ids = st.dictionaries(st.sampled_from([CORE, MEMORY]), _ids, min_size=1)
_held = st.dictionaries(_names, st.dictionaries(_names, _held_ids, min_size=1))


def _file(held: Any, node: int) -> str:
    named = {resource: name for name, resource in RESOURCES.items()}
    pods: Any = {
        uid: {
            container: {
                named[resource]: DeviceAllocation(tuple(ids), PluginResponse(), {node: tuple(ids)})
                for resource, ids in held_ids.items()
            }
            for container, held_ids in containers.items()
        }
        for uid, containers in held.items()
    }
    return kubelets.encode(KubeletCheckpoint(pods, {}))


@patient
@given(st.lists(_held, min_size=1, max_size=4), st.integers(-1, 3))
def test_successive_files_of_a_kubelet_are_read(files: list[Any], node: int) -> None:
    """An entry that the last file had is not parsed again."""
    with tempfile.TemporaryDirectory() as made:
        folder, merged = Path(made), dict[str, Any]()
        reader = CheckpointFile(folder, RESOURCES)
        for held in files:
            merged = {**dict(list(merged.items())[1:]), **held}
            content = _file(merged, node)
            assert parse(content) == Checkpoint(merged)
            fresh = folder / "new"
            fresh.write_text(content, encoding="utf-8")
            fresh.replace(folder / CHECKPOINT_FILE)
            assert reader.read() == Checkpoint(merged)


_json = any_json(*ENTRY, "Data", "PodDeviceEntries")


@patient
@given(st.binary(max_size=40) | _json.map(lambda each: json.dumps(each).encode()))
def test_any_other_content_is_refused_without_a_crash(content: bytes) -> None:
    with suppress(CheckpointError):
        parse(content)


# --- the file -------------------------------------------------------------------------


class Site:
    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.path = folder / CHECKPOINT_FILE
        self.file = CheckpointFile(folder, RESOURCES)
        self._caplog = caplog

    def write(self, content: str) -> None:
        beside = self.path.with_name(".new")
        beside.write_text(content, encoding="utf-8")
        beside.replace(self.path)

    def take_logs(self) -> list[tuple[str, str]]:
        found = [(each.getMessage(), getattr(each, "reason", "")) for each in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Site:
    return Site(tmp_path, caplog)


def test_a_file_is_parsed_once_and_again_after_it_changed(site: Site) -> None:
    site.write(text(ENTRY))
    first = site.file.read()
    assert site.file.read() is first
    site.write(text())
    assert site.file.read() == Checkpoint()
    assert site.take_logs() == []


def test_a_missing_file_is_logged_once_and_so_is_its_return(site: Site) -> None:
    assert [site.file.readable for _ in range(2)] == [False, False]
    reason = f"the kubelet's checkpoint {site.path}: "
    missing = f"{reason}[Errno 2] No such file or directory: '{site.path}'"
    assert site.take_logs() == [("checkpoint unreadable", missing)]
    site.write(text(ENTRY))
    assert site.file.readable
    assert site.take_logs() == [("checkpoint readable again", "")]
    site.write("{}")
    with pytest.raises(CheckpointError) as refused:
        site.file.read()
    assert str(refused.value) == f"{reason}Data: missing"
    assert site.take_logs() == [("checkpoint unreadable", f"{reason}Data: missing")]
    site.path.unlink()
    with pytest.raises(CheckpointError):
        site.file.read()
    assert site.take_logs() == []


def test_skipped_entries_are_logged_once(site: Site) -> None:
    site.write(text(ENTRY | {"DeviceIDs": {"-1": ["x"]}}))
    assert site.file.read().pods == {}
    site.file.read()
    [(message, reason)] = site.take_logs()
    assert message == "checkpoint entry left out"
    assert reason.startswith("Data.PodDeviceEntries[0]: device ID")
