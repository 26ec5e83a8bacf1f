"""The command line, and a real agent process between a fake kubelet and a simulated API server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.__main__ import main
from agent.app.supervisor import Agent
from agent.cards.cards_file import load_inventory
from agent.cards.source import look
from agent.errors import SettingsError
from agent.settings import Settings
from simulator.api.faults import Outage
from simulator.api.server import ApiServer, kubeconfig_for
from tests.agent.fakes import FakeKubelet, Scripted, eventually, write_cards
from tests.agent.nvml_node import Node, build, load, unload, uuid

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kubelet(folder: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(folder) as running:
        yield running.start()


@pytest.fixture
def flags(kubelet: FakeKubelet, kubeconfig: Path, tmp_path: Path) -> dict[str, str]:
    """Flags an agent runs with; a test changes one."""
    return {
        "--node-name": "n1",
        "--kubeconfig": str(kubeconfig),
        "--plugin-dir": str(kubelet.plugin_dir),
        "--pod-resources-socket": str(kubelet.pod_resources),
        "--cards": str(write_cards(tmp_path / "cards.yaml")),
        "--http-host": "127.0.0.1",
        "--http-port": "0",
    }


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if "GPU_TURNSTILE" not in key}
    kept.pop("NODE_NAME", None)
    return kept | more


def words(flags: Mapping[str, str]) -> list[str]:
    return [word for pair in flags.items() for word in pair]


def command(flags: Mapping[str, str]) -> list[str]:
    return [sys.executable, "-m", "agent", *words(flags)]


# --- help -----------------------------------------------------------------------------


def test_help_names_every_flag_with_its_environment_variable() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "agent", "--help"],
        cwd=ROOT,
        env=environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    text = " ".join(shown.split())
    flags = [option.opts[0] for option in main.params]
    assert len(flags) == 23
    for flag in flags:
        variable = "GPU_TURNSTILE_" + flag.removeprefix("--").replace("-", "_").upper()
        assert re.search(rf"{flag} .*?\[env var: {variable}[;,\]]", text), flag


# --- bad settings ---------------------------------------------------------------------

BAD = {
    "cards absent": ({"--cards": "{tmp}/none.yaml"}, "error: cards: cannot read {tmp}/none.yaml: "),
    "cards not YAML": ({"--cards": "{tmp}/bad.yaml"}, "error: cards: {tmp}/bad.yaml is not YAML: "),
    "cards empty": (
        {"--cards": "{tmp}/empty.yaml"},
        "error: cards: {tmp}/empty.yaml: the cards file must be a mapping",
    ),
    "block not a size": (
        {"--memory-block": "lots"},
        'error: memory-block: Invalid value: "lots": must be a whole number of MiB such as 256Mi',
    ),
    "block too large": (
        {"--memory-block": "1Ti"},
        (
            "error: memory-block: Invalid value: 1099511627776: larger than card GPU-0 "
            "(8589934592 bytes)"
        ),
    ),
    "quiet time": (
        {"--recovery-quiet": "soon"},
        'error: recovery-quiet: Invalid value: "soon": must be a time such as 90s, 5m or 1h30m',
    ),
    "xids": (
        {"--application-xids": "63,all"},
        (
            'error: application-xids: Invalid value: "all": must be Xid numbers, '
            "comma-separated, such as 63,94"
        ),
    ),
    "domain": (
        {"--domain": "Not A Domain"},
        'error: domain: Invalid value: "Not A Domain": must be a lower-case DNS name',
    ),
    "reserved domain": ({"--domain": "kubernetes.io"}, "error: domain: Invalid value: "),
    "kubeconfig absent": (
        {"--kubeconfig": "{tmp}/none"},
        "error: kubeconfig: cannot use {tmp}/none: ",
    ),
    "kubeconfig not YAML": (
        {"--kubeconfig": "{tmp}/bad.yaml"},
        "error: kubeconfig: cannot use {tmp}/bad.yaml: ",
    ),
    "node name": ({"--node-name": ""}, "error: node-name: Required value: the node's name"),
    "plugin dir too long": (
        {"--plugin-dir": "/" + "x" * 120},
        "error: plugin-dir: Invalid value: ",
    ),
    "socket too long": (
        {"--pod-resources-socket": "/" + "x" * 120},
        "error: pod-resources-socket: Invalid value: ",
    ),
    "extra devices": (
        {"--extra-devices": "/dev/../etc/shadow"},
        'error: extra-devices: Invalid value: "/dev/../etc/shadow": must be absolute paths below',
    ),
    "driver dir": (
        {"--driver-dir": "nvidia"},
        'error: driver-dir: Invalid value: "nvidia": must be an absolute path without',
    ),
    "driver dir in the container": (
        {"--driver-dir": "/opt/nvidia:"},
        'error: driver-dir: Invalid value: "": must be an absolute path without',
    ),
    "state dir": (
        {"--state-dir": "state"},
        'error: state-dir: Invalid value: "state": must be an absolute path without',
    ),
    "http host": (
        {"--http-host": "192.0.2.1"},
        "error: http-port: cannot listen on 192.0.2.1:0: ",
    ),
}


def filled(text: str, tmp_path: Path) -> str:
    return text.replace("{tmp}", str(tmp_path))


@pytest.mark.parametrize("case", BAD)
def test_a_bad_setting_is_one_line_and_exit_code_2(
    case: str, flags: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.yaml").write_text("a: [\nb: }")
    (tmp_path / "empty.yaml").write_text("")
    change, message = BAD[case]
    flags |= {flag: filled(value, tmp_path) for flag, value in change.items()}
    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, _which: None)
    ended = CliRunner().invoke(main, words(flags | {"--log-level": "error"}))
    assert ended.exit_code == 2
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith(filled(message, tmp_path))


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        (
            "--predicate",
            "maybe",
            "Invalid value for '--predicate': 'maybe' is not one of 'prefer', ",
        ),
        ("--policy", "fair", "Invalid value for '--policy': 'fair' is not one of 'binpack', "),
        ("--inject", "magic", "Invalid value for '--inject': 'magic' is not one of 'nodes', "),
        ("--log-level", "loud", "Invalid value for '--log-level': 'loud' is not one of "),
        ("--http-port", "70000", "Invalid value for '--http-port': 70000 is not in the range"),
        ("--http-port", "web", "Invalid value for '--http-port': 'web' is not a valid integer"),
        ("--nonsense", "1", "No such option"),
    ],
)
def test_a_flag_that_click_refuses_is_named_with_exit_code_2(
    flags: dict[str, str], flag: str, value: str, message: str
) -> None:
    result = CliRunner().invoke(main, words(flags | {flag: value}))
    assert result.exit_code == 2
    assert f"Error: {message}" in result.stderr


def test_a_required_flag_that_is_missing_is_named(flags: dict[str, str]) -> None:
    del flags["--node-name"]
    result = CliRunner(env=dict.fromkeys(("NODE_NAME", "GPU_TURNSTILE_NODE_NAME"))).invoke(
        main, words(flags)
    )
    assert result.exit_code == 2
    assert "Error: Missing option '--node-name'" in result.stderr


def test_the_settings_of_cards_reach_the_agent(
    flags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is stopped before it is made, with its settings in hand."""
    made: list[Settings] = []

    def refuse(settings: Settings) -> Agent:
        made.append(settings)
        raise SettingsError("enough")

    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, _which: None)
    monkeypatch.setattr("agent.__main__.configure", lambda _level, **_more: None)
    monkeypatch.setattr("agent.__main__.Agent", refuse)
    changed = {"--recovery-quiet": "1h30m", "--application-xids": "63, 94"}
    given = [word for word in words(flags | changed) if word not in ("--cards", flags["--cards"])]
    result = CliRunner(env={"GPU_TURNSTILE_CARDS": None}).invoke(main, given)
    assert result.stderr == "error: enough\n"
    assert made[0].cards is None
    assert made[0].recovery_quiet == 5400
    assert made[0].application_xids == {13, 31, 43, 45, 63, 68, 94, 109}


