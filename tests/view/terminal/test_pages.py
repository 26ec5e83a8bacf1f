"""What a person sees: exact pages, narrow terminals, and texts that try to steer the terminal."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from contract.inventory import Card
from tests.placement.cluster.builders import BLOCK, NAMES, Json, hint, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import ALL_PODS, explanation_of, pod_in, scene, state_of
from view.model.doctor.facts import Finding, Level
from view.model.reports import Gap
from view.model.state import ClusterState
from view.model.usage import CardUsage, ContainerUsage, NodeUsage
from view.model.words import age, safe
from view.terminal.doctor import show_findings
from view.terminal.explanation import show_explanation, show_fits
from view.terminal.layout import Column, Page, bar, table
from view.terminal.nodes import show_nodes
from view.terminal.pods import show_pods
from view.terminal.screen import Screen
from view.terminal.top import show_usage
from view.terminal.words import ranges

NOW = scenes.NOW
CARDS = {"GPU-n1-0": ("n1", 0, "NVIDIA A100"), "GPU-n2-0": ("n2", 0, "Tesla T4")}
GIB = float(2**30)
USES = (
    NodeUsage(
        "n1",
        measured=True,
        cards=(CardUsage("GPU-n1-0", 60, 40, 4 * GIB, 4 * GIB, 75, 3 * GIB),),
        containers=(
            ContainerUsage("default", "train", "c0", ("GPU-n1-0",), 60, 4 * GIB, 75, 3 * GIB),
            ContainerUsage("team", "idle", "c0", ("GPU-x",), 30, GIB, 0, None),
        ),
    ),
    NodeUsage("n2", cards=(CardUsage("GPU-n2-0", 50, 50, GIB, GIB, None, None),)),
    NodeUsage("n3", "the metrics of agent cannot be read: no route"),
)


def drawn(page: Page, width: int | None = 400, *, color: bool = False) -> list[str]:
    return Screen(StringIO(), color=color, width=width).draw(page).splitlines()


def explanation(state: ClusterState, name: str) -> Page:
    return show_explanation(explanation_of(state, name), NOW)


def pages(state: ClusterState) -> Mapping[str, Page]:
    report = state.report()
    uses = {(each.namespace, each.pod, each.container): each for each in USES[0].containers}
    return {
        "nodes": show_nodes(report, NOW),
        "wide": show_nodes(report, NOW, wide=True),
        "pods": show_pods(report.pods, NOW, namespace="default"),
        "all": show_pods(report.pods, NOW, namespace=None, wide=True, uses=uses),
        "explanation": explanation(state, "big"),
        "fit": show_fits(state.fit(make_pod("new", (99, 33)))),
        "top": show_usage(USES, CARDS),
    }


def test_the_documentation_shows_what_is_printed() -> None:
    page = (Path(__file__).parents[3] / "docs/kubectl-gpu.md").read_text(encoding="utf-8")
    assert "\n".join(drawn(show_nodes(scene().report(), NOW), 128)) in page
    assert "\n".join(drawn(explanation(scene(), "big"), 118)) in page


def test_many_nodes_have_one_row_each_until_one_is_named() -> None:
    report = state_of([make_node(f"n{number}", 2) for number in range(41)]).report()
    lines = drawn(show_nodes(report, NOW))
    assert len(lines) == 44
    assert lines[-1] == "To see the cards of a node: kubectl gpu nodes NAME"
    assert len(drawn(show_nodes(replace(report, nodes=report.nodes[7:8]), NOW, named=True))) == 5


def test_a_terminal_has_a_thousand_rows_and_a_file_all_of_them() -> None:
    grid = table(range(1001), (Column("N"), lambda number: number))
    assert drawn([grid])[-2:] == ["999", "... 1 more row (all rows: add | less)"]
    assert drawn([grid], None)[-1] == "1000"


def test_a_low_screen_counts_hidden_rows_and_drops_nodes_before_pending_pods() -> None:
    nodes = [make_node(f"many-{each:02}", 2) for each in range(30)]
    state = state_of(nodes, [scenes.waiting(f"w{each}", (900, 0)) for each in range(2)])
    text = Screen(StringIO(), width=100).draw(show_nodes(state.report(), NOW), 20)
    lines = text.splitlines()
    assert 16 < len(lines) <= 20  # a row has up to three lines
    assert re.search(r"^\.\.\. \d+ more rows \(the terminal is too low\)", text, re.MULTILINE)
    assert "Pending pods (2); one row per pod: --all" in lines
    assert any(each.startswith("default/w0") for each in lines)
    lowest = Screen(StringIO(), width=100).draw(show_nodes(state.report(), NOW), 5).splitlines()
    assert (len(lowest), lowest[-1][:3]) == (5, "...")


def test_150_pending_pods_of_one_owner_are_one_row() -> None:
    pods = [scenes.waiting(f"sweep-{each:03}", (90, 4)) for each in range(150)]
    pods = [scenes.owned(each, "Job", "sweep") for each in pods]
    report = state_of([make_node("n1", 1)], pods).report()
    text = "\n".join(drawn(show_nodes(report, NOW)))
    assert text.count("sweep") == 1
    assert re.search(r"^Job default/sweep: 150 pods +33m +90 cores", text, re.MULTILINE)
    assert "Pending pods (150); one row per pod: --all\n" in text
    assert "\n".join(drawn(show_nodes(report, NOW, every=True))).count("default/sweep-") == 150


def test_a_deleted_pod_is_shown_as_deleted() -> None:
    state = scene()
    state.drop_pod("u-train")
    deleted = "Deleted at 2025-11-22T09:00:00Z. Last known state:"
    assert drawn(explanation(state, "train"))[0] == deleted


def test_an_empty_page_shows_why_it_is_empty() -> None:
    gaps = [Gap("nodes", "", "nodes is forbidden"), ALL_PODS, Gap("events", "", "no")]
    no_card = "No node has GPUs: no agent has written an inventory of cards."
    assert drawn(show_nodes(state_of([]).report(), NOW)) == [no_card]
    unknown = show_nodes(state_of([], [], *gaps).report(), NOW)
    assert drawn(unknown) == ["Nodes and cards: unknown"]


def test_hidden_pods_are_shown_as_hidden() -> None:
    node = scenes.free(make_node("n1", 1), cores=30, blocks=10)
    lines = drawn(show_nodes(state_of([node], [], ALL_PODS).report(), NOW))
    assert lines[2].endswith("hidden (no permission) 70+22")


def test_pods_have_a_row_for_each_container() -> None:
    pod = make_pod("a", (30, 4), (100, 0), sidecars=[(10, 1)])
    lines = drawn(show_pods(state_of([], [pod]).report().pods, NOW, namespace="default"))
    assert [line.split("   ")[0] for line in lines] == ["NAME", "a", "", ""]
    assert "s0 (sidecar)" in lines[1]
    assert lines[3].endswith("100 cores")
    assert drawn(show_pods([], NOW, namespace=None)) == ["No pods that request GPUs found."]


def test_what_a_pod_names_and_is_not_there_is_shown_as_missing() -> None:
    ghost = scenes.running("runs", (30, 4), "ghost", 0)
    hinted = make_pod(
        "hinted", (30, 4), node="n1", annotations={**scenes.stamps("n1"), **hint("7")}
    )
    state = state_of([make_node("n1", 1)], [ghost, hinted])
    rows = drawn(show_pods(state.report().pods, scenes.NOW, namespace="default"))
    row = next(each for each in rows if each.startswith("runs"))
    assert re.search(
        r"Failing .* ghost \(missing\) +GPU-ghost-0 \(missing\) .* node ghost does not", row
    )
    below = "\n".join(drawn(show_nodes(state.report(), scenes.NOW)))
    assert re.search(r"Failing pods \(1\)\n.*\ndefault/runs .* node ghost does not exist", below)
    steps = "\n".join(drawn(explanation(state, "hinted")))
    assert "which chose c0: card 7 (missing)" in steps


def test_a_share_of_several_cards_shows_what_it_requests_of_each() -> None:
    pod = make_pod("a", (100, 8), (20, 2), annotations={NAMES.gpu_cards_of("c0"): "2"})
    state = state_of([], [pod])
    row = drawn(show_pods(state.report().pods, NOW, namespace="default"))[1]
    assert "50 cores + 4 blocks of each of 2 cards" in row
    (found,) = state.fit(pod)
    requests = "Requests 50 cores + 4 blocks of each of 2 cards, 20 cores + 2 blocks"
    assert requests in drawn(show_fits([found]))


def test_usage_is_shown_beside_held_amounts() -> None:
    heads = "CORES USED CORES HELD MEMORY USED MEMORY HELD"
    assert [" ".join(each.split()) for each in drawn(show_usage(USES, CARDS))] == [
        f"NODE CARD MODEL {heads}",
        "n1 0 A100 75 ██████░░ 60/100 3.0 GiB 4.0/8.0 GiB",
        "n2 0 T4 - 50/100 - 1.0/2.0 GiB",
        "",
        f"POD CONTAINER CARDS {heads}",
        "default/train c0 0 75 60 3.0 GiB 4.0 GiB",
        "team/idle c0 GPU-x (missing) 0 30 - 1.0 GiB",
        "n3: the metrics of agent cannot be read: no route",
        "Usage is not measured on n2: only held amounts are shown.",
    ]
    assert not any("team" in line for line in drawn(show_usage(USES, CARDS, namespace="default")))
    # Who uses more than it holds stands out.
    assert "\x1b[33m75" in Screen(Terminal(), width=400).draw(show_usage(USES, CARDS))
    assert drawn(show_usage((), {}, searched="nowhere")) == [
        "No agent found: nowhere. The simulator has none: its agents are not pods."
    ]
    state = scene()
    uses = {(each.namespace, each.pod, each.container): each for each in USES[0].containers}
    lines = drawn(show_pods([pod_in(state.report(), "train")], NOW, namespace="default", uses=uses))
    assert "75 cores, 3.0 GiB" in lines[1]


def test_a_pod_that_would_be_denied_or_has_no_node_fits_nowhere() -> None:
    lines = drawn(show_fits(state_of([make_node("n1", 2)]).fit(make_pod("a", (150, 4)))))
    assert lines[0] == "Pod a would be denied when it is created"
    assert not any(line.startswith("NODE") for line in lines)
    nowhere = drawn(show_fits(state_of([]).fit(make_pod("a", (60, 4)))))
    assert nowhere[0] == "Pod a fits on no node: no node has GPUs"


def test_the_nodes_of_pods_are_not_shown_if_they_depend_on_claims() -> None:
    labelled = make_node("n1", 2)
    labelled["metadata"]["labels"] = {"gpu-turnstile.io/mode": "dra"}
    state, pod = state_of([labelled, make_node("n2", 1)]), make_pod("a", (60, 4))
    manifest = {"kind": "Deployment", "metadata": {"name": "d"}}
    lines = drawn(show_fits(state.fit({**manifest, "spec": {"replicas": 2, "template": pod}})))
    assert lines[0] == "Deployment d unknown: at least 1 of 2 pods fit"
    assert lines[3].startswith("Some nodes serve claims, and the webhook's --claims decides")
    only = drawn(show_fits(state_of([labelled]).fit(pod)))
    assert only[0] == "Pod a fits on 1 node: n1"
    assert only[2].startswith("By a claim: kube-scheduler takes the first cards that fit")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["nodes", "pods", "all", "top", "explanation", "fit"])
def test_a_narrow_terminal_loses_columns_but_neither_nodes_nor_pods(name: str, width: int) -> None:
    long = "trainer-of-the-largest-model-5d8f7c9b4-x2lqz"
    node = scenes.free(make_node("gpu-node-with-a-long-name.example.org", 1))
    state = state_of([node])
    uid = {"uid": "u-long", "namespace": "a-namespace-of-some-length"}
    state.put_pod(scenes.running(long, (30, 4), node["metadata"]["name"], 0, **uid))
    state.put_pod(scenes.waiting("big", (60, 400)))
    shown = {**pages(state), "top": show_usage((USES[0],), CARDS)}[name]
    lines = drawn(shown, width)
    columns = {"pods": {"NAME"}, "all": {"NAME"}, "top": {"POD"}}.get(name, set())
    assert columns | {"NODE"} <= set(re.split(r"[\s/]+", " ".join(lines)))
    assert max(map(len, lines)) <= (130 if name == "all" else width)


def test_nothing_is_truncated_in_a_file() -> None:
    node = make_node("n" * 60, 1, models=["A" * 90])
    lines = drawn(show_nodes(state_of([node]).report(), NOW), None)
    assert "A" * 90 in lines[1]
    assert not any("\x1b" in line for line in lines)


def test_a_cordoned_card_has_a_status_of_its_own() -> None:
    page = show_nodes(state_of([make_node("n1", 3, unhealthy=[2], cordoned=[1, 2])]).report(), NOW)
    rows = [line.split() for line in drawn(page, None)[2:5]]
    assert [row[3] for row in rows] == ["Healthy", "Cordoned", "Unhealthy"]
    assert rows[2][-3:] == ["Xid", "79;", "cordoned"]


def hostile_state() -> ClusterState:
    """Hostile text wherever the API server lets it pass."""
    evil = scenes.HOSTILE
    cards = [Card(f"GPU-n1-{at}", at, evil, 32 * BLOCK, None, evil * (1 - at)) for at in (0, 1)]
    node = scenes.node_with("n1", *cards)
    ready = {"type": "Ready", "status": "False", "reason": evil}
    node["status"] = {"allocatable": {NAMES.core: "200"}, "conditions": [ready]}
    wish: dict[str, Any] = {"annotations": {NAMES.use_gpu_type: evil, NAMES.gpu_policy: evil}}
    pods: list[Json] = [
        scenes.waiting("big", (60, 8), message=evil, **wish),
        scenes.refused("late", (90, 4), "n1", evil),
        scenes.running(evil, (30, 4), "n1", 0, uid="u-evil"),
    ]
    state = state_of([node], pods, Gap("pods", evil, evil))
    state.put_event(scenes.event(pods[0], evil, evil, evil))
    state.put_event({**scenes.denied(), "message": f"gpu-turnstile {evil}"})
    return state


@pytest.mark.parametrize("name", ["nodes", "wide", "pods", "all", "explanation", "fit"])
def test_no_text_of_the_cluster_has_control_characters_or_markup(name: str) -> None:
    page = pages(hostile_state())[name]
    text = Screen(StringIO(), color=False, width=400).draw(page)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert r"\x1b[31m[red]evil\x1b]0;title\x07\u202e" in text


class Terminal(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_styles_are_used_in_a_terminal_unless_switched_off() -> None:
    page = show_nodes(scene().report(), NOW)
    colored = Screen(Terminal(), width=200).draw(page)
    assert "\x1b[" in colored
    assert "\x1b[" not in Screen(Terminal(), color=False, width=200).draw(page)


def test_pages_follow_each_other_in_a_file_and_replace_each_other_in_a_terminal() -> None:
    out, terminal = StringIO(), Terminal()
    with Screen(out).redrawing(on=False) as redraw:
        for _ in range(2):
            redraw(show_usage((), {}))
    first, second = out.getvalue().splitlines()
    assert first == second
    with Screen(terminal).redrawing() as redraw:
        redraw(show_usage((), {}))
    assert "No agent found" in terminal.getvalue()
    assert "\x1b[?1049h" in terminal.getvalue()  # on a screen of own, which is left again
    assert "\x1b[?1049l" in terminal.getvalue()


def test_a_bar_never_rounds_something_to_nothing_or_to_all() -> None:
    full = [bar(held, 100).count("█") for held in (0, 1, 99, 100)]
    assert full == [0, 1, 7, 8]
    assert bar(1, 100) == "█" + "░" * 7
    assert bar(0, 0) == "░" * 8


def test_ages_are_written_as_kubectl_does() -> None:
    ages = {"22T08:59:01": "59s", "22T08:00:00": "60m", "22T05:00:00": "4h", "19T09:00:00": "3d"}
    assert {at: age(f"2025-11-{at}Z", NOW) for at in ages} == ages
    assert age("2025-11-22T09:30:00Z", NOW) == "0s"
    assert age("", NOW) == "<unknown>"


def test_line_ends_become_spaces_and_other_control_characters_are_escaped() -> None:
    assert safe("a\r\nb\tc\u2028d\x9be") == r"a b c\u2028d\x9be"


def test_equal_nodes_and_cards_are_one_row() -> None:
    nodes = [make_node(f"n{number}", 4, unhealthy=[2]) for number in range(3)]
    held = scenes.running("a", (60, 4), "n2", 0)
    lines = drawn(show_fits(state_of(nodes, [held]).fit(make_pod("new", (60, 400)))))
    assert lines[4:10] == [
        "NODE             FITS   DETAIL",
        "n0 and 1 more    no     no card has 400 blocks",
        "  cards 0-1, 3   no     A100: 32 blocks free, 400 needed",
        "  card 2         no     A100: unhealthy (Xid 79)",
        "n2               no     no card has 400 blocks",
        "  card 0         no     A100: 40 cores free, 60 needed; 28 blocks free, 400 needed",
    ]
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_a_pod_without_a_suggested_change_shows_that() -> None:
    held = [scenes.running(f"a{card}", (60, 4), "n1", card) for card in (0, 1)]
    state = state_of([make_node("n1", 2)], held)
    state.put_pod(scenes.waiting("b", (900, 0)))
    message = (
        "No single change that gpu-turnstile can suggest would make it fit: "
        "no node has 9 cards; the largest has 2."
    )
    assert message in drawn(explanation(state, "b"))
    assert message in drawn(show_fits(state.fit(make_pod("b", (900, 0)))))


def test_instructions_are_shown_for_changes_that_the_author_can_make() -> None:
    how = "  To apply a change of the manifest, delete the pod and create it again"
    for held, shown in (((60, 4), True), ((100, 32), False)):
        pods = [scenes.running("a", held, "n1", 0), scenes.waiting("b", (50, 4))]
        state = state_of([make_node("n1", 1)], pods)
        assert any(line.startswith(how) for line in drawn(explanation(state, "b"))) == shown


def test_an_amount_of_one_is_singular() -> None:
    held = [scenes.running("a", (99, 31), "n1", 0)]
    state = state_of([make_node("n1", 1)], [*held, scenes.waiting("b", (1, 2), (1, 1))])
    lines = drawn(explanation(state, "b"))
    ours = [line for line in lines if "no card has" not in line]  # the extender's words
    assert not [line for line in ours if re.search(r"\b1 (cores|blocks|memory blocks)\b", line)]
    assert "  card 0   no     A100: 1 block free, 2 needed" in lines


def test_a_card_without_its_agent_is_shown_as_unknown_for_its_pod_too() -> None:
    pod = scenes.running("a", (30, 4), "n1", 0)
    for allocatable, status in (("200", "Healthy"), ("0", "Unknown")):
        state = state_of([make_node("n1", 1, allocatable=allocatable)], [pod])
        (row,) = (each for each in drawn(explanation(state, "a")) if each.startswith("0 "))
        assert status in row.split()


def test_unread_wishes_of_a_pod_are_a_warning() -> None:
    pod = make_pod("a", (30, 4), annotations={"tencent.com/use-gputype": "A30"})
    lines = drawn(explanation(state_of([make_node("n1", 1)], [pod]), "a"))
    what = "gpu-turnstile does not read tencent.com/use-gputype"
    assert lines[2] == f"Warning: write tencent.com/use-gpu-type: {what}"


def test_a_translated_pod_shows_its_original_request() -> None:
    kept = {"dialect": "hami", "resources": {"c0": {"nvidia.com/gpu": "3"}}}
    pod = make_pod("a", (300, 0), annotations={NAMES.translated_from: json.dumps(kept)})
    lines = drawn(explanation(state_of([make_node("n1", 2)], [pod]), "a"))
    assert lines[2] == "Translated from hami: c0: nvidia.com/gpu 3"
    (how,) = (each for each in lines if "To apply a change" in each)
    assert "Its author wrote another system's names: write the change in these, or all" in how


def test_a_long_finding_wraps_below_its_text_not_below_its_level() -> None:
    words = " ".join(["words"] * 20)
    page = show_findings([Finding("agents", Level.ERROR, words, "run it", ("n1",))])
    first, second, *_ = drawn(page, 60)
    assert first.startswith("error   agents  n1: words")
    assert second.startswith(" " * 16 + "words")
    assert " ".join(each.strip() for each in drawn(page, 60)[:3]).endswith(words)
    assert drawn(page, None)[0] == f"error   agents  n1: {words}"
