"""Injection and enforcement, as the settings choose them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.app.container_setup import EnforcerRunner, Injector, set_up_containers
from agent.enforcement.mps.files import MpsFolder
from agent.enforcement.vcuda.config import decode
from agent.errors import EnforcementError
from agent.holdings.edits import Mount
from agent.holdings.holding import ContainerRef
from agent.holdings.interfaces import Enforcer
from agent.injection.inject import DriverFiles, Injection
from agent.observability.series import Series
from agent.settings import AgentMode, EnforcementMode, Settings
from contract.inventory import Inventory
from placement.pods import PodId
from tests.agent.builders import BLOCK, holding, write_hami_core
from tests.agent.fakes import make_settings, make_table, short_dir
from tests.mps.node import report

TABLE = make_table(2)
CARDS = Inventory(
    tuple(
        replace(card, device=device)
        for card, device in zip(TABLE.inventory.cards, ("/dev/null", "/dev/zero"), strict=True)
    )
)
IDS = frozenset(f"GPU-1::{number}" for number in range(30))
CLAIM = ContainerRef(PodId("default", "p", "3f6c1b8e-8a52-4b0e-9d5e-0c5f6a7b8c9d"), "main")
SHARE = holding(CLAIM, IDS)
ABOUT = holding(CLAIM, IDS, {"GPU-1": 4})


def settings(root: Path) -> Settings:
    return make_settings(
        root,
        plugin_dir=Path("/dev/null/plugins"),  # a short path; nothing is served here
        state_dir=root / "state",
        cri_socket=root / "cri.sock",
        cdi_dir=root / "cdi",
        hami_library_dir=root / "vgpu",
    )


# --- injection ------------------------------------------------------------------------


def test_a_card_is_injected_with_the_additions_of_the_settings(tmp_path: Path) -> None:
    chosen = replace(
        settings(tmp_path), extra_devices=("/dev/full",), driver_dir=DriverFiles("/opt/driver")
    )
    edits = Injector(chosen, CARDS).edits_for(SHARE)
    assert edits.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert edits.envs["LD_LIBRARY_PATH"].startswith("/usr/local/nvidia/lib")
    assert (edits.devices[0], edits.devices[-1]) == ("/dev/zero", "/dev/full")
    assert edits.mounts == (Mount("/usr/local/nvidia", "/opt/driver"),)


def test_a_cdi_spec_is_written_before_its_names_are_returned_and_again_if_it_was_lost(
    tmp_path: Path,
) -> None:
    injector = Injector(replace(settings(tmp_path), inject=Injection.CDI), CARDS)
    (name,) = injector.edits_for(SHARE).cdi
    kind, _, device = name.partition("=")
    (path,) = (tmp_path / "cdi").glob("*.json")
    spec = json.loads(path.read_text())
    assert spec["kind"] == kind
    assert device in {each["name"] for each in spec["devices"]}
    path.unlink()
    injector.refresh()
    assert json.loads(path.read_text()) == spec


def test_our_spec_has_the_files_and_nodes_of_a_driver_in_a_container(tmp_path: Path) -> None:
    """As on a node of NVIDIA's GPU Operator: the host itself has neither."""
    nodes = tmp_path / "host" / "run/nvidia/driver/dev"
    nodes.mkdir(parents=True)
    (nodes / "zero").touch()
    chosen = replace(
        settings(tmp_path),
        inject=Injection.CDI,
        driver_dir=DriverFiles("auto"),
        host_root=tmp_path / "host",
    )
    assert Injector(chosen, CARDS).edits_for(SHARE).cdi == ("gpu-turnstile.io/gpu=GPU-1",)
    spec = json.loads((tmp_path / "cdi" / "gpu-turnstile.json").read_text())
    assert [each["containerEdits"]["deviceNodes"][0]["path"] for each in spec["devices"]] == [
        "/dev/null",
        "/dev/zero",
    ]
    hosts = [each["containerEdits"]["deviceNodes"][0].get("hostPath") for each in spec["devices"]]
    assert hosts == [None, "/run/nvidia/driver/dev/zero"]
    (mount,) = spec["containerEdits"]["mounts"]
    assert mount["hostPath"] == str(tmp_path / "state" / "driver" / "current")
    assert mount["containerPath"] == "/usr/local/nvidia"


def test_a_cdi_spec_that_cannot_be_written_is_a_refusal_for_a_pod_and_else_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cdi").write_text("a file in the way")
    injector = Injector(replace(settings(tmp_path), inject=Injection.CDI), CARDS)
    with pytest.raises(EnforcementError, match="cdi-dir"):
        injector.edits_for(SHARE)
    injector.refresh()
    assert "no CDI spec" in caplog.messages


