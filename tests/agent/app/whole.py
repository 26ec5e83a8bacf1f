"""A whole agent in this process: run, read by its pages, and ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3

from agent.app.agent import Agent, AgentPace
from agent.app.refresher import RefreshPace
from agent.settings import Settings
from simulator.client import ApiClient
from tests.agent.fakes import DEADLINE_S

PODS = "/api/v1/namespaces/default/pods"
FAST = AgentPace(
    refresh=RefreshPace(refresh=0.1, release=0.1, sync=DEADLINE_S), node=0.1, driver_retry=0.1
)
"""Waits for the node's pods however slow the machine is, and for everything else hardly at all."""


@contextmanager
def running(settings: Settings, *, pace: AgentPace = FAST, **parts: Any) -> Iterator[Agent]:
    agent = Agent(settings, pace=pace, **parts)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()
        for thread in agent.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def page(agent: Agent, path: str) -> tuple[int, str]:
    with urllib3.PoolManager(retries=False, timeout=DEADLINE_S) as pool:
        response = pool.request("GET", f"http://127.0.0.1:{agent.http_port}{path}")
        return response.status, response.data.decode()


def metrics(agent: Agent) -> set[str]:
    lines = page(agent, "/metrics")[1].splitlines()
    return {each.removeprefix("gpu_turnstile_agent_") for each in lines}


def ready(agent: Agent) -> bool:
    return page(agent, "/readyz") == (200, "ok\n")


def events(admin: ApiClient) -> list[dict[str, Any]]:
    return list(admin.get("/api/v1/namespaces/default/events")["items"])
