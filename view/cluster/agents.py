"""What agents measure, read through the API server's proxy to their pods."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from common.apiserver.client import Json, object_path, quoted
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.model.usage import PREFIX, NodeUse, Sample, read_use

AGENT_NAMESPACE = "gpu-turnstile-node"
AGENT_LABEL = "app.kubernetes.io/name=gpu-turnstile-agent"
_PORT, _PORT_NAME = 9440, "http"
_SECONDS = 5.0
_AT_ONCE = 16


class Api(Protocol):
    """The part of the client that is used."""

    def list(
        self, path: str, query: Mapping[str, str], within: float | None = None
    ) -> tuple[list[Json], str, str]:
        """List one page: objects, resource version, what continues the list."""
        ...

    def read_text(self, path: str, *, timeout: float) -> str:
        """Get what is no object."""
        ...


def read_uses(
    api: Api, namespace: str = AGENT_NAMESPACE, nodes: Sequence[str] | None = None
) -> tuple[NodeUse, ...]:
    """Ask agents what they measure.

    Args:
        api: the client.
        namespace: where their pods are.
        nodes: only those on these; ``None`` for all.

    Returns:
        One answer for each node with an agent, sorted; an agent that does not answer is one with
        a problem.

    Raises:
        Rejected: the agents' pods may not be listed.
        Unavailable: no usable answer from the API server.
    """
    pods, more = [], ""
    while True:
        query = {
            "labelSelector": AGENT_LABEL,
            "limit": "500",
            **({"continue": more} if more else {}),
        }
        page, _, more = api.list(object_path("pods", namespace), query)
        pods += page
        if not more:
            break
    running = [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
        and pod["spec"].get("nodeName")
        and (nodes is None or pod["spec"]["nodeName"] in nodes)
    ]
    if not running:
        return ()
    with ThreadPoolExecutor(min(len(running), _AT_ONCE)) as pool:
        answers = list(pool.map(lambda pod: _ask(api, namespace, pod), running))
    by_node: dict[str, NodeUse] = {}
    for answer in answers:  # of two, one is ending, or waits for that
        before = by_node.get(answer.node)
        if before is None or before.problem:
            by_node[answer.node] = answer
    return tuple(use for _, use in sorted(by_node.items()))


def _ask(api: Api, namespace: str, pod: Json) -> NodeUse:
    node = pod["spec"]["nodeName"]
    target = quoted(f"{pod['metadata']['name']}:{_port(pod)}")
    path = f"/api/v1/namespaces/{quoted(namespace)}/pods/{target}/proxy/metrics"
    try:
        text = api.read_text(path, timeout=_SECONDS)
        return read_use(node, parse_samples(text))
    except (Rejected, Gone, Unavailable, ValueError) as error:
        return NodeUse(node, f"its agent cannot be asked: {error}")


def parse_samples(text: str, prefix: str = PREFIX) -> list[Sample]:
    """Read metrics in Prometheus' text format; only those with a prefix, by default of agents.

    Raises:
        ValueError: it is something else.
    """
    # What serves metrics comes with it; most commands read none.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        if family.name.startswith(prefix)
        for sample in family.samples
    ]


def _port(pod: Json) -> int:
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT_NAME:
                return int(port.get("containerPort", _PORT))
    return _PORT
