"""Hostile pods: calls are served or refused, and allocations are written or not.

Nothing else may happen: an unexpected exception would end a call with INTERNAL, or a thread of the
agent, and with it the service for all pods of the node.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.allocator.interfaces import DecisionLog
from agent.errors import Refusal
from agent.kubernetes_api.annotation_writer import PatchQueue
from agent.observability.decision_log import LoggedDecisions
from agent.observability.metrics import Metrics
from common.logs import JsonFormatter
from contract.allocation import Allocation, Evidence, encode_allocations
from contract.resource import Resource
from contract.stamps import OrderStamp
from tests.agent.builders import patient
from tests.agent.fakes import make_manifest
from tests.agent.kubernetes_api.test_annotation_writer import FakePatchApi
from tests.examples import share
from tests.in_memory.node import Node
from tests.in_memory.pods import NAMES, Pod, ReadPod, gpu, make_pod

LOST = Allocation(("GPU-LOST",), 30, 8, Evidence.WITNESS)


class WholeNode(Node):
    """A node whose allocator writes with the real queue and the real decision log."""

    def restart_agent(self) -> None:
        super().restart_agent()
        self.queue = PatchQueue(
            api=FakePatchApi(), names=NAMES, indices={f"GPU-{each}": each for each in range(2)}
        )
        self.api.put = self.queue.put  # type: ignore[method-assign]

    def make_decision_log(self) -> DecisionLog:
        return LoggedDecisions(Metrics())

    def run(self, pod: Pod) -> None:
        """Bind a pod, admit it, start it, and refresh, as the agent's threads do."""
        self.bind(pod)
        self.catch_up()
        with suppress(Refusal):
            self.admit(pod)
            for container in pod.containers:
                if self.held(pod, container.name):
                    self.start(pod, container.name)
        self.allocator.refresh()
        self.catch_up()
        for resource in Resource:
            self.allocator.free(resource)
        for container in pod.containers:
            self.allocator.entitled(pod.uid, container.name)

    def catch_up(self) -> None:
        for view in self.watch.cache.pods():
            self.allocator.catch_up(view)


def test_an_allocation_of_a_card_that_this_node_lacks_is_not_valid() -> None:
    """Copied into a manifest of kube-system, or older than the webhook."""
    written = encode_allocations({"c0": LOST, "c1": LOST})
    containers = gpu(30, 8, "c0"), gpu(30, 8, "c1")
    node = Node()
    pod = node.admit(make_pod("a", *containers, gpu_allocation=written, gpu_assigned="true"))
    node.allocator.refresh()
    cards = {name: list(each.cards) for name, each in node.written(pod).items()}
    assert cards == {name: node.cards(pod, name) for name in ("c0", "c1")}


_counts = st.sampled_from([0, 1, 8, 30, 40, 50, 100, 150, 200, -1, 2**63, 10**30, 0.5, True, "30"])
_cards = st.sampled_from(["GPU-0", "GPU-1", "GPU-LOST", "", "GPU-0::1", "\ud800", 7, None])


def _entries(cards: Any, cores: Any, blocks: Any, evidence: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"cards": cards, "cores": cores, "memoryBlocks": blocks, "evidence": evidence}
    )


