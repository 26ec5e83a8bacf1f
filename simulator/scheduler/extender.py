"""One extender, as ``pkg/scheduler/extender.go`` calls it (fact K25).

Payloads have capitalised keys and no omitted fields; answers are read as Go reads them:
keys in any case, unknown ones ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.client import Json
from simulator.scheduler.cache import NodeInfo
from simulator.scheduler.configuration import ExtenderSettings
from simulator.scheduler.endpoint import Endpoint, ExtenderError
from simulator.scheduler.fit import pod_containers

MAX_EXTENDER_PRIORITY = 10
"""What an extender's scores are scaled from."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What an extender said of nodes.

    Attributes:
        nodes: those that are left. Whole nodes that an extender gave back come without the
            pods on them: NodeResourcesFit then scores each as idle.
        failed: reasons by node.
        unresolvable: reasons by node, where fewer pods on it would not help.
    """

    nodes: Sequence[NodeInfo]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


class Extender:
    """Calls one extender. Safe to share between threads."""

    def __init__(self, settings: ExtenderSettings) -> None:
        """Prepare the calls.

        Raises:
            ValueError: the settings cannot be used.
        """
        self.settings = settings
        self._endpoint = Endpoint(settings)

    def close(self) -> None:
        """Close connections."""
        self._endpoint.close()

    def is_interested(self, pod: Json) -> bool:
        """Return whether a container asks for a managed resource."""
        managed = self.settings.managed
        return not managed or any(
            not managed.isdisjoint(resources.get(kind) or ())
            for resources in (each.get("resources") or {} for each in pod_containers(pod))
            for kind in ("requests", "limits")
        )

    def filter(self, pod: Json, nodes: Sequence[NodeInfo]) -> Filtered:
        """Ask which nodes are left.

        Raises:
            ExtenderError: it did not answer, or says that something went wrong.
        """
        if not self.settings.filter_verb:
            return Filtered(nodes, {}, {})
        result = _object(self._endpoint.post(self.settings.filter_verb, self._args(pod, nodes)))
        if result.get("error"):
            raise ExtenderError(str(result["error"]))
        return Filtered(
            self._left(result, nodes),
            result.get("failednodes") or {},
            result.get("failedandunresolvablenodes") or {},
        )

    def prioritize(self, pod: Json, nodes: Sequence[NodeInfo]) -> Mapping[str, int]:
        """Ask for scores, and multiply them by the weight.

        Raises:
            ExtenderError: it did not answer.
        """
        if not self.settings.prioritize_verb:
            return {}
        answer = self._endpoint.post(self.settings.prioritize_verb, self._args(pod, nodes))
        if not isinstance(answer, list):
            raise ExtenderError(f"prioritize: not a list: {answer!r}")
        scores: dict[str, int] = {}
        for each in map(_object, answer):
            score, host = each.get("score", 0), each.get("host", "")
            if not isinstance(score, int):
                raise ExtenderError(f"prioritize: not a whole number: {score!r}")
            scores[host] = scores.get(host, 0) + score * self.settings.weight
        return scores

    def bind(self, pod: Json, node: str) -> None:
        """Let it bind a pod.

        Raises:
            ExtenderError: it did not, or did not answer.
        """
        metadata = pod["metadata"]
        arguments = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        result = _object(self._endpoint.post(self.settings.bind_verb, arguments))
        if result.get("error"):
            raise ExtenderError(str(result["error"]))

    def _args(self, pod: Json, nodes: Sequence[NodeInfo]) -> Json:
        names, listed = None, None
        if self.settings.node_cache_capable:
            names = [each.name for each in nodes]
        else:
            listed = {"metadata": {}, "items": [_as_cached(each.node) for each in nodes]}
        return {"Pod": _as_cached(pod), "Nodes": listed, "NodeNames": names}

    def _left(self, result: Json, nodes: Sequence[NodeInfo]) -> Sequence[NodeInfo]:
        if self.settings.node_cache_capable and result.get("nodenames") is not None:
            known = {each.name: each for each in nodes}
            for name in result["nodenames"]:
                if name not in known:
                    raise ExtenderError(
                        f'extender "{self.settings.url_prefix}" claims a filtered node "{name}" '
                        "which is not found in the input node list"
                    )
            return [known[name] for name in result["nodenames"]]
        listed = result.get("nodes")
        return [NodeInfo(each) for each in (listed or {}).get("items") or ()]


def _as_cached(obj: Json) -> Json:
    """Copy an object as a scheduler's cache has it: without kind and without managed fields."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    kept = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
    return {**kept, "metadata": metadata}


def _object(answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise ExtenderError(f"not an object: {answer!r}")
    return {key.lower(): value for key, value in answer.items()}


def in_order(settings: Sequence[ExtenderSettings]) -> list[Extender]:
    """Make the extenders, those that may be ignored last, as kube-scheduler does.

    Raises:
        ValueError: the settings of one cannot be used.
    """
    return [Extender(each) for each in sorted(settings, key=lambda each: each.ignorable)]
