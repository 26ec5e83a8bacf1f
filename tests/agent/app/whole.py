"""A whole agent in this process: run, asked for its pages, and ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3

from agent.app.agent import Agent
from agent.settings import Settings
from tests.agent.fakes import DEADLINE_S

PODS = "/api/v1/namespaces/default/pods"


@contextmanager
def running(settings: Settings, **parts: Any) -> Iterator[Agent]:
    """Run an agent, and end it."""
    agent = Agent(settings, **parts)
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


def ready(agent: Agent) -> bool:
    return page(agent, "/readyz") == (200, "ok\n")
