"""The faults that an agent saves for the next one."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.cards.fault_store import FaultStore, decode, driver_instance, encode
from agent.cards.health import CardFault, CardHealth, FaultKind, xid_fault
from agent.host.state_file import StateFile

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
UNHEALTHY = CardHealth(xid_fault(79), NOON, 17.25, needs_reset=True, gone=True, uncorrectable=4)
ECC = CardHealth(CardFault(FaultKind.ECC, "double-bit ECC error"), NOON, 3.0, reset_seen=True)


@pytest.mark.parametrize("unhealthy", [{}, {"GPU-0": UNHEALTHY, "GPU-1": ECC}])
def test_written_faults_are_read(unhealthy: dict[str, CardHealth]) -> None:
    assert decode(encode("boot-1", unhealthy)) == ("boot-1", unhealthy)


def changed(field: str, value: object) -> str:
    document = json.loads(encode("boot-1", {"GPU-0": replace(UNHEALTHY)}))
    document["cards"]["GPU-0"][field] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "[" * 100_000,
        '{"cards": {}}',
        '{"driver": "boot-1", "cards": []}',
        '{"driver": "boot-1", "cards": {"GPU-0": null}}',
        changed("fault", {"kind": "another", "text": "", "xid": None}),
        changed("since", "noon"),
        changed("last", "soon"),
        changed("last", float("nan")),
        changed("last", 10**400),
        changed("uncorrectable", "many"),
    ],
)
def test_an_invalid_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- what is wrong differs
        decode(text)


@pytest.mark.parametrize(("instance", "kept"), [("boot-1", {"GPU-0": UNHEALTHY}), ("", {})])
def test_where_the_driver_instance_is_not_known_nothing_is_kept(
    instance: str, kept: dict[str, CardHealth], tmp_path: Path
) -> None:
    """A new load of the driver would not be noticed: the card would stay unhealthy."""
    store = StateFile(tmp_path / "unhealthy-cards.json")
    FaultStore(store, lambda: instance).save({"GPU-0": UNHEALTHY})
    assert FaultStore(store, lambda: instance).load() == kept


# --- the driver instance -----------------------------------------------------------------------


def test_a_boot_and_a_load_of_the_module_begin_another_instance(tmp_path: Path) -> None:
    boot, module = tmp_path / "boot_id", tmp_path / "sys/module/nvidia"

    def instance() -> str:
        return driver_instance(boot, tmp_path / "sys")

    assert instance() == "", "the kernel reports nothing"
    boot.write_text("one\n")
    unloaded = instance()
    module.mkdir(parents=True)
    loaded = instance()
    assert instance() == loaded
    module.rename(tmp_path / "unloaded")  # its inode stays taken
    module.mkdir()
    again = instance()
    boot.write_text("two\n")
    assert len({"", unloaded, loaded, again, instance()}) == 5
    boot.write_bytes(b"\xff")
    assert instance() == ""
