"""The stream must notice every pod that fails, and every one that never ends; unit tests."""

import pytest

from tests.e2e.cluster import Json
from tests.e2e.ground import wait
from tests.e2e.stream import Stream


class _Pods:
    """Pods that end as soon as they are looked at, in the phase that their number says."""

    def __init__(self, phases: dict[int, str]) -> None:
        self._phases = phases
        self._names: list[str] = []
        self.looks = 0

    def create(self, name: str) -> None:
        self._names.append(name)

    def look(self) -> dict[str, Json]:
        self.looks += 1
        return {name: {"status": self._status(name)} for name in list(self._names)}

    def _status(self, name: str) -> Json:
        phase = self._phases.get(int(name.rpartition("-")[2]), "Succeeded")
        return {"phase": phase, "reason": "UnexpectedAdmissionError", "message": "no"}


def test_each_pod_that_fails_is_told_with_its_reason() -> None:
    pods = _Pods({3: "Failed"})
    with Stream(pods.create, pods.look, per_second=1000) as stream:
        wait("pods", stream.more(20))

    assert stream.failed == {"stream-3": "UnexpectedAdmissionError: no"}
    assert str(stream).endswith("1 failed; 1 times UnexpectedAdmissionError: no")


def test_a_pod_that_never_ends_is_an_error() -> None:
    pods = _Pods({5: "Running"})
    with (
        pytest.raises(AssertionError, match=r"1 pods do not end, such as \['stream-5'\]"),
        Stream(pods.create, pods.look, per_second=1000, within=0.5) as stream,
    ):
        wait("pods", stream.more(20))


def test_a_pod_that_cannot_be_created_is_an_error() -> None:
    def refuse(_name: str) -> None:
        raise ValueError("refused")

    with (
        pytest.raises(ValueError, match="refused"),
        Stream(refuse, dict, per_second=1000) as stream,
    ):
        wait("pods", stream.more(5))
