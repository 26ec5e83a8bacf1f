"""The queue of allocation annotations: what is written, when again, and when not."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import Unavailable
from agent.kubernetes_api.annotation_writer import PatchQueue, allocation_patch
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from contract.allocation import Allocation, Evidence, decode_allocations
from placement.pods import PodInfo, read_pod
from tests.agent.builders import patient
from tests.agent.fakes import NAMES, FakeClock
from tests.examples import share
from tests.in_memory import pods as in_memory
from tests.in_memory.pods import Container, gpu, init

INDICES = {"GPU-0": 0, "GPU-1": 1}
GOT = {"main": Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)}
LESS = {"main": Allocation(("GPU-0",), 30, 8, Evidence.ORDER)}


def make_pod(name: str, *containers: Container) -> PodInfo:
    return read_pod(in_memory.make_pod(name, *containers).manifest(), NAMES)


class FakePatchApi(Api):
    """An API server with given failures; after them it accepts everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.patches: list[tuple[str, Json]] = []
        self.uids: dict[str, str] = {}
        self.unreachable = False
        self.meanwhile: Callable[[], None] = lambda: None

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        self.meanwhile()
        if self.errors:
            raise self.errors.pop(0)
        self.patches.append((f"{namespace}/{name}", patch))

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        if self.unreachable:
            raise Unavailable("no response")
        uid = self.uids.get(name)
        return None if uid is None else {"metadata": {"uid": uid}}


class Writing:
    def __init__(self, *errors: Exception) -> None:
        self.api, self.clock = FakePatchApi(*errors), FakeClock()
        self.results: list[str] = []
        self.queue = PatchQueue(
            api=self.api,
            names=NAMES,
            indices=INDICES,
            on_result=self.results.append,
            clock=self.clock,
        )

    def put(self, info: PodInfo, allocations: Mapping[str, Allocation]) -> None:
        self.queue.put(info, allocations)

    def write(self) -> list[str]:
        """Write until nothing waits, and return all results so far."""
        while self.queue.pending():
            self.queue.write_next()
        return self.results

    def cards(self) -> list[str]:
        index = NAMES.predicate_gpu_idx(0)
        return [patch["metadata"]["annotations"][index] for _, patch in self.api.patches]


def of(name: str = "a") -> PodInfo:
    return make_pod(name, gpu(30, 8))


def test_a_recorded_init_container_stays_recorded_when_only_the_others_are_reported() -> None:
    """Its slots are freed before the watch shows its annotation."""
    writing, pod = Writing(), make_pod("a", init(100, 0), gpu(30, 8))
    for allocations in ({"init": Allocation(("GPU-0",), 100, 0, Evidence.TICKET)}, GOT):
        writing.put(pod, allocations)
        writing.write()
    written = writing.api.patches[-1][1]["metadata"]["annotations"][NAMES.gpu_allocation]
    assert json.loads(written).keys() == {"init", "main"}


def test_a_patch_has_the_uid_the_allocations_and_the_indices_of_each_container() -> None:
    pod = make_pod("a", init(100, 0), init(100, 0, "next"), gpu(200, 9, "two"))
    allocations = {
        "next": Allocation(("GPU-0",), 100, 0, Evidence.TICKET),
        "two": Allocation(("GPU-0", "GPU-1"), 200, 9, Evidence.WITNESS),
    }
    patch = allocation_patch(pod, allocations, names=NAMES, indices=INDICES)
    annotations = patch["metadata"].pop("annotations")
    assert patch == {"metadata": {"uid": pod.id.uid}}
    assert decode_allocations(annotations.pop("tencent.com/gpu-allocation")) == allocations
    assert annotations == {
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-gpu-idx-0": "0,1",
        "tencent.com/predicate-gpu-idx-init-1": "0",
    }


MAY_PASS = [400, 401, 403, 408, 413, 422, 423]
"""Permissions may come after the agent, and a policy may be corrected."""
CONFLICT = Rejected(409, "the object has been modified")


