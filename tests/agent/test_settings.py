from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cards.health import APPLICATION_XIDS
from agent.errors import SettingsError
from agent.injection.inject import DriverFiles, Injection
from agent.settings import (
    EnforcementMode,
    MigMode,
    parse_driver_dir,
    parse_ignored_xids,
    parse_memory_block,
    parse_period,
    parse_reserved_memory,
    parse_xids,
)
from contract.errors import quote
from tests.agent.fakes import make_settings

SETTINGS: Any = make_settings(Path("/var/lib/kubelet"))


def test_the_longest_path_a_socket_can_have_is_accepted() -> None:
    longest = Path("/" + "d" * (107 - len("//vmemory-01234567.sock")))
    assert len(bytes(longest / "vmemory-01234567.sock")) == 107
    assert replace(SETTINGS, plugin_dir=longest).plugin_dir == longest
    socket = Path("/" + "s" * 106)
    assert replace(SETTINGS, pod_resources_socket=socket).pod_resources_socket == socket


@pytest.mark.parametrize("flag", ["plugin-dir", "pod-resources-socket", "cri-socket"])
@pytest.mark.parametrize("path", ["/" + "d" * 107, "/" + "\u00e9" * 54], ids=["letters", "bytes"])
def test_a_path_too_long_for_a_socket_is_refused_by_flag(flag: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, **{flag.replace("-", "_"): Path(path)})
    assert str(caught.value).startswith(f'{flag}: Invalid value: "/')
    assert str(caught.value).endswith(": a unix socket's path is at most 107 bytes")


@pytest.mark.parametrize("flag", ["state-dir", "hami-library-dir", "cdi-dir", "host-root"])
def test_folders_that_containers_use_have_absolute_paths(flag: str) -> None:
    with pytest.raises(SettingsError, match=f"^{flag}: Invalid value: "):
        replace(SETTINGS, **{flag.replace("-", "_"): Path("relative")})


def test_use_cannot_be_measured_more_often_than_the_driver_samples() -> None:
    assert replace(SETTINGS, use_period=1.0).use_period == 1.0
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, use_period=0.0)
    assert str(caught.value) == (
        "use-period: Invalid value: 0: must be at least 1s: the driver samples processes about "
        "once a second"
    )


VCUDA: dict[str, Any] = {"enforcement": EnforcementMode.VCUDA, "driver_dir": DriverFiles("/opt/d")}


@pytest.mark.parametrize("host", ["/opt/d", "auto"])
def test_vcuda_is_served_where_containers_find_its_library(host: str) -> None:
    chosen = replace(SETTINGS, **VCUDA | {"driver_dir": DriverFiles(host)})
    assert chosen.enforcement is EnforcementMode.VCUDA


_UNHELD = "and no share would be enforced"
_WITH = 'enforcement: Invalid value: "vcuda": must be used with --'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            (
                {"inject": how},
                (
                    f"{_WITH}inject nodes, found --inject {how.value}: containers would find the "
                    f"runtime's driver files, not vcuda-controller's, {_UNHELD}"
                ),
            )
            for how in (Injection.ENVVAR, Injection.CDI)
        ),
        (
            {"driver_dir": None},
            f"{_WITH}driver-dir, found none: containers would not find vcuda-controller's library, "
            + _UNHELD,
        ),
        (
            {"driver_dir": DriverFiles("/opt/d", "/usr/local/other")},
            (
                'driver-dir: Invalid value: "/usr/local/other": must be /usr/local/nvidia in the '
                "container with --enforcement vcuda: vcuda-controller's library looks for its "
                "client there"
            ),
        ),
        (
            {"mig": MigMode.SHARES},
            (
                'mig: Invalid value: "shares": must be used with --enforcement none or hami-core, '
                "found vcuda: its library would stop programs on MIG instances"
            ),
        ),
    ],
)
def test_vcuda_is_refused_where_nothing_would_hold(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, **VCUDA | changes)
    assert str(caught.value) == message
    assert replace(SETTINGS, **VCUDA | changes | {"enforcement": EnforcementMode.HAMI_CORE})


