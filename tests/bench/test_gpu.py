"""``make gpu``, where there is no GPU: what it says, and its load on a stand-in for the driver."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cards.inventory import Discovery
from bench.gpu.__main__ import main
from bench.gpu.checks import list_cards
from bench.gpu.cuda import spin_ptx
from bench.gpu.table import CheckOutcome, Row, near, render
from contract.inventory import Inventory, Link
from tests.agent.builders import device_table
from tests.runtime.test_libraries import build_driver


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU: make gpu")
def test_without_a_gpu_every_check_is_skipped_with_a_reason() -> None:
    ended = CliRunner().invoke(main)
    assert ended.exit_code == 0
    rows = [line for line in ended.stdout.splitlines() if "| skipped |" in line]
    assert len(rows) == 5
    assert all("no GPU here: /dev/nvidiactl does not exist" in each for each in rows)


def test_the_table_shows_what_passed() -> None:
    rows = [near("use", 50, 58, 10, "%"), near("use", 50, 61, 10, "%")]
    assert [each.outcome for each in rows] == [CheckOutcome.RIGHT, CheckOutcome.WRONG]
    assert render("1 x A30, driver 550", [*rows, Row("a|b", "", "why", CheckOutcome.SKIPPED)]) == (
        "On 1 x A30, driver 550:\n\n| check | expected | found | |\n| --- | --- | --- | --- |\n"
        "| use | 50 % ± 10 | 58 % | right |\n| use | 50 % ± 10 | 61 % | wrong |\n"
        "| a\\|b |  | why | skipped |"
    )


def test_the_label_is_right_where_kubernetes_takes_it() -> None:
    models = {"NVIDIA A100-SXM4-80GB": "NVIDIA-A100-SXM4-80GB", "\u2122": "none"}
    (card,) = device_table(1).inventory.cards
    for model, shown in models.items():
        rows = list_cards(Discovery(Inventory((replace(card, model=model),))))
        outcome = CheckOutcome.WRONG if shown == "none" else CheckOutcome.RIGHT
        assert Row("label", "a label's value", shown, outcome) in rows


@pytest.mark.parametrize(
    ("pairs", "outcome"),
    [([(0, 1), (0, 2), (1, 2)], CheckOutcome.RIGHT), ([(0, 1)], CheckOutcome.WRONG)],
)
def test_every_pair_of_cards_needs_a_link_and_may_have_two(
    pairs: list[tuple[int, int]], outcome: CheckOutcome
) -> None:
    """Cards with NVLinks have their way over PCIe, too."""
    links = tuple(Link(pair, kind) for pair in pairs for kind in ("PIX", "NV4"))
    rows = list_cards(Discovery(replace(device_table(3).inventory, links=links)))
    assert Row("topology", "3 pairs", f"{len(pairs)} pairs", outcome) in rows


@pytest.mark.parametrize(
    ("capability", "target"), [((6, 1), b"sm_50"), ((7, 0), b"sm_50"), ((9, 0), b"sm_75")]
)
def test_the_kernel_is_of_a_target_that_the_card_can_run(
    capability: tuple[int, int], target: bytes
) -> None:
    assert b".target " + target in spin_ptx(*capability)


@pytest.mark.slow
def test_the_load_holds_the_memory_and_utilization_it_is_given(tmp_path: Path) -> None:
    build_driver(tmp_path)
    options = (f"--memory={1 << 30}", "--duty=0.5", "--seconds=0.5")
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu.load", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    _, last = map(json.loads, done.stdout.splitlines())
    assert last["duty"] > 0.2  # a busy machine makes it longer
