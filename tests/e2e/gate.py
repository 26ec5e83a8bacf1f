"""A namespace whose new pods go through our policies, and a webhook where one is wanted.

No node is needed: nothing of what is created here has to run.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import trustme

from contract.names import Names
from tests.deploy.manifests import base
from tests.e2e.cluster import ApiError, Cluster, Json
from tests.e2e.ground import wait
from tests.e2e.kubectl import Kubectl
from tests.e2e.programs import Webhook
from tests.simulator.api_helpers import Respond, running_hook

POLICIES = ("stamps", "records", "requests", "bindings")


class Gate:
    """One namespace.

    Args:
        cluster: the cluster, and the namespace to make and remove.
        kubectl: as an administrator.
        host: the address at which the API server reaches this host.
        folder: for certificates and the log of the webhook.
    """

    def __init__(self, cluster: Cluster, kubectl: Kubectl, *, host: str, folder: Path) -> None:
        self.cluster = cluster
        self.kubectl = kubectl
        self.names = Names()
        self.policies = policies(cluster.namespace)
        self._host = host
        self._folder = folder
        self._webhook: Webhook | None = None

    def open(self) -> None:
        """Make the namespace, and wait until the API server knows the policies."""
        self.cluster.create_namespace()
        wait("the namespace's service account", self.cluster.has_service_account)
        self._apply(*self.policies)
        wait("the policies", self._is_policed, within=30)

    def close(self) -> None:
        """Remove all that was made."""
        try:
            self.cluster.delete_webhooks(self.cluster.namespace)
            self._delete(*self.policies)
            self.cluster.delete_namespace()
            wait("the namespace's end", lambda: not self.cluster.has_namespace(), within=120)
        finally:
            if self._webhook is not None:
                self._webhook.stop()
            self.cluster.close()

    def admit(self) -> str | None:
        """Install our webhook and the policies; return why the API server cannot call it."""
        self._webhook = Webhook(self.cluster, self._folder, self._host)
        self._webhook.start()
        return self._webhook.configure(_requesting("probe", self.names), self.names)

    @contextmanager
    def late_webhook(self, respond: Respond) -> Iterator[None]:
        """Install a foreign webhook that is called after ours."""
        name = f"{self.cluster.namespace}-late"
        with running_hook(trustme.CA(), self._host, respond=respond, host=self._host) as hook:
            client = {"url": f"https://{self._host}:{hook.port}/", "caBundle": hook.ca_bundle}
            where = {"matchLabels": {"kubernetes.io/metadata.name": self.cluster.namespace}}
            made = hook.configuration(clientConfig=client, namespaceSelector=where)
            made["metadata"]["name"] = name
            self.cluster.create_webhooks(made)
            try:
                wait("the late webhook is called", lambda: self._is_called(hook.reviews))
                yield
            finally:
                self.cluster.delete_webhooks(name)

    def binds(self, binding: Json, user: str) -> None:
        """Try to bind a pod as a user.

        Raises:
            KubectlError: the API server refuses.
        """
        self.kubectl.run(
            *("create", f"--namespace={self.cluster.namespace}", "--filename=-"),
            *("--dry-run=server", f"--as={user}", "--as-group=system:masters"),
            stdin=json.dumps(binding),
        )

    def type_warnings(self) -> Json:
        """Return the API server's warnings about expressions, once it has checked them."""
        status: Json = {}

        def checked() -> bool:
            status.update(
                {
                    each["metadata"]["name"]: self.kubectl.json(
                        "get", each["kind"], each["metadata"]["name"]
                    ).get("status", {})
                    for each in self.policies
                    if each["kind"] == "ValidatingAdmissionPolicy"
                }
            )
            return all("typeChecking" in each for each in status.values())

        wait("the expressions are checked", checked)
        return {name: each["typeChecking"] for name, each in status.items() if each["typeChecking"]}

    def _is_policed(self) -> bool:
        """Return whether every policy denies what it must: the API server reads each by itself."""
        unstamped = _requesting("probe", self.names)
        half = _requesting("probe", self.names, "150")
        half["metadata"]["annotations"] = stamps(self.names)
        forged = _requesting("probe", self.names)
        forged["metadata"]["annotations"] = stamps(self.names) | {self.names.gpu_allocation: "{}"}
        return all(
            policy in self._refusal(pod)
            for policy, pod in (("stamps", unstamped), ("requests", half), ("records", forged))
        )

    def _is_called(self, reviews: list[Json]) -> bool:
        self._refusal({"metadata": {"name": "probe"}, "spec": {"containers": [_container()]}})
        return bool(reviews)

    def _refusal(self, pod: Json) -> str:
        try:
            self.cluster.create(pod, dry_run=True)
        except ApiError as error:
            return str(error)
        return ""

    def _apply(self, *objects: Json) -> None:
        self.kubectl.run("apply", "--filename=-", stdin=_listed(objects))

    def _delete(self, *objects: Json) -> None:
        self.kubectl.run("delete", "--filename=-", "--ignore-not-found", stdin=_listed(objects))


def policies(name: str) -> list[Json]:
    """Make the policies on new pods and Bindings reach no further than the namespace *name*."""
    where = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    made = []
    for each in deepcopy(base()):
        kind, spec = each["kind"], each.get("spec", {})
        which = each["metadata"]["name"].removeprefix("gpu-turnstile-")
        if not kind.startswith("ValidatingAdmissionPolicy") or which not in POLICIES:
            continue
        metadata = {"name": f"{name}-{which}"}
        if kind == "ValidatingAdmissionPolicy":
            spec["matchConstraints"]["namespaceSelector"] = where
        else:
            spec["policyName"] = f"{name}-{which}"
        made.append({**each, "metadata": metadata, "spec": spec})
    return made


def stamps(names: Names) -> dict[str, str]:
    """Stamps of the right form."""
    return {
        names.predicate_time: "1700000000000000000",
        names.admission_order: "01700000000000000000-w1-00000000",
        names.gpu_assigned: "false",
    }


def _requesting(name: str, names: Names, cores: str = "50") -> Json:
    limits = {names.core: cores, names.memory: "8"}
    container = {**_container(), "resources": {"limits": limits}}
    return {"metadata": {"name": name, "annotations": {}}, "spec": {"containers": [container]}}


def _container() -> Json:
    return {"name": "main", "image": "none"}


def _listed(objects: tuple[Json, ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
