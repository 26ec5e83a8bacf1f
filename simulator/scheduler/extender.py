"""Call one extender as ``pkg/scheduler/extender.go`` does (K25): JSON over HTTP.

Requests have capitalised keys and no omitted fields. Responses are parsed as in Go: the case of
keys does not matter, unknown keys are ignored.
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
    """An extender could not be called, or its response is not usable."""


class ExtenderClient:
    """Calls one extender; threads may share it.

    Raises:
        ValueError: the URL is invalid, or it is https and the CA file is not usable.
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
        """Whether the extender creates the bindings of its pods itself."""
        return bool(self._settings.bind_verb)

    def is_interested(self, pod: Pod) -> bool:
        """Return whether a pod requests a managed resource; always true if none is managed."""
        managed = self._settings.managed
        return not managed or any(not managed.isdisjoint(each.limits) for each in pod.containers)

    def filter(self, pod: Pod, nodes: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the nodes that fit, and the reasons against the others, by node.

        Raises:
            ExtenderError: the extender did not respond, or reports an error.
        """
        if not self._settings.filter_verb:
            return nodes, {}
        response = self._post(self._settings.filter_verb, _arguments(pod, nodes))
        fitting = response.get("nodenames") or []
        reasons = response.get("failednodes") or {}
        return fitting, reasons | (response.get("failedandunresolvablenodes") or {})

    def prioritize(self, pod: Pod, nodes: Sequence[str]) -> Mapping[str, int]:
        """Return the scores by node, multiplied by the weight.

        Raises:
            ExtenderError: the extender did not respond, or its response is not usable.
        """
        if not self._settings.prioritize_verb:
            return {}
        response = self._send(self._settings.prioritize_verb, _arguments(pod, nodes))
        if not isinstance(response, list):
            raise ExtenderError(f"prioritize: not a list: {response!r}")
        scores = map(_with_lower_keys, response)
        return {each["host"]: each["score"] * self._settings.weight for each in scores}

    def bind(self, pod: Pod, node: str) -> None:
        """Call the extender to bind a pod to a node.

        Raises:
            ExtenderError: the extender did not respond, or did not bind the pod.
        """
        ids = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid}
        self._post(self._settings.bind_verb, {**ids, "Node": node})

    def _post(self, verb: str, body: Json) -> Json:
        response = _with_lower_keys(self._send(verb, body))
        if response.get("error"):
            raise ExtenderError(str(response["error"]))
        return response

    def _send(self, verb: str, body: Json) -> Any:
        url = f"{self._settings.url}/{verb}"
        try:
            response = self._pool.request("POST", url, json=body)
        except (HTTPError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {error}') from error
        if response.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
        try:
            return response.json()
        except ValueError as error:
            raise ExtenderError(f"{url}: not JSON: {error}") from error


def _arguments(pod: Pod, nodes: Sequence[str]) -> Json:
    """Return the request body; a pod in a scheduler's cache has no kind and no managed fields."""
    metadata = pod.manifest["metadata"]
    kept = {k: v for k, v in pod.manifest.items() if k not in ("kind", "apiVersion")}
    kept["metadata"] = {k: v for k, v in metadata.items() if k != "managedFields"}
    return {"Pod": kept, "Nodes": None, "NodeNames": list(nodes)}


def _with_lower_keys(decoded: Any) -> Json:
    if not isinstance(decoded, dict):
        raise ExtenderError(f"not an object: {decoded!r}")
    return {key.lower(): value for key, value in decoded.items()}