def test_mps_is_refused_for_mig_instances() -> None:
    message = (
        'mig: Invalid value: "shares": must be off with --enforcement mps: its daemons serve whole '
        "cards, not MIG instances"
    )
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, enforcement=EnforcementMode.MPS, mig=MigMode.SHARES)
    assert str(caught.value) == message


Parse = Callable[[str], object]


def period(text: str) -> float:
    return parse_period("recovery-quiet", text)


def fatal_xids(text: str) -> object:
    return parse_xids("fatal-xids", text)


HERE = "/usr/local/nvidia"
GOOD: dict[Parse, dict[str, object]] = {
    parse_memory_block: {
        "256Mi": 256 << 20,
        "1Gi": 1 << 30,
        "0.5Gi": 512 << 20,
        "1048576": 1 << 20,
        "1024Ki": 1 << 20,
    },
    parse_reserved_memory: {"0": 0, "512Mi": 512 << 20, "1e9": 10**9},
    period: {"0s": 0, "90s": 90, "5m": 300, "2h": 7200, "1h0m1s": 3601, "1.5h": 5400},
    parse_ignored_xids: {
        "": APPLICATION_XIDS,
        " ": APPLICATION_XIDS,
        "63, 94,13": APPLICATION_XIDS | {63, 94},
        "all": None,
    },
    fatal_xids: {"": frozenset(), "13,45": {13, 45}},
    parse_driver_dir: {
        "": None,
        "/opt/nvidia": DriverFiles("/opt/nvidia", HERE),
        f"/opt/nvidia:{HERE}/cuda": DriverFiles("/opt/nvidia", f"{HERE}/cuda"),
        "auto:/opt": DriverFiles("auto", "/opt"),
    },
}


@pytest.mark.parametrize("parse", GOOD)
def test_settings_are_read(parse: Parse) -> None:
    assert {text: parse(text) for text in GOOD[parse]} == GOOD[parse]


BAD: dict[Parse, tuple[str, str, dict[str, str]]] = {  # the flag, the rule, what is shown of each
    parse_memory_block: (
        "memory-block",
        "must be a whole number of MiB such as 256Mi",
        {each: each for each in ("", "0", "-1Mi", "256M", "256MB", "1Ki", "0.5Mi", "lots", "1e3")},
    ),
    parse_reserved_memory: (
        "reserved-memory",
        "must be a number of bytes such as 512Mi",
        {each: each for each in ("", "-1", "0.5", "much")},
    ),
    period: (
        "recovery-quiet",
        "must be a time such as 90s, 5m or 1h30m",
        {each: each for each in ("", "5", "m", "-5m", "5 m", "5M", "1d", "1.h")}
        | {each: each for each in ("5m\n", "\u0665m", "1000000000s")},
    ),
    parse_ignored_xids: (
        "ignore-xids",
        "must be Xid numbers, comma-separated, such as 63,94",
        {"all,63": "all", "63,": "", "63;94": "63;94", "-1": "-1", "1.5": "1.5"},
    ),
    fatal_xids: (
        "fatal-xids",
        "must be Xid numbers, comma-separated, such as 63,94",
        {"all": "all", "63,": ""},
    ),
    parse_driver_dir: (
        "driver-dir",
        "must be an absolute path without '.' and '..', such as /opt/nvidia",
        {each: each for each in ("opt/nvidia", "/", "/opt/../etc", "/opt//nvidia")}
        | {":/opt": "", "/opt:nvidia": "nvidia", "/opt:": "", "/opt:/a:b/../c": "/a:b/../c"},
    ),
}


@pytest.mark.parametrize("parse", BAD)
def test_settings_that_cannot_be_read_are_refused_with_a_reason(parse: Parse) -> None:
    flag, rule, texts = BAD[parse]
    for text, shown in texts.items():
        with pytest.raises(SettingsError) as caught:
            parse(text)
        assert str(caught.value) == f"{flag}: Invalid value: {quote(shown)}: {rule}"


def test_a_driver_that_the_agent_lays_out_is_below_its_state() -> None:
    settings = replace(SETTINGS, driver_dir=DriverFiles("auto"), state_dir=Path("/state"))
    assert settings.lays_out_driver
    assert settings.driver == DriverFiles("/state/driver/current", HERE)
