from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import SettingsError
from agent.inject import Injection
from agent.place import Policy
from agent.settings import Settings, parse_memory_block
from contract.names import Names

SETTINGS = Settings(
    node_name="node1",
    kubeconfig=None,
    plugin_dir=Path("/var/lib/kubelet/device-plugins"),
    pod_resources_socket=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    cards=Path("/etc/gpu-turnstile/cards.yaml"),
    memory_block=256 << 20,
    names=Names(),
    policy=Policy.BINPACK,
    inject=Injection.NODES,
    http_host="127.0.0.1",
    http_port=9400,
)


def test_a_node_without_a_name_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, node_name="")
    assert str(caught.value) == "node-name: Required value: the node's name in the API"


def test_the_longest_path_a_socket_can_have_is_accepted() -> None:
    longest = Path("/" + "d" * (107 - len("//vmemory.sock")))
    assert len(bytes(longest / "vmemory.sock")) == 107
    assert replace(SETTINGS, plugin_dir=longest).plugin_dir == longest
    socket = Path("/" + "s" * 106)
    assert replace(SETTINGS, pod_resources_socket=socket).pod_resources_socket == socket


@pytest.mark.parametrize(
    "path", [Path("/" + "d" * 107), Path("/" + "\u00e9" * 54)], ids=["letters", "bytes"]
)
def test_a_path_too_long_for_a_socket_is_refused_by_flag(path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, plugin_dir=path)
    assert str(caught.value).startswith('plugin-dir: Invalid value: "/')
    assert str(caught.value).endswith(": a unix socket's path is at most 107 bytes")
    with pytest.raises(SettingsError) as caught:
        replace(SETTINGS, pod_resources_socket=path)
    assert str(caught.value).startswith('pod-resources-socket: Invalid value: "/')
    assert str(caught.value).endswith(": a unix socket's path is at most 107 bytes")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256Mi", 256 << 20),
        ("1Gi", 1 << 30),
        ("0.5Gi", 512 << 20),
        ("1048576", 1 << 20),
        ("1024Ki", 1 << 20),
    ],
)
def test_a_memory_block_is_whole_mebibytes(text: str, size: int) -> None:
    assert parse_memory_block(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1Mi", "256M", "256MB", "1Ki", "0.5Mi", "lots", "1e3"])
def test_a_memory_block_of_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_memory_block(text)
    assert str(caught.value) == (
        f'memory-block: Invalid value: "{text}": must be a whole number of MiB such as 256Mi'
    )
