"""``kubectl gpu cordon`` and ``uncordon`` against a simulated API server."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.apiserver.client import Client
from contract.names import Names
from simulator.api.server import ApiServer, kubeconfig_for
from tests.placement.cluster.builders import bare_node, make_node
from tests.view.terminal.conftest import Gpu
from view.terminal.cordoning import change_cordon

NAMES = Names()
NODE = "/api/v1/nodes/n1"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a server of one's own, whose first node has two cards."""
    with ApiServer() as api:
        api.apply(make_node("n1", 2), bare_node("n2"))
        path = tmp_path / "config"
        path.write_text(kubeconfig_for(api.url))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield Client(path, user_agent="test")


def _cordoned(client: Client) -> str | None:
    annotations = client.call("GET", NODE, timeout=10)["metadata"]["annotations"]
    found: str | None = annotations.get(NAMES.gpu_cordoned)
    return found


def test_cards_are_cordoned_by_index_or_uuid_and_uncordoned_again(
    gpu_without_cluster: Gpu, own: Client
) -> None:
    assert gpu_without_cluster("cordon", "n1", "1").out == "node/n1 card 1 (GPU-n1-1) cordoned\n"
    assert _cordoned(own) == "GPU-n1-1"
    assert gpu_without_cluster("cordon", "n1", "GPU-n1-0", "1").out == (
        "node/n1 card 0 (GPU-n1-0) cordoned\nnode/n1 card 1 (GPU-n1-1) already cordoned\n"
    )
    assert _cordoned(own) == "GPU-n1-0,GPU-n1-1"
    shown = gpu_without_cluster("nodes", "n1").out
    assert shown.count("Cordoned") == 2
    assert gpu_without_cluster("uncordon", "n1", "0", "1").code == 0
    assert _cordoned(own) is None
    assert gpu_without_cluster("uncordon", "n1", "0").out == (
        "node/n1 card 0 (GPU-n1-0) already uncordoned\n"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("cordon n9 0", 'Error from server (NotFound): nodes "n9" not found\n'),
        ("cordon n2 0", "error: node n2: no agent has written its inventory of cards\n"),
        ("cordon n1 7", "error: node n1: no card '7'; its cards: 0 (GPU-n1-0), 1 (GPU-n1-1)\n"),
    ],
)
def test_a_missing_node_or_card_is_named(
    gpu_without_cluster: Gpu, own: Client, arguments: str, error: str
) -> None:
    result = gpu_without_cluster(*arguments.split())
    assert (result.code, result.err) == (1, error)


def test_a_concurrent_change_is_kept(own: Client) -> None:
    """Somebody else cordons a card between reading and writing."""
    others = [["0"]]

    def call(method: str, *more: Any, **options: Any) -> Any:
        if method == "PATCH" and others:
            change_cordon(own, NAMES, "n1", others.pop(), cordon=True)
        return own.call(method, *more, **options)

    client: Any = SimpleNamespace(find=own.find, call=call)
    change_cordon(client, NAMES, "n1", ["1"], cordon=True)
    assert _cordoned(own) == "GPU-n1-0,GPU-n1-1"


def test_a_rejected_change_is_an_error(api: ApiServer, gpu: Gpu) -> None:
    api.deny("patch /api/v1/nodes/n1")
    result = gpu("cordon", "n1", "1")
    why = 'User "ana" cannot patch /api/v1/nodes/n1'
    assert (result.code, result.err) == (1, f"Error from server (Forbidden): {why}\n")