# --- cards ----------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Two cards of the stand-in of NVML."""
    load(monkeypatch, tmp_path)
    monkeypatch.delenv("GPU_TURNSTILE_CARDS", raising=False)
    made = Node(tmp_path / "node")
    monkeypatch.setenv("NVML_STUB", str(made.path))
    return made


def test_a_dump_is_a_cards_file_of_the_same_cards(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "dump.yaml"
    result = CliRunner().invoke(main, ["cards", "dump", "-o", str(path)])
    assert (result.exit_code, result.output) == (0, "")
    assert load_inventory(path) == look(None).inventory
    shown = CliRunner().invoke(main, ["cards", "dump"])
    assert (shown.exit_code, shown.stdout) == (0, path.read_text())


def test_a_dump_warns_of_what_is_left_out(node: Node) -> None:
    node.card(0, mig=1)
    result = CliRunner().invoke(main, ["cards", "dump"])
    assert result.exit_code == 0
    assert result.stderr == "warning: card 0 is left out: in MIG mode, which is not served\n"
    assert f"# left out: card 0 ({uuid(0)}): in MIG mode, which is not served\n" in result.stdout


def test_a_dump_of_no_card_is_refused(node: Node) -> None:
    node.set("cards", 0)
    result = CliRunner().invoke(main, ["cards", "dump"])
    assert (result.exit_code, result.stdout, result.stderr) == (
        2,
        "",
        "error: cards: no card can be served: the node has none\n",
    )


def test_a_dump_that_cannot_be_written_is_refused(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "none" / "dump.yaml"
    result = CliRunner().invoke(main, ["cards", "dump", "--output", str(path)])
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: output: cannot write {path}: [Errno 2] No such file or directory: '{path}'\n",
    )


def test_cards_of_the_driver_are_shown_with_their_links(node: Node) -> None:
    result = CliRunner().invoke(main, ["cards", "show"])
    assert result.exit_code == 0
    assert result.stdout.startswith("driver 550.54.15\n")
    assert "\nGPU0  X     PHB   ?\n" in result.stdout


@pytest.mark.parametrize("before", [True, False])
def test_cards_of_a_file_are_shown(tmp_path: Path, *, before: bool) -> None:
    given = ["--cards", str(write_cards(tmp_path / "cards.yaml", 1))]
    command = ["cards", "show"]
    result = CliRunner().invoke(main, given + command if before else command + given)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == [
        *("GPU0", "GPU-0", "Fake", "8192", "MiB", "?", "?", "/dev/null")
    ]


def test_cards_of_a_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    env = {"GPU_TURNSTILE_CARDS": str(write_cards(tmp_path / "cards.yaml", 1))}
    result = CliRunner(env=env).invoke(main, ["cards", "show"])
    assert "GPU-0" in result.stdout


@pytest.mark.parametrize("command", ["dump", "show"])
def test_a_machine_without_nvml_is_one_line_and_exit_code_2(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unload(monkeypatch)
    monkeypatch.delenv("GPU_TURNSTILE_CARDS", raising=False)
    result = CliRunner().invoke(main, ["cards", command])
    assert (result.exit_code, result.stdout, result.stderr) == (
        2,
        "",
        (
            "error: cards: NVML: NVML Shared Library Not Found: libnvidia-ml.so.1 cannot be loaded "
            "(--cards FILE reads a file instead)\n"
        ),
    )


def test_a_process_finds_the_library_where_the_loader_looks(tmp_path: Path) -> None:
    """Nothing patched: as in a container, by the loader's path alone."""
    script = Node(tmp_path / "node", cards=3)
    ended = subprocess.run(
        [sys.executable, "-m", "agent", "cards", "show"],
        cwd=ROOT,
        env=environment(LD_LIBRARY_PATH=str(build()), NVML_STUB=str(script.path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("NVIDIA A100-SXM4-80GB") == 3


# --- running --------------------------------------------------------------------------


@contextmanager
def process(arguments: list[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stderr:
        started = subprocess.Popen(
            arguments, cwd=ROOT, env=environment(**env), stderr=stderr, stdout=subprocess.PIPE
        )
        try:
            yield started
        finally:
            started.kill()
            started.communicate(timeout=20)


def events(log: Path) -> list[str]:
    """The events logged so far; every line is JSON."""
    return [json.loads(line)["message"] for line in log.read_text().splitlines()]


def ended_cleanly(
    agent: subprocess.Popen[bytes], number: signal.Signals, within: float = 5
) -> None:
    began = time.monotonic()
    agent.send_signal(number)
    assert agent.wait(20) == 0
    assert time.monotonic() - began < within


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_registered_agent_cleanly(
    flags: dict[str, str], kubelet: FakeKubelet, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    with process(command(flags), log) as agent:
        eventually(lambda: "registered" in log.read_text(), "it registers")
        ended_cleanly(agent, number)
    assert kubelet.resources == ["tencent.com/vcuda-core", "tencent.com/vcuda-memory"]
    assert events(log)[-1] == "stopped"
    assert not list(kubelet.plugin_dir.glob("v*.sock"))


@pytest.mark.parametrize("outage", [Outage.REFUSED, Outage.UNAVAILABLE])
def test_a_signal_ends_an_agent_that_reaches_nobody(
    flags: dict[str, str],
    kubelet: FakeKubelet,
    server: ApiServer,
    tmp_path: Path,
    outage: Outage,
) -> None:
    server.set_outage(outage)
    kubelet.stop()
    log = tmp_path / "log"
    with process(command(flags), log) as agent:
        eventually(lambda: "no pods from the API server" in log.read_text(), "it tries")
        ended_cleanly(agent, signal.SIGTERM)
    assert events(log)[-1] == "stopped"


def test_a_signal_ends_an_agent_whose_api_server_hangs(
    flags: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with Scripted() as hanging:
        hanging.hang.clear()
        Path(flags["--kubeconfig"]).write_text(kubeconfig_for(hanging.url))
        with process(command(flags), log) as agent:
            eventually(hanging.arrived.is_set, "it asks")
            ended_cleanly(agent, signal.SIGTERM, within=10)
        hanging.hang.set()
    assert events(log)[-1] == "stopped"


def test_every_flag_may_come_from_the_environment(
    flags: dict[str, str], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    env = {
        "GPU_TURNSTILE_" + flag.removeprefix("--").replace("-", "_").upper(): value
        for flag, value in flags.items()
    }
    del env["GPU_TURNSTILE_NODE_NAME"]  # the usual name in a manifest will do
    log = tmp_path / "log"
    more = {"NODE_NAME": "n1", "GPU_TURNSTILE_DOMAIN": "example.com"}
    with process(command({}), log, **env, **more) as agent:
        eventually(lambda: len(kubelet.registered) == 2, "it registers")
        ended_cleanly(agent, signal.SIGTERM)
    assert kubelet.resources == ["example.com/vcuda-core", "example.com/vcuda-memory"]


def test_main_runs_until_a_signal_comes(
    flags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with the signals left alone."""
    blocked: list[set[int]] = []
    waited: list[set[int]] = []
    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, which: blocked.append(which))
    monkeypatch.setattr(signal, "sigwait", waited.append)
    monkeypatch.setattr("agent.__main__.configure", lambda _level, **_more: None)
    result = CliRunner().invoke(main, words(flags))
    assert (result.exit_code, result.stderr) == (0, "")
    assert blocked == waited == [{signal.SIGTERM, signal.SIGINT}]


def test_main_says_what_is_wrong(flags: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, _which: None)
    monkeypatch.setattr("agent.__main__.configure", lambda _level, **_more: None)
    result = CliRunner().invoke(main, words(flags | {"--memory-block": "0"}))
    assert (result.exit_code, result.stderr) == (
        2,
        'error: memory-block: Invalid value: "0": must be a whole number of MiB such as 256Mi\n',
    )
