"""The command line, a real agent process beside a simulated kubelet, and its supervisor."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.__main__ import main
from agent.app.agent import Agent
from agent.cards.cards_file import load_inventory
from agent.cards.nvml import NvmlSource
from agent.cards.source import discover
from agent.errors import SettingsError
from agent.settings import Settings
from agent.supervisor import QUICK_SECONDS, supervise
from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import registered
from tests.agent.fakes import DEADLINE_S, eventually, write_cards
from tests.agent.nvml_node import NvmlScript, build, instance_uuid, mig_minors, unload, uuid

ROOT = Path(__file__).parents[2]


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, str]:
    """Flags that an agent reads without a kubelet or an API server; a test changes one."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubeconfig_for("http://127.0.0.1:1"))
    return {
        "--node-name": "n1",
        "--kubeconfig": str(kubeconfig),
        "--kubelet-dir": "/nowhere/plugins",
        "--plugin-dir": "/nowhere/plugins",
        "--pod-resources-socket": "/nowhere/pr.sock",
        "--cards": str(write_cards(tmp_path / "cards.yaml")),
        "--http-host": "127.0.0.1",
        "--http-port": "0",
    }


@pytest.fixture
def flags_of_a_node(flags: dict[str, str], kubelet: Kubelet, kubeconfig: Path) -> dict[str, str]:
    """Flags of an agent beside a kubelet that runs, and with an API server."""
    kubelet.start()
    return flags | {
        "--kubeconfig": str(kubeconfig),
        "--kubelet-dir": str(kubelet.settings.plugin_dir),
        "--plugin-dir": str(kubelet.settings.plugin_dir),
        "--pod-resources-socket": str(kubelet.settings.pod_resources_socket),
    }


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if "GPU_TURNSTILE" not in key}
    kept.pop("NODE_NAME", None)
    return kept | more


def words(flags: Mapping[str, str]) -> list[str]:
    return [word for pair in flags.items() for word in pair]


def variable_of(flag: str) -> str:
    return "GPU_TURNSTILE_" + flag.removeprefix("--").replace("-", "_").upper()


# --- settings -------------------------------------------------------------------------

BAD = {
    "--cards": ("{tmp}/none.yaml", "cards: cannot read {tmp}/none.yaml: "),
    "--memory-block": ("lots", 'memory-block: Invalid value: "lots": must be a whole number of '),
    "--recovery-quiet": ("soon", 'recovery-quiet: Invalid value: "soon": must be a time such as '),
    "--ignore-xids": ("63,all", 'ignore-xids: Invalid value: "all": must be Xid numb'),
    "--fatal-xids": ("all", 'fatal-xids: Invalid value: "all": must be Xid numb'),
    "--domain": ("Not A Domain", 'domain: Invalid value: "Not A Domain": must be a lower-case D'),
    "--kubeconfig": ("{tmp}/none", "kubeconfig: cannot use {tmp}/none: "),
    "--node-name": ("", "node-name: Required value: the node's name"),
    "--plugin-dir": ("/" + "x" * 120, "plugin-dir: Invalid value: "),
    "--extra-devices": ("/etc/shadow", 'extra-devices: Invalid value: "/etc/shadow": must be abs'),
    "--driver-dir": ("nvidia", 'driver-dir: Invalid value: "nvidia": must be an absolute path wi'),
    "--state-dir": ("state", 'state-dir: Invalid value: "state": must be an absolute path without'),
    "--http-host": ("192.0.2.1", "http-port: cannot listen on 192.0.2.1:0: "),
}


@pytest.mark.parametrize("flag", BAD)
def test_a_bad_setting_is_one_line_and_exit_code_2(
    flag: str, flags: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, message = (text.replace("{tmp}", str(tmp_path)) for text in BAD[flag])
    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, _which: None)
    ended = CliRunner().invoke(main, words(flags | {flag: value, "--log-level": "error"}))
    assert (ended.exit_code, ended.stdout) == (2, "")
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith(f"error: {message}")


