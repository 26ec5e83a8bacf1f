"""Reads the agents' metrics through the API server's proxy to their pods."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from common.apiserver.client import Client, Json, object_path, pages, quoted
from common.apiserver.errors import REQUEST_ERRORS
from common.errors import Unavailable
from view.model.usage import PREFIX, MetricSample, NodeUsage, read_usage

AGENT_NAMESPACE = "gpu-turnstile-node"
_LABEL, _NAME = "app.kubernetes.io/name", "gpu-turnstile-agent"
_PORT = 9440
_SECONDS = 5.0
_AT_ONCE = 16


def read_usages(
    api: Client, namespace: str = AGENT_NAMESPACE, nodes: Sequence[str] | None = None
) -> tuple[NodeUsage, ...]:
    """Read the usage from all agents, or those on *nodes*.

    Returns:
        The usage of each node with an agent, sorted; if its agent does not respond, with a problem.

    Raises:
        Rejected: the agents' pods may not be listed.
        Unavailable: the API server does not respond usably.
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
    with ThreadPoolExecutor(min(len(running), _AT_ONCE)) as pool, api.interruptible():
        usages = list(pool.map(lambda pod: _read_node(api, namespace, pod), running))
    by_node: dict[str, NodeUsage] = {}
    for usage in usages:  # of two agents on a node, one is stopping or waits for the other
        before = by_node.get(usage.node)
        if before is None or before.problem:
            by_node[usage.node] = usage
    return tuple(use for _, use in sorted(by_node.items()))


def _read_node(api: Client, namespace: str, pod: Json) -> NodeUsage:
    node = pod["spec"]["nodeName"]
    try:
        return read_usage(node, read_metrics(api, namespace, pod))
    except (*REQUEST_ERRORS, ValueError) as error:
        return NodeUsage(node, f"the metrics of its agent cannot be read: {error}")


def read_metrics(
    api: Client, namespace: str, pod: Json, prefix: str = PREFIX
) -> list[MetricSample]:
    """Read the metrics of one of our pods.

    Raises:
        Rejected, Unavailable: as by :func:`read_page`.
        ValueError: the response is not a page of metrics.
    """
    return parse_samples(read_page(api, namespace, pod, "metrics"), prefix)


def read_page(api: Client, namespace: str, pod: Json, page: str) -> str:
    """Read a page, such as ``readyz``, of one of our pods, from its port ``http`` or ``https``.

    Raises:
        Rejected: it may not be read, or the pod responds 4xx.
        Unavailable: the pod does not respond, or with 5xx. The message begins with port and page.
    """
    port, scheme = _PORT, ""
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for each in container.get("ports") or ():
            if each.get("name") in ("http", "https"):
                port = int(each.get("containerPort", _PORT))
                scheme = "https:" if each["name"] == "https" else ""
    target = quoted(f"{scheme}{pod['metadata']['name']}:{port}")
    path = f"/api/v1/namespaces/{quoted(namespace)}/pods/{target}/proxy/{page}"
    try:
        return api.read_text(path, timeout=_SECONDS)
    except Unavailable as error:
        asked = f"GET :{port}/{page}"
        raise Unavailable(f"{asked}: {str(error).removeprefix('API server: ')}") from error


def parse_samples(text: str, prefix: str = PREFIX) -> list[MetricSample]:
    """Parse metrics in Prometheus' text format, only those with a prefix (by default the agents').

    Raises:
        ValueError: the text is not in this format.
    """
    # Imported late: it is slow to import, and most commands read no metrics.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    return [
        MetricSample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        if family.name.startswith(prefix)
        for sample in family.samples
    ]


def _is_agent(pod: Json) -> bool:
    """Return whether a pod is an agent, by its label or by the command of a container.

    Its DaemonSet may have any name: pools of nodes may have their own.
    """
    commands = [
        [*(each.get("command") or ()), *(each.get("args") or ())]
        for each in pod["spec"].get("containers") or ()
    ]
    return (pod["metadata"].get("labels") or {}).get(_LABEL) == _NAME or any(
        {"agent", "agent.supervisor"} & {*command} for command in commands
    )