@pytest.mark.parametrize(
    ("errors", "found", "results"),
    [
        ([Gone("expired")], "", "dropped"),
        # The API server may respond 404 from a cache that lags.
        ([Rejected(404, "no such pod")], "", "dropped"),
        ([KeyError("unforeseen")], "", "retried written"),
        ([Unavailable("no response")] * 2, "", "retried retried written"),
        ([Rejected(each, "no") for each in MAY_PASS], "", "retried " * len(MAY_PASS) + "written"),
        ([CONFLICT], "the same", "retried written"),
        ([CONFLICT], "unreachable", "retried written"),
        ([CONFLICT], "another", "dropped"),
    ],
)
def test_a_failed_write_is_tried_again_unless_its_pod_is_deleted_and_delays_no_other(
    errors: list[Exception], found: str, results: str
) -> None:
    writing, pod = Writing(*errors), of("a")
    if found:
        writing.api.uids["a"] = pod.id.uid if found == "the same" else "another UID"
    writing.api.unreachable = found == "unreachable"
    writing.put(pod, GOT)
    writing.put(of("b"), GOT)
    assert sorted(writing.write()) == sorted([*results.split(), "written"])
    writing.put(pod, GOT)  # a dropped write does not count as written
    writing.write()
    assert sorted(name for name, _ in writing.api.patches) == ["default/a", "default/b"]


@pytest.mark.parametrize(
    ("kinds", "served", "complete"),
    [
        ("i 1 2", "i 1", False),
        ("i 1 2", "1 2", True),  # the init container's devices cannot be known any more (K4)
        ("i 1 2", "i 1 2", True),
        ("i i2", "i", False),
        ("i i2", "i i2", True),
    ],
)
def test_only_a_complete_annotation_marks_the_pod_as_assigned(
    kinds: str, served: str, complete: bool
) -> None:
    pod = make_pod("a", *((init if "i" in n else gpu)(30, 8, n) for n in kinds.split()))
    allocations = {name: Allocation(("GPU-0",), 30, 8, Evidence.TICKET) for name in served.split()}
    patch = allocation_patch(pod, allocations, names=NAMES, indices=INDICES)
    assert ("tencent.com/gpu-assigned" in patch["metadata"]["annotations"]) is complete


def test_an_equal_allocation_is_written_once_unless_its_annotation_was_removed() -> None:
    writing, pod = Writing(), of()
    writing.put(pod, GOT)
    writing.put(pod, GOT)
    assert writing.queue.pending() == 1
    assert writing.write() == ["written"]
    writing.clock.now += 59
    writing.put(pod, GOT)  # the watch lags
    assert writing.queue.pending() == 0
    for later in (0, 61):
        writing.clock.now += later
        writing.put(pod, LESS)
        writing.write()
    assert writing.cards() == ["1", "0", "0"]


def test_evidence_that_is_only_newer_does_not_replace_a_waiting_write() -> None:
    """Once another pod is served all evidence is `record`, and the watch may lag."""
    writing, pod = Writing(), of()
    writing.put(pod, GOT)
    writing.put(pod, {"main": replace(GOT["main"], evidence=Evidence.RECORD)})
    writing.write()
    [(_, patch)] = writing.api.patches
    assert "witness" in patch["metadata"]["annotations"][NAMES.gpu_allocation]


_STEPS = st.lists(st.sampled_from(["put", "put less", "fail", "write"]), max_size=12)


@settings(patient, max_examples=share(20))
@given(_STEPS, st.booleans())
def test_the_last_write_is_the_last_allocation(steps: list[str], less: bool) -> None:
    """A correction may replace a waiting write, and be replaced while it waits."""
    writing, pod = Writing(), of()
    for step in (*steps, "put less" if less else "put"):
        if step == "fail":
            writing.api.errors.append(Unavailable("no response"))
        elif step == "write" and writing.queue.pending():
            writing.queue.write_next()
        elif step != "write":
            writing.put(pod, LESS if step == "put less" else GOT)
    writing.write()
    assert writing.cards()[-1] == ("0" if less else "1")


@pytest.mark.parametrize("errors", [[], [Unavailable("no response")], [CONFLICT]])
def test_an_allocation_that_comes_while_an_older_one_is_written_is_written_too(
    errors: list[Exception],
) -> None:
    writing, pod = Writing(*errors), of()

    def correct() -> None:
        writing.api.meanwhile = lambda: None
        writing.put(pod, GOT)

    writing.api.meanwhile = correct
    writing.put(pod, LESS)
    writing.write()
    assert writing.cards()[-1] == "1"