def test_a_required_flag_that_is_missing_is_named(flags: dict[str, str]) -> None:
    del flags["--node-name"]
    result = CliRunner(env=dict.fromkeys(("NODE_NAME", "GPU_TURNSTILE_NODE_NAME"))).invoke(
        main, words(flags)
    )
    assert result.exit_code == 2
    assert "Error: Missing option '--node-name'" in result.stderr


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that reached an agent, which is stopped before it is made."""
    settings: list[Settings] = []

    def refuse(given: Settings) -> Agent:
        settings.append(given)
        raise SettingsError("enough")

    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, _which: None)
    monkeypatch.setattr("agent.__main__.configure", lambda _level: None)
    monkeypatch.setattr("agent.__main__.Agent", refuse)
    return settings


def test_every_flag_may_come_from_the_environment(
    flags: dict[str, str], made: list[Settings]
) -> None:
    del flags["--cards"]
    flags |= {
        "--domain": "example.com",
        "--recovery-quiet": "1h30m",
        "--ignore-xids": "63, 94",
        "--fatal-xids": "13",
    }
    env = {variable_of(flag): value for flag, value in flags.items()}
    env["NODE_NAME"] = env.pop("GPU_TURNSTILE_NODE_NAME")  # the usual name in a manifest will do
    bare: dict[str, str | None] = {"GPU_TURNSTILE_CARDS": None}
    CliRunner(env=bare).invoke(main, words(flags))
    CliRunner(env=bare | env).invoke(main, [])
    assert made[0] == made[1]
    assert (made[1].node_name, made[1].names.core) == ("n1", "example.com/vcuda-core")
    assert (made[1].cards, made[1].recovery_quiet) == (None, 5400)
    assert made[1].ignore_xids == frozenset({13, 31, 43, 45, 63, 68, 94, 109})
    assert made[1].fatal_xids == {13}


# --- cards ----------------------------------------------------------------------------


def test_a_dump_is_a_cards_file_of_the_same_cards(node: NvmlScript, tmp_path: Path) -> None:
    path = tmp_path / "dump.yaml"
    result = CliRunner().invoke(main, ["cards", "dump", "-o", str(path)])
    assert (result.exit_code, result.output) == (0, "")
    assert load_inventory(path) == discover(None).inventory
    shown = CliRunner().invoke(main, ["cards", "dump"])
    assert (shown.exit_code, shown.stdout) == (0, path.read_text())


def test_a_dump_warns_of_cards_that_are_left_out(node: NvmlScript) -> None:
    node.card(0, mig=1)
    result = CliRunner().invoke(main, ["cards", "dump"])
    assert result.exit_code == 0
    assert result.stderr == "warning: card 0 is left out: in MIG mode, which is not served\n"
    assert f"# left out: card 0 ({uuid(0)}): in MIG mode, which is not served\n" in result.stdout


@pytest.mark.parametrize("command", ["dump", "show"])
def test_mig_instances_are_listed_on_demand(
    node: NvmlScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    node.mig(0, 7)
    mig_minors(tmp_path, (0, 7))
    source = partial(NvmlSource, proc=tmp_path)
    monkeypatch.setattr("agent.cards.source.NvmlSource", source)
    result = CliRunner().invoke(main, ["--mig", "shares", "cards", command])
    assert (result.exit_code, result.stderr) == (0, "")
    assert instance_uuid(0, 7) in result.stdout
    assert "/dev/nvidia-caps/nvidia-cap66" in result.stdout


def test_a_dump_that_has_no_card_or_no_file_is_refused(node: NvmlScript, tmp_path: Path) -> None:
    path = tmp_path / "none" / "dump.yaml"
    unwritten = CliRunner().invoke(main, ["cards", "dump", "--output", str(path)])
    node.set("cards", 0)
    empty = CliRunner().invoke(main, ["cards", "dump"])
    assert [(each.exit_code, each.stdout, each.stderr) for each in (unwritten, empty)] == [
        (
            2,
            "",
            f"error: output: cannot write {path}: [Errno 2] No such file or directory: '{path}'\n",
        ),
        (2, "", "error: cards: no card can be served: the node has none\n"),
    ]


def test_cards_that_are_left_out_are_shown_even_if_none_is_served(node: NvmlScript) -> None:
    for index in range(2):
        node.card(index, mig=1)
    result = CliRunner().invoke(main, ["cards", "show"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "# driver 550.54.15\n" in result.stdout
    assert f"# left out: card 1 ({uuid(1)}): in MIG mode, which is not served\n" in result.stdout


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ("--cards FILE cards show", {}),
        ("cards show --cards FILE", {}),
        ("cards show", {"GPU_TURNSTILE_CARDS": "FILE"}),
    ],
)
def test_cards_of_a_file_are_shown(
    words: str, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cards(tmp_path / "FILE", 1)
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env=env).invoke(main, words.split())
    assert result.exit_code == 0
    shown = tmp_path / "shown"
    shown.write_text(result.stdout)
    assert load_inventory(shown) == load_inventory(tmp_path / "FILE")


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


@pytest.mark.slow
def test_a_process_finds_the_library_where_the_loader_looks(tmp_path: Path) -> None:
    """Nothing patched: as in a container, by the loader's path alone."""
    script = NvmlScript(tmp_path / "node", cards=3)
    ended = subprocess.run(
        [sys.executable, "-m", "agent", "cards", "show"],
        cwd=ROOT,
        env=environment(LD_LIBRARY_PATH=str(build()), NVML_STUB=str(script.path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("NVIDIA A100-SXM4-80GB") == 3


# --- running --------------------------------------------------------------------------


@contextmanager
def process(flags: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "agent", *words(flags)]
    with log.open("wb") as stderr:
        started = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stderr=stderr, stdout=subprocess.PIPE
        )
        try:
            yield started
        finally:
            started.kill()
            started.communicate(timeout=DEADLINE_S)


def ended_cleanly(agent: subprocess.Popen[bytes], log: Path) -> None:
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(DEADLINE_S) == 0
    assert [json.loads(line)["message"] for line in log.read_text().splitlines()][-1] == "stopped"


def test_a_signal_ends_a_registered_agent_cleanly(
    flags_of_a_node: dict[str, str], kubelet: Kubelet, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with process(flags_of_a_node, log) as agent:
        eventually(lambda: "registered" in log.read_text(), "it registers")
        ended_cleanly(agent, log)
    assert set(registered(kubelet)) == {"tencent.com/vcuda-core", "tencent.com/vcuda-memory"}
    assert not list(kubelet.settings.plugin_dir.glob("v*.sock"))


def test_a_signal_ends_an_agent_without_a_kubelet_whose_api_server_hangs(
    flags_of_a_node: dict[str, str], kubelet: Kubelet, server: ApiServer, tmp_path: Path
) -> None:
    """The thread in the request is left behind; it ends with the process."""
    kubelet.stop()
    server.fail(SILENCE)
    with process(flags_of_a_node, tmp_path / "log") as agent:
        eventually(lambda: server.requests, "it sends a request")
        ended_cleanly(agent, tmp_path / "log")


def test_main_runs_until_a_signal_comes(
    flags_of_a_node: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with the signals left alone."""
    blocked: list[set[int]] = []
    waited: list[set[int]] = []
    monkeypatch.setattr(signal, "pthread_sigmask", lambda _how, which: blocked.append(which))
    monkeypatch.setattr(signal, "sigwait", waited.append)
    monkeypatch.setattr("agent.__main__.configure", lambda _level, **_more: None)
    result = CliRunner().invoke(main, words(flags_of_a_node))
    assert (result.exit_code, result.stderr) == (0, "")
    assert blocked == waited == [{signal.SIGTERM, signal.SIGINT}]


# --- a killed agent is started again in its container; an agent that exits is not -----

RUN = """
import sys
from agent import supervisor
from common.logs import configure
configure()
sys.exit(supervisor.supervise([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
"""
SERVE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with open(sys.argv[1], "a") as started:
    print(os.getpid(), file=started)
signal.sigwait({signal.SIGTERM})
"""
CRASH = "kill -KILL $$"
CRASH_FOUR_TIMES = f'[ $(wc -l < "$0") -gt 4 ] || {CRASH}'


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    return tmp_path / "starts"


def command(script: str, starts: Path) -> list[str]:
    return ["sh", "-c", f'echo started >> "$0"; {script}', str(starts)]


def clock(seconds: float) -> Callable[[], float]:
    """Return a clock on which every run of the command takes so many seconds."""
    return itertools.count(step=seconds).__next__


@pytest.mark.slow
def test_a_killed_agent_is_started_again_and_ends_with_its_supervisor(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    with subprocess.Popen(
        [sys.executable, "-c", RUN, SERVE, pids], stderr=subprocess.PIPE, text=True
    ) as supervisor:
        eventually(lambda: pids.read_text().count("\n") == 1, "it runs")
        os.kill(int(pids.read_text()), signal.SIGKILL)
        eventually(lambda: pids.read_text().count("\n") == 2, "it runs again")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(DEADLINE_S) == 0
        assert supervisor.stderr is not None
        (line,) = (json.loads(each) for each in supervisor.stderr)
    assert (line["message"], line["how"]) == ("the agent has exited", "SIGKILL")
    assert line["level"] == "error"


@pytest.mark.parametrize("status", [0, 2])
def test_a_program_that_exits_is_not_restarted(starts: Path, status: int) -> None:
    assert supervise(command(f"exit {status}", starts)) == status
    assert starts.read_text() == "started\n"


def test_a_program_that_crashes_repeatedly_is_left_to_the_kubelet(
    starts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert supervise(command(CRASH, starts), clock=clock(QUICK_SECONDS - 0.5)) == 1
    assert caplog.messages == ["the agent has exited"] * 3


def test_a_program_that_ran_for_a_while_is_always_restarted(starts: Path) -> None:
    assert supervise(command(CRASH_FOUR_TIMES, starts), clock=clock(QUICK_SECONDS)) == 0
    assert starts.read_text() == "started\n" * 5


@pytest.mark.slow
def test_it_imports_nothing_of_the_agent() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys, agent.supervisor; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = {each for each in found if each.partition(".")[0] in {"agent", "common", "grpc"}}
    assert ours == {"agent", "agent.supervisor", "common", "common.logs"}
