"""Who holds and who wastes: sums over the time that has been seen, and nothing that was not."""

from dataclasses import replace

import pytest

from tests.placement.cluster.builders import NAMES, make_node, make_pod, record
from tests.view import scenes
from view.model import ledger as module
from view.model.ledger import Account, By, Ledger
from view.model.reports import ClusterReport
from view.model.state import ClusterState
from view.model.usage import ContainerUse, NodeUse

HOUR = 3600.0
BEGAN = 1_000_000.0


def report() -> ClusterReport:
    state = ClusterState(NAMES)
    state.put_node(make_node("n1", 2))
    told = {"a": ("GPU-n1-0", 60), "b": ("GPU-n1-1", 40), "lone": ("GPU-n1-1", 10)}
    for name, (uuid, cores) in told.items():
        annotations = record(c0=((uuid,), cores, 1))
        pod = make_pod(name, (cores, 1), node="n1", namespace="team", annotations=annotations)
        if name != "lone":
            owner = {"kind": "Job", "name": "train", "uid": "u-train", "controller": True}
            pod["metadata"]["ownerReferences"] = [owner]
        state.put_pod(pod)
    state.put_pod(scenes.waiting("late", (100, 0), (50, 1)))
    return state.report()


def used(**cores: float) -> dict[str, NodeUse]:
    containers = tuple(
        ContainerUse("team", name, "c0", (), 0, 0, amount, None) for name, amount in cores.items()
    )
    return {"n1": NodeUse("n1", measured=True, containers=containers)}


def look(ledger: Ledger, found: ClusterReport, uses: dict[str, NodeUse], seconds: float) -> None:
    """Look once a minute."""
    for minute in range(int(seconds // 60) + 1):
        ledger.take(found, uses, BEGAN + 60 * minute)


def by_name(ledger: Ledger, by: By, namespace: str = "") -> dict[str, Account]:
    accounts = ledger.state(by, namespace).accounts
    return {each.pod or each.owner or each.namespace: each for each in accounts}


def test_what_is_held_used_and_waited_for_is_added_up() -> None:
    ledger = Ledger()
    look(ledger, report(), used(a=15, b=90), HOUR)
    pods = by_name(ledger, By.POD)
    assert pods["a"].held == 0.6
    assert pods["a"].used == 0.15
    assert pods["a"].held_hours == pytest.approx(0.6)
    assert pods["a"].idle_hours == pytest.approx(0.45)
    assert pods["a"].idle_share == pytest.approx(0.75)
    assert pods["b"].idle_hours == 0, "who uses more than it holds makes up for nobody"
    assert (pods["late"].held, pods["late"].waiting) == (0, 1.5)
    assert set(by_name(ledger, By.OWNER)) == {"Job/train", "lone", "late"}
    team = by_name(ledger, By.NAMESPACE)["team"]
    assert team.held == pytest.approx(1.1)
    assert team.idle_hours == pytest.approx(0.45)
    assert [each.namespace for each in ledger.state(By.NAMESPACE).accounts] == ["team", "default"]
    assert set(by_name(ledger, By.POD, "default")) == {"late"}


def test_what_is_not_measured_is_neither_used_nor_idle() -> None:
    ledger = Ledger()
    look(ledger, report(), used(a=0), HOUR)
    lone = by_name(ledger, By.POD)["lone"]
    assert (lone.used, lone.measured_hours, lone.idle_share) == (None, 0, None)
    assert lone.held_hours == pytest.approx(0.1)
    team = by_name(ledger, By.NAMESPACE)["team"]
    assert team.measured_hours == pytest.approx(0.6)
    assert team.idle_share == 1


def test_time_in_which_nobody_looked_has_not_been_seen() -> None:
    ledger = Ledger()
    assert ledger.state(By.POD).since == 0
    look(ledger, report(), {}, 600)
    ledger.take(report(), {}, BEGAN + 600 + HOUR)
    ledger.take(report(), {}, BEGAN + 660 + HOUR)
    state = ledger.state(By.NAMESPACE)
    assert (state.since, state.until, state.seen) == (BEGAN, BEGAN + 660 + HOUR, 660)
    assert state.whole
    assert by_name(ledger, By.POD)["a"].held_hours == pytest.approx(0.6 * 660 / HOUR)


def test_what_is_older_than_a_day_is_forgotten_and_that_is_said() -> None:
    ledger = Ledger()
    look(ledger, report(), {}, 30 * HOUR)
    state = ledger.state(By.NAMESPACE)
    assert not state.whole
    assert 21 * HOUR <= state.until - state.since <= 24 * HOUR
    assert state.seen == state.until - state.since


def test_of_very_many_pods_the_last_are_added_up_by_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PODS", 1)
    ledger = Ledger()
    found = replace(report())
    look(ledger, found, {}, HOUR)
    accounts = ledger.state(By.POD).accounts
    further = [each for each in accounts if not each.pod]
    assert {(each.namespace, each.owner) for each in further} >= {("team", "Job/train")}
    assert sum(each.held_hours for each in accounts) == pytest.approx(1.1)
