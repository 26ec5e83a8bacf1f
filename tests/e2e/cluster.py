"""The cluster's API as the suite uses it, and kubectl. The only importer of ``kubernetes`` here."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

Json = dict[str, Any]

_SECONDS = 30


class ApiError(Exception):
    """The API server refused a request; *status* is the ``Status`` of its response."""

    def __init__(self, code: int, status: Json) -> None:
        self.code = code
        self.status = status
        super().__init__(f"{code}: {status.get('message')}")


def succeeds(request: Callable[[], object]) -> bool:
    try:
        request()
    except (ApiError, KubectlError):
        return False
    return True


class Cluster:
    """One cluster, and the namespace the suite works in. Safe to share between threads."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        configuration = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        configuration.retries = False
        configuration.connection_pool_maxsize = 32
        self._client = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._client)
        self._hooks = client.AdmissionregistrationV1Api(self._client)
        self.namespace = namespace

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    def nodes(self) -> list[Json]:
        found: list[Json] = self._call(self._core.list_node)["items"]
        return found

    def node(self, name: str) -> Json:
        return self._call(self._core.read_node, name)

    def annotate_node(self, name: str, key: str, value: str | None) -> None:
        self._call(self._core.patch_node, name, {"metadata": {"annotations": {key: value}}})

    def topology_policy(self, node: str) -> str:
        found = self._call(self._core.connect_get_node_proxy_with_path, node, "configz")
        configuration = found["kubeletconfig"]
        return str(configuration.get("topologyManagerPolicy") or "none")

    def create_namespace(self) -> None:
        self._call(self._core.create_namespace, {"metadata": {"name": self.namespace}})

    def has_namespace(self) -> bool:
        return self._exists(self._core.read_namespace, self.namespace)

    def has_service_account(self) -> bool:
        return self._exists(self._core.read_namespaced_service_account, "default", self.namespace)

    def delete_namespace(self) -> None:
        self._delete(self._core.delete_namespace, self.namespace)

    def create_webhooks(self, configuration: Json) -> None:
        self._call(self._hooks.create_mutating_webhook_configuration, configuration)

    def delete_webhooks(self, name: str) -> None:
        self._delete(self._hooks.delete_mutating_webhook_configuration, name)

    def create(self, pod: Json, *, dry_run: bool = False) -> Json:
        options = {"dry_run": "All"} if dry_run else {}
        return self._call(self._core.create_namespaced_pod, self.namespace, pod, **options)

    def pods(self) -> dict[str, Json]:
        listed = self._call(self._core.list_namespaced_pod, self.namespace)["items"]
        return {each["metadata"]["name"]: each for each in listed}

    def delete(self, name: str) -> None:
        self._delete(self._core.delete_namespaced_pod, name, self.namespace, grace_period_seconds=0)

    def delete_pods(self) -> None:
        self._call(
            self._core.delete_collection_namespaced_pod, self.namespace, grace_period_seconds=0
        )

    def events(self, pod: str) -> list[Json]:
        found: list[Json] = self._call(
            self._core.list_namespaced_event,
            self.namespace,
            field_selector=f"involvedObject.name={pod}",
        )["items"]
        return found

    def log(self, pod: str, container: str) -> str:
        """Return what a container has printed; nothing if it has not started yet."""
        try:
            return self._request(
                self._core.read_namespaced_pod_log, pod, self.namespace, container=container
            ).decode("utf-8", errors="replace")
        except ApiError as error:
            if error.code in (400, 404, 500):  # waiting to start, or its log not there yet
                return ""
            raise

    def _exists(self, method: Any, *args: Any) -> bool:
        try:
            self._call(method, *args)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _delete(self, method: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self._call(method, *args, **kwargs)
        except ApiError as error:
            if error.code not in (404, 409):  # deleted, or being deleted
                raise

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Json:
        decoded: Json = json.loads(self._request(method, *args, **kwargs))
        return decoded

    def _request(self, method: Any, *args: Any, **kwargs: Any) -> bytes:
        try:
            response = method(*args, _preload_content=False, _request_timeout=_SECONDS, **kwargs)
            data: bytes = response.data
        except client.ApiException as error:
            raise ApiError(error.status or 0, _status(error)) from error
        except HTTPError as error:
            raise ApiError(0, {"message": f"no response: {error}"}) from error
        return data


def _status(error: client.ApiException) -> Json:
    try:
        decoded = json.loads(error.body or "")
    except ValueError:
        return {"message": error.body}
    return decoded if isinstance(decoded, dict) else {}


class KubectlError(Exception):
    """kubectl failed; the message is what it printed."""


class Kubectl:
    """``kubectl``, with its credentials, and options of every call."""

    def __init__(self, program: str, kubeconfig: Path, *options: str) -> None:
        self._program = program
        self._kubeconfig = kubeconfig
        self._options = options

    def inside(self, namespace: str) -> "Kubectl":
        return Kubectl(self._program, self._kubeconfig, f"--namespace={namespace}")

    def run(self, *arguments: str, stdin: str = "", within: float = 60.0) -> CompletedProcess[str]:
        done = subprocess.run(
            [self._program, f"--kubeconfig={self._kubeconfig}", *self._options, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        if done.returncode:
            message = done.stderr.strip() or done.stdout.strip()
            raise KubectlError(f"kubectl {' '.join(arguments)}: {message}")
        return done

    def json(self, *arguments: str) -> Json:
        decoded: Json = json.loads(self.run(*arguments, "--output=json").stdout)
        return decoded

    def items(self, *arguments: str) -> list[Json]:
        found: list[Json] = self.json("get", *arguments)["items"]
        return found

    def names(self, *arguments: str, stdin: str = "") -> list[str]:
        """List objects, with their kinds."""
        get = ("get", *arguments, "--ignore-not-found", "--output=name")
        return self.run(*get, stdin=stdin).stdout.split()

    def with_token(self, token: str, folder: Path) -> "Kubectl":
        """Return one with only a token; its kubeconfig is written to *folder*."""
        config = self.json("config", "view", "--raw", "--minify", "--flatten")
        (context,) = config["contexts"]
        config["users"] = [{"name": context["context"]["user"], "user": {"token": token}}]
        path = folder / "token.kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        return Kubectl(self._program, path)
