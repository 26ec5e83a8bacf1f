"""Our decisions beside what the peers' own tests expect."""

import pytest

from bench import peers
from bench.peercases import ADMISSION, NVIDIA, Choice, Pods
from bench.peers import Outcome


def test_no_case_of_the_peers_tests_is_decided_worse() -> None:
    result = peers.run()
    (table,) = result.tables
    assert {row[0] for row in table.rows} == {
        *("go-gpuallocator", "gpu-manager", "gpu-admission", "HAMi")
    }
    for _, _, cases, *outcomes in table.rows:
        assert sum(map(int, outcomes)) == cases
    assert result.goals[0].met, table.notes


@pytest.mark.parametrize(
    ("free", "size", "expected", "outcome"),
    [
        ("0123", 2, "02", Outcome.SAME),
        ("4567", 2, "57", Outcome.TIE),
        ("0123", 2, "01", Outcome.BETTER),
        ("0123", 2, "", Outcome.BETTER),
        ("01", 3, "012", Outcome.WORSE),
    ],
)
def test_sets_are_compared_by_what_they_are_worth(
    free: str, size: int, expected: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Choice(NVIDIA, "test", "DGX-1 Pascal", free, "", size, expected)
    monkeypatch.setattr(peers, "CHOICES", (case,))
    monkeypatch.setattr(peers, "ROWS", ())
    monkeypatch.setattr(peers, "PODS", ())
    monkeypatch.setattr(peers, "FITTINGS", ())
    assert [each for _, _, each, _ in peers.outcomes()] == [outcome]


def test_a_pod_that_the_peer_serves_and_ours_does_not_is_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = ("60/2", "60/2", "-0", "60/2", "150/2", "10/9")
    case = Pods(ADMISSION, "test", *(1, 1, 4), pods, ("0:0", "0:0", "", "0:0", "0:0", "0:0"))
    monkeypatch.setattr(peers, "CHOICES", ())
    monkeypatch.setattr(peers, "ROWS", ())
    monkeypatch.setattr(peers, "PODS", (case,))
    monkeypatch.setattr(peers, "FITTINGS", ())
    assert [each.value for _, _, each, _ in peers.outcomes()] == ["same", *["worse"] * 4]
