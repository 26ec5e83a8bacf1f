"""What agents measure, read through the API server's proxy to their pods."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from common.apiserver.client import Client, Json, object_path, quoted
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.cluster.collections import pages
from view.model.usage import PREFIX, MetricSample, NodeUsage, read_use

AGENT_NAMESPACE = "gpu-turnstile-node"
_LABEL, _NAME = "app.kubernetes.io/name", "gpu-turnstile-agent"
_PORT = 9440
_SECONDS = 5.0
_AT_ONCE = 16


def read_uses(
    api: Client, namespace: str = AGENT_NAMESPACE, nodes: Sequence[str] | None = None
) -> tuple[NodeUsage, ...]:
    """Ask agents what they measure.

    Returns:
        One answer for each node with an agent, sorted; an agent that does not answer is one with
        a problem.

    Raises:
        Rejected: the agents' pods may not be listed.
        Unavailable: no usable answer from the API server.
    """
    running = [
        pod
        for page, _ in pages(api, object_path("pods", namespace), {})
        for pod in page
        if _is_agent(pod)
        and (pod.get("status") or {}).get("phase") == "Running"
        and pod["spec"].get("nodeName")
        and (nodes is None or pod["spec"]["nodeName"] in nodes)
    ]
    if not running:
        return ()
    with ThreadPoolExecutor(min(len(running), _AT_ONCE)) as pool:
        answers = list(pool.map(lambda pod: _ask(api, namespace, pod), running))
    by_node: dict[str, NodeUsage] = {}
    for answer in answers:  # of two, one is ending, or waits for that
        before = by_node.get(answer.node)
        if before is None or before.problem:
            by_node[answer.node] = answer
    return tuple(use for _, use in sorted(by_node.items()))


def _ask(api: Client, namespace: str, pod: Json) -> NodeUsage:
    node = pod["spec"]["nodeName"]
    try:
        return read_use(node, read_metrics(api, namespace, pod))
    except (Rejected, Gone, Unavailable, ValueError) as error:
        return NodeUsage(node, f"its agent cannot be asked: {error}")


def read_metrics(
    api: Client, namespace: str, pod: Json, prefix: str = PREFIX
) -> list[MetricSample]:
    """Ask a pod of ours for its metrics, at its port ``http`` or ``https``.

    Raises:
        Rejected: it may not be asked.
        Unavailable: it does not answer.
        ValueError: it answers with something else.
    """
    port, scheme = _PORT, ""
    for container in pod["spec"].get("containers") or ():
        for each in container.get("ports") or ():
            if each.get("name") in ("http", "https"):
                port = int(each.get("containerPort", _PORT))
                scheme = "https:" if each["name"] == "https" else ""
    target = quoted(f"{scheme}{pod['metadata']['name']}:{port}")
    path = f"/api/v1/namespaces/{quoted(namespace)}/pods/{target}/proxy/metrics"
    return parse_samples(api.read_text(path, timeout=_SECONDS), prefix)


def parse_samples(text: str, prefix: str = PREFIX) -> list[MetricSample]:
    """Read metrics in Prometheus' text format; only those with a prefix, by default of agents.

    Raises:
        ValueError: it is something else.
    """
    # What serves metrics comes with it; most commands read none.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    return [
        MetricSample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        if family.name.startswith(prefix)
        for sample in family.samples
    ]


def _is_agent(pod: Json) -> bool:
    """Return whether a pod is an agent, of whichever DaemonSet: pools of nodes may have their own.

    By the label of ours, or by what a container of it runs.
    """
    commands = [
        [*(each.get("command") or ()), *(each.get("args") or ())]
        for each in pod["spec"].get("containers") or ()
    ]
    return (pod["metadata"].get("labels") or {}).get(_LABEL) == _NAME or any(
        {"agent", "agent.supervisor"} & {*command} for command in commands
    )