_entry = _entries(
    *(st.lists(_cards, max_size=3), _counts, _counts),
    st.sampled_from(["ticket", "witness", "order", "record", "god", None]),
)
_true_entry = _entries(
    st.sampled_from([["GPU-0"], ["GPU-1"], ["GPU-LOST"]]),
    *(st.sampled_from([30, 50, 100]), st.sampled_from([0, 4, 8]), st.just("witness")),
)
_record = (
    st.dictionaries(
        st.sampled_from(["c0", "c1", "i0", "other", ""]),
        _true_entry | _entry | st.none() | st.text(max_size=5),
        max_size=3,
    ).map(json.dumps)
    | st.sampled_from(["", "null", "[]", '{"c0":', "[" * 5000, "1" * 5000, '{"c0": NaN}'])
    | st.text(max_size=20)
)
_stamp = (
    st.builds(
        lambda time, count: OrderStamp(time, "create", count).encode(),
        st.sampled_from([1, 10**18, 2**62]),
        st.integers(0, 9),
    )
    | st.text(max_size=30)
    | st.sampled_from(["9" * 400, "-1", "0"])
)
_indices = st.text("0123456789,- ", max_size=12) | st.sampled_from(["0", "1", "0,1", "7", "0,0"])
_words = st.sampled_from(["true", "false", "", "spread", "binpack", "0", "50", "9" * 30, "GPU-0"])
_annotations = st.fixed_dictionaries(
    {},
    optional={
        NAMES.gpu_allocation: _record,
        **dict.fromkeys((NAMES.admission_order, NAMES.bind_order, NAMES.predicate_time), _stamp),
        **dict.fromkeys((NAMES.predicate_gpu_idx(0), NAMES.predicate_gpu_idx(1)), _indices),
        **dict.fromkeys((NAMES.gpu_assigned, NAMES.gpu_policy, NAMES.core_limit), _words),
        **dict.fromkeys((NAMES.use_gpu_uuid, NAMES.use_gpu_type), _words | st.text(max_size=5)),
        NAMES.nouse_gpu_uuid: _words,
        **{f"kubernetes.io/config.{each}": _words for each in ("mirror", "hash")},
    },
)
_limits = st.none() | st.tuples(
    st.sampled_from(["30", "50", "100", "150", "200", "0", "-1", "1.5", "9" * 12, "1k"]),
    st.sampled_from(["8", "4", "0", "40", "-3", "1Ki"]),
)
Limits = list[tuple[str, str] | None]


class Drawn(NamedTuple):
    """A pod, by the limits of its containers; ``None`` for a container without any."""

    annotations: dict[str, Any]
    inits: Limits
    mains: Limits
    phase: str


_pods = st.lists(
    st.builds(
        Drawn,
        _annotations,
        st.lists(_limits, max_size=1),
        st.lists(_limits, min_size=1, max_size=2),
        st.sampled_from(["Pending", "Pending", "Running", "Failed"]),
    ),
    min_size=1,
    max_size=3,
)


def _containers(kind: str, listed: Limits) -> list[dict[str, Any]]:
    return [
        {"name": f"{kind}{index}"}
        | ({"resources": {"limits": {NAMES.core: each[0], NAMES.memory: each[1]}}} if each else {})
        for index, each in enumerate(listed)
    ]


def _pod(number: int, drawn: Drawn) -> dict[str, Any]:
    manifest = make_manifest(f"p{number}", annotations=drawn.annotations, uid=f"uid-{number}")
    manifest["spec"]["initContainers"] = _containers("i", drawn.inits)
    manifest["spec"]["containers"] = _containers("c", drawn.mains)
    manifest["status"] = {"phase": drawn.phase}
    return manifest


@pytest.fixture
def formatted() -> Iterator[None]:
    """Every line of the log is formatted and encoded, as in the agent's own process."""

    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            JsonFormatter().format(record).encode()

    handler, root = Strict(), logging.getLogger("agent")
    root.addHandler(handler)
    yield
    root.removeHandler(handler)


@example(  # in an earlier call less of the pod was known than in a later one
    drawn=[
        Drawn({}, [], [None], "Pending"),
        Drawn({}, [("30", "40")], [None, ("30", "8")], "Pending"),
    ],
    restarted=False,
    strict=False,
)
@settings(
    patient, max_examples=share(60), suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the log's handler is the same for all
@given(drawn=_pods, restarted=st.booleans(), strict=st.booleans())
def test_calls_of_any_pod_are_served_or_refused(
    drawn: list[Drawn], restarted: bool, strict: bool, formatted: None
) -> None:
    node = WholeNode(strict=strict)
    for number, each in enumerate(drawn):
        node.run(ReadPod(_pod(number, each)))
    if restarted:
        node.restart_agent()
        node.allocator.refresh()
        node.catch_up()
        node.run(make_pod("last", gpu(30, 8)))
