"""One extender, as ``pkg/scheduler/extender.go`` calls it (K25): JSON over HTTP.

Payloads have capitalised keys and no omitted fields; answers are read as Go reads them:
keys in any case, unknown ones ignored.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from simulator.client import Json
from simulator.kubelet.pods import Pod
from simulator.scheduler.configuration import ExtenderSettings


class ExtenderError(Exception):
    """An extender could not be asked, or its answer is not usable."""


class ExtenderClient:
    """Calls one extender; safe to share between threads.

    Raises:
        ValueError: the URL is none, or an https one without a usable authority.
    """

    def __init__(self, settings: ExtenderSettings) -> None:
        self._settings = settings
        url = urlsplit(settings.url)
        secure: dict[str, Any] = {}
        if url.scheme == "https":
            try:
                secure["ssl_context"] = ssl.create_default_context(cafile=settings.ca_file)
            except OSError as error:
                raise ValueError(f"tlsConfig.caFile: {error}: {settings.ca_file}") from error
            secure["server_hostname"] = settings.server_name or url.hostname
        self._pool = urllib3.PoolManager(retries=False, timeout=settings.timeout_s, **secure)

    @property
    def binds(self) -> bool:
        """Whether it makes the bindings of its pods itself."""
        return bool(self._settings.bind_verb)

    def is_interested(self, pod: Pod) -> bool:
        """Return whether a container asks for a managed resource; with none, all pods are its."""
        managed = self._settings.managed
        return not managed or any(not managed.isdisjoint(each.limits) for each in pod.containers)

    def filter(self, pod: Pod, nodes: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the nodes that are left, and why others are not, by node.

        Raises:
            ExtenderError: it did not answer, or says that something went wrong.
        """
        if not self._settings.filter_verb:
            return nodes, {}
        answer = self._post(self._settings.filter_verb, _arguments(pod, nodes))
        left = answer.get("nodenames") or []
        reasons = answer.get("failednodes") or {}
        return left, reasons | (answer.get("failedandunresolvablenodes") or {})

    def prioritize(self, pod: Pod, nodes: Sequence[str]) -> Mapping[str, int]:
        """Return scores by node, times the weight.

        Raises:
            ExtenderError: it did not answer.
        """
        if not self._settings.prioritize_verb:
            return {}
        answer = self._send(self._settings.prioritize_verb, _arguments(pod, nodes))
        if not isinstance(answer, list):
            raise ExtenderError(f"prioritize: not a list: {answer!r}")
        scores = map(_lowered, answer)
        return {each["host"]: each["score"] * self._settings.weight for each in scores}

    def bind(self, pod: Pod, node: str) -> None:
        """Let it bind a pod.

        Raises:
            ExtenderError: it did not, or did not answer.
        """
        who = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid}
        self._post(self._settings.bind_verb, {**who, "Node": node})

    def _post(self, verb: str, body: Json) -> Json:
        answer = _lowered(self._send(verb, body))
        if answer.get("error"):
            raise ExtenderError(str(answer["error"]))
        return answer

    def _send(self, verb: str, body: Json) -> Any:
        url = f"{self._settings.url}/{verb}"
        try:
            answer = self._pool.request("POST", url, json=body)
        except (HTTPError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {error}') from error
        if answer.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
        try:
            return answer.json()
        except ValueError as error:
            raise ExtenderError(f"{url}: not JSON: {error}") from error


def _arguments(pod: Pod, nodes: Sequence[str]) -> Json:
    """Make the arguments; a pod in a scheduler's cache has no kind and no managed fields."""
    metadata = pod.manifest["metadata"]
    kept = {k: v for k, v in pod.manifest.items() if k not in ("kind", "apiVersion")}
    kept["metadata"] = {k: v for k, v in metadata.items() if k != "managedFields"}
    return {"Pod": kept, "Nodes": None, "NodeNames": list(nodes)}


def _lowered(answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise ExtenderError(f"not an object: {answer!r}")
    return {key.lower(): value for key, value in answer.items()}
