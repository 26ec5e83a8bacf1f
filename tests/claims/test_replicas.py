"""Two replicas whose watches lag behind: waiting pods get templates, unused ones are deleted."""

import itertools
from collections import Counter
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from claims.cluster import ClaimsApi
from claims.metrics import Metrics
from claims.state import TemplateState
from claims.writer import TemplateWriter
from common.apiserver.errors import Rejected
from contract.names import Names
from tests.claims.test_state import Json, make_pod, make_template, put, with_claim
from tests.examples import share

NAMES = Names()
UNUSED = 3600.0
SHAPES = st.integers(1, 3)


class Cluster:
    """Pods and templates of one namespace, and the events that each replica has not seen yet."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.templates: dict[str, Json] = {}  # by name
        # Of each replica: an object or a deleted UID.
        self.events: list[list[Json | str]] = [[], []]
        self.writes = Counter[str]()
        self.uids = map(str, itertools.count())

    def notify(self, event: Json | str) -> None:
        for each in self.events:
            each.append(event)

    def add_pod(self, shape: int) -> None:
        uid = next(self.uids)
        self.pods[uid] = make_pod(uid, shape, uid=uid)
        self.notify(self.pods[uid])

    def end_pod(self) -> None:
        if self.pods:
            uid = next(iter(self.pods))
            del self.pods[uid]
            self.notify(uid)

    def make_claims(self) -> None:
        """As kube-controller-manager does, for all pods whose template is there."""
        for uid, pod in self.pods.items():
            if named(pod) in self.templates and "status" not in pod:
                self.pods[uid] = with_claim(pod)
                self.notify(self.pods[uid])

    def remove_template(self, shape: int) -> None:
        template = self.templates.pop(named(make_pod("x", shape)), None)
        if template is not None:
            self.notify(template["metadata"]["uid"])

    def add_template(self, shape: int) -> None:
        """As an administrator does by hand, with another spec."""
        pod = make_pod("x", shape)
        if named(pod) not in self.templates:
            self.store(make_template(pod, spec={"devices": {}}))

    def store(self, template: Json) -> None:
        template["metadata"] |= {"uid": next(self.uids), "namespace": "team"}
        self.templates[template["metadata"]["name"]] = template
        self.notify(template)

    # What the writer calls.

    def find_pod(self, _namespace: str, name: str) -> Json | None:
        return self.pods.get(name)

    def create_template(self, _namespace: str, template: Json) -> None:
        self.writes["create"] += 1
        if template["metadata"]["name"] in self.templates:
            raise Rejected(409, "it exists")
        self.store(template)

    def delete_template(self, _namespace: str, name: str, uid: str) -> None:
        self.writes["delete"] += 1
        found = self.templates.get(name)
        if found is None or found["metadata"]["uid"] != uid:
            raise Rejected(409, "it is another one")
        del self.templates[name]
        self.notify(uid)

    def call(self, *request: object, **_: object) -> Json:
        raise AssertionError(request)


def named(pod: Json) -> str:
    return str(pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])


class Replica:
    def __init__(self, cluster: Cluster, number: int, now: list[float]) -> None:
        self.events = cluster.events[number]
        self.state = TemplateState(NAMES)
        self.writer = TemplateWriter(
            self.state,
            cast(ClaimsApi, cluster),
            Metrics(),
            names=NAMES,
            most=500,
            unused=UNUSED,
            clock=lambda: now[0],
        )

    def see(self, most: int) -> None:
        for each in self.events[:most]:
            if isinstance(each, str):
                self.state.drop(each)
            else:
                put(self.state, each)
        del self.events[:most]


MOVES: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.sampled_from(["add_pod", "add_template", "remove_template"]), SHAPES),
    st.tuples(st.sampled_from(["end_pod", "make_claims"]), st.none()),
    st.tuples(st.just("see"), st.tuples(st.integers(0, 1), st.integers(1, 4))),
    st.tuples(st.just("write"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, UNUSED / 2, UNUSED])),
)


@given(st.lists(MOVES, max_size=30))
@settings(max_examples=share(200), deadline=None)
def test_each_waiting_pod_gets_its_template_however_late_replicas_see_events(
    moves: list[tuple[str, Any]],
) -> None:
    cluster, now = Cluster(), [0.0]
    replicas = [Replica(cluster, number, now) for number in range(2)]
    for move, value in moves:
        if move == "see":
            replicas[value[0]].see(value[1])
        elif move == "write":
            replicas[value].writer.write()
        elif move == "wait":
            now[0] += value
        else:
            getattr(cluster, move)(*([] if value is None else [value]))
    cluster.writes.clear()
    for _ in range(3):  # each sees what the other one has written
        now[0] += 60
        for each in replicas:
            each.see(1000)
            each.writer.write()
    for pod in cluster.pods.values():
        assert "status" in pod or named(pod) in cluster.templates
    assert max(cluster.writes.values(), default=0) <= 3 * len(replicas)
    cluster.make_claims()
    cluster.writes.clear()
    for _ in range(3):
        now[0] += UNUSED
        for each in replicas:
            each.see(1000)
            each.writer.write()
    assert cluster.templates.keys() <= {named(each) for each in cluster.pods.values()}
    assert cluster.writes["create"] == 0