@pytest.mark.parametrize(
    ("more", "needs"),
    [
        ({"inject": Injection.NODES}, False),
        ({"inject": Injection.ENVVAR_ONLY}, False),
        ({"inject": Injection.CDI}, True),
        ({"mode": AgentMode.DRA}, True),
    ],
)
def test_a_runtime_that_reads_no_cdi_specs_is_a_refusal_if_cards_come_by_them(
    tmp_path: Path, more: dict[str, Any], needs: bool
) -> None:
    version = "containerd://1.6.20"
    injector = Injector(replace(settings(tmp_path), **more), CARDS, runtime=lambda: version)
    if needs:
        with pytest.raises(EnforcementError, match=r"containerd 1\.6\.20 reads no CDI specs"):
            injector.edits_for(SHARE)
        version = "containerd://2.3.4"
    assert injector.edits_for(SHARE)


# --- enforcement ----------------------------------------------------------------------


def set_up(chosen: Settings) -> tuple[Enforcer, EnforcerRunner]:
    return set_up_containers(
        chosen, CARDS, driver=lambda: "535.104.05", entitled=lambda _uid, _name: ABOUT
    )


def test_hami_core_uses_the_library_of_the_settings(tmp_path: Path) -> None:
    enforcer, runner = set_up(replace(settings(tmp_path), enforcement=EnforcementMode.HAMI_CORE))
    library = tmp_path / "vgpu" / "libvgpu.so"
    library.parent.mkdir()
    write_hami_core(library)
    runner.tick()
    assert str(library) in {each.host for each in enforcer.prepare_allocation(SHARE).mounts}


def test_a_share_finds_its_limits_and_they_stay_when_the_agent_ends() -> None:
    with short_dir() as root:
        driver = DriverFiles(str(root / "driver"))
        enforcer, runner = set_up(
            replace(settings(root), enforcement=EnforcementMode.VCUDA, driver_dir=driver)
        )
        assert runner.problem
        runner.tick()
        assert (runner.problem, runner.alive) == ("", True)
        (mount,) = enforcer.prepare_allocation(SHARE).mounts
        enforcer.prepare_start(ABOUT)
        runner.close()
        limits = decode((Path(mount.host) / "vcuda.config").read_bytes())
    assert mount.container == "/etc/vcuda"
    assert (limits.pod_uid, limits.utilization, limits.memory) == (CLAIM.pod.uid, 30, 4 * BLOCK)
    assert limits.driver == (535, 104)


def test_with_mps_the_limits_are_gauges_and_a_missing_program_is_a_problem(tmp_path: Path) -> None:
    chosen = replace(settings(tmp_path), enforcement=EnforcementMode.MPS, mps_dir=tmp_path / "mps")
    shown: list[Callable[[], Iterable[Series]]] = []
    enforcer, runner = set_up_containers(
        chosen,
        CARDS,
        driver=lambda: "",
        entitled=lambda _uid, _name: ABOUT,
        show_limits=shown.append,
    )
    enforcer.prepare_allocation(ABOUT)
    missing = "the program that runs the MPS daemons does not run on this node"
    runner.tick()
    assert missing in runner.problem
    gauges = {each.name.removeprefix("gpu_turnstile_agent_"): each for each in shown[0]()}
    of = ("default", "p", "main", "GPU-1")
    assert gauges["container_core_limit"].samples == {of: 30.0}
    assert gauges["container_memory_limit_bytes"].samples == {of: 4.0 * BLOCK}
    assert gauges["container_mps_clients"].samples == {}
    ((card, reason),) = gauges["mps_problem"].samples
    assert (card, missing in reason) == ("GPU-1", True)
    files = MpsFolder(tmp_path / "mps")
    report(files, {})
    for _ in range(2):
        runner.tick()
        assert runner.problem == ""
    files.lock.release()  # the program has ended since
    runner.tick()
    assert missing in runner.problem


def test_an_enforcer_that_cannot_be_started_is_tried_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = [EnforcementError("state-dir: full"), EnforcementError("state-dir: full")]

    def begin() -> None:
        if errors:
            raise errors.pop()

    runner = EnforcerRunner(begin, lambda: False)
    for _ in range(2):
        runner.tick()
        assert runner.problem == "state-dir: full"
        assert runner.alive  # nothing was started that could have died
    assert caplog.messages.count("enforcement cannot be started") == 1
    runner.tick()
    assert runner.problem == ""
    assert not runner.alive
    closed = EnforcerRunner()
    closed.close()
    closed.tick()
    assert closed.problem  # nothing is started any more
