"""The routes of a page over a model that the test fills."""

from collections.abc import Iterable, Iterator
from typing import cast

import pytest

from common.apiserver.client import Client
from simulator.api.server import ApiServer
from simulator.api.server import Settings as ApiSettings
from tests.placement.cluster.builders import NAMES, Json
from tests.view import scenes
from tests.view.conftest import ManualTime, populate
from tests.view.web.sample import cluster
from view.model.pod_explanation import PodExplanation
from view.model.reports import Freshness
from view.model.state import ClusterState
from view.model.usage import explanation_with_usage, with_usage
from view.web.app import create_app
from view.web.editions import next_edition
from view.web.feed import Feed
from view.web.hosts import Hosts
from view.web.live import Live
from view.web.metrics import Metrics


def put(state: ClusterState, objects: Iterable[Json]) -> None:
    """Let a model know these objects, as far as it reads their kind."""
    puts = {"Node": state.put_node, "Pod": state.put_pod, "Event": state.put_event}
    for each in objects:
        if each["kind"] in puts:
            puts[each["kind"]](each)


class Shown(Live):
    """A page over a model that the test fills."""

    def __init__(self) -> None:
        self.state = ClusterState(NAMES, now=lambda: scenes.NOW)
        client = cast("Client", None)  # no request is sent
        timing = ManualTime().timing()
        super().__init__(client, self.state, Feed(1), Metrics(), namespace="default", timing=timing)
        self.waiting_for = ""
        self.broken = False
        self.client = create_app(self, Feed(1), hosts=Hosts(), metrics=Metrics()).test_client()

    def text(self, path: str = "/") -> str:
        return self.client.get(path).text

    def fill(self, *objects: Json) -> None:
        put(self.state, objects)
        self.publish()

    def publish(self) -> None:
        self.edition = next_edition(self.edition, with_usage(self.state.report(), self.uses))

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        if self.broken:
            raise RuntimeError("a mistake of ours")
        explanation = self.state.explain(namespace, name)
        return explanation and explanation_with_usage(explanation, self.uses)

    def not_ready(self) -> str:
        return self.waiting_for

    @property
    def freshness(self) -> Freshness:
        return Freshness(self.now())

    @property
    def measured_at(self) -> float:
        return 1_763_800_000.0 if self.uses else 0.0


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server with the sample."""
    with ApiServer(ApiSettings(bookmark_s=0.1)) as running:
        populate(running, cluster())
        yield running
