"""Policies on new pods, and a webhook that is called after ours (K22), on a real API server."""

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import pytest
import trustme

from contract.names import Names
from tests.deploy.creation_examples import BINDINGS, CREATIONS, Bound, Creation
from tests.deploy.manifests import base
from tests.e2e.cluster import ApiError, Cluster, Json, Kubectl, KubectlError
from tests.e2e.ground import wait
from tests.e2e.settings import Settings
from tests.e2e.stage import Webhook
from tests.simulator.api_helpers import Respond, patch_with, running_hook

NAMES = Names()
STAMPS = {
    NAMES.predicate_time: "1700000000000000000",
    NAMES.admission_order: "01700000000000000000-w1-00000000",
    NAMES.gpu_assigned: "false",
}
POLICIES = ("stamps", "records", "requests", "bindings", "resizes")


class Gate:
    """One namespace; *host* is the address at which the API server reaches this host."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, *, host: str, folder: Path) -> None:
        self.cluster = cluster
        self.kubectl = kubectl
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
        return self._webhook.configure(_requesting(), NAMES)

    @contextmanager
    def late_webhook(self, respond: Respond) -> Iterator[None]:
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
        unstamped = _requesting()
        half = _requesting("150")
        half["metadata"]["annotations"] = STAMPS
        forged = _requesting()
        forged["metadata"]["annotations"] = STAMPS | {NAMES.gpu_allocation: "{}"}
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
    """Make the policies on pods and Bindings reach no further than the namespace *name*."""
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


def _requesting(cores: str = "50") -> Json:
    limits = {NAMES.core: cores, NAMES.memory: "8"}
    container = {**_container(), "resources": {"limits": limits}}
    return {"metadata": {"name": "probe", "annotations": {}}, "spec": {"containers": [container]}}


def _container() -> Json:
    return {"name": "main", "image": "none"}


def _listed(objects: tuple[Json, ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GPU = {NAMES.core: "50", NAMES.memory: "8"}
EVERYWHERE = [each for each in CREATIONS if each.namespace == "default"]


@pytest.fixture(scope="module")
def gate(
    settings: Settings, cluster: Cluster, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gate]:
    """The policies alone."""
    folder = tmp_path_factory.mktemp("gate")
    gate = Gate(cluster, kubectl, host=settings.webhook_host, folder=folder)
    try:
        gate.open()
        yield gate
    finally:
        gate.close()


@pytest.fixture(scope="module")
def admitting(gate: Gate) -> Gate:
    """The policies behind our webhook, for the tests from here on."""
    reason = gate.admit()
    if reason is not None:
        pytest.skip(f"the API server does not reach the webhook: {reason}")
    return gate


def _pod(limits: Json | None = None, /, **notes: str) -> Json:
    container: Json = {"name": "main", "image": "none"}
    if limits:
        container["resources"] = {"limits": limits}
    annotations = {f"{NAMES.domain}/{key.replace('_', '-')}": value for key, value in notes.items()}
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [container]},
    }


def _patched(gate: Gate, *operations: Json, **notes: str) -> Json:
    """Create a plain pod while a later webhook patches it."""
    with gate.late_webhook(patch_with(*operations)):
        return gate.cluster.create(_pod(None, **notes), dry_run=True)


_REQUEST = {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": GPU}}
_HALF = {**_REQUEST, "value": {"limits": {NAMES.core: "150"}}}
_FORGE = {
    "op": "add",
    "path": "/metadata/annotations",
    "value": {**STAMPS, NAMES.gpu_allocation: "{}", NAMES.gpu_assigned: "true"},
}


def test_the_api_server_has_no_warning_about_expressions(gate: Gate) -> None:
    assert gate.type_warnings() == {}


@pytest.mark.parametrize("example", EVERYWHERE, ids=lambda each: each.title)
def test_new_pods_are_allowed_or_denied(gate: Gate, example: Creation) -> None:
    if not example.denied:
        gate.cluster.create(example.pod(), dry_run=True)
        return
    with pytest.raises(ApiError) as raised:
        gate.cluster.create(example.pod(), dry_run=True)
    # The API server returns one of them.
    assert any(part in str(raised.value) for part in example.denied), raised.value


@pytest.mark.parametrize(
    "many",
    [
        {"containers": 500},
        {"initContainers": 500},
        {"annotations": 5000},
        {"containers": 200, "annotations": 2000},
        {"containers": 500, "divided": 500},
    ],
    ids=str,
)
def test_a_large_pod_is_within_what_expressions_may_cost(gate: Gate, many: dict[str, int]) -> None:
    pod = _pod(GPU)
    for field in ("containers", "initContainers"):
        listed = pod["spec"].setdefault(field, [])
        limits = {"limits": GPU}
        listed += (
            {"name": f"{field[0]}{number}", "image": "none", "resources": limits}
            for number in range(many.get(field, 0))
        )
    notes = {f"example.com/{number}": "" for number in range(many.get("annotations", 0))}
    divided = {NAMES.gpu_cards_of(f"c{at}"): "2" for at in range(many.get("divided", 0))}
    pod["metadata"]["annotations"] = notes | divided | STAMPS
    gate.cluster.create(pod, dry_run=True)


@pytest.fixture
def waiting(gate: Gate) -> Iterator[None]:
    """A pod that no scheduler binds."""
    pod = _pod()
    pod["spec"]["schedulerName"] = "none"
    gate.cluster.create(pod)
    yield
    gate.cluster.delete("p")


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("example", BINDINGS, ids=lambda each: each.title)
def test_bindings_are_allowed_or_denied(gate: Gate, example: Bound) -> None:
    if not example.denied:
        gate.binds(example.binding(), example.user)
        return
    with pytest.raises(KubectlError, match=example.denied):
        gate.binds(example.binding(), example.user)


@pytest.mark.usefixtures("waiting")
def test_an_existing_pod_cannot_request_gpus(gate: Gate) -> None:
    """Also not as a whole. The API server refuses it by itself, except 1.33 a resize."""
    requesting = {"name": "main", "image": "none", "resources": {"limits": GPU}}
    late = {**requesting, "name": "late"}
    for subresource, spec in (
        ("resize", {"containers": [requesting]}),
        ("ephemeralcontainers", {"ephemeralContainers": [late]}),
        ("", {"containers": [requesting]}),
    ):
        where = (f"--subresource={subresource}",) if subresource else ()
        # Before 1.32 there is no resize.
        with pytest.raises(KubectlError, match=r"is invalid|cannot change|could not find"):
            gate.kubectl.run(
                *("patch", "pod", "p", f"--namespace={gate.cluster.namespace}", *where),
                f"--patch={json.dumps({'spec': spec})}",
            )
    whole = _pod()
    whole["metadata"]["name"] = "whole"
    whole["spec"]["resources"] = {"limits": GPU}
    with contextlib.suppress(ApiError):  # before 1.32 the field is dropped
        assert "resources" not in gate.cluster.create(whole, dry_run=True)["spec"]


def test_additions_of_a_late_webhook_are_checked(admitting: Gate) -> None:
    with pytest.raises(ApiError, match="does not have the stamps of the webhook"):
        _patched(admitting, _REQUEST)
    with pytest.raises(ApiError, match=r"stamps of the webhook|more than one card must be"):
        _patched(admitting, _HALF)
    with pytest.raises(ApiError, match="this pod requests none: remove it"):
        _patched(admitting, _FORGE)
    with pytest.raises(ApiError, match="denied request"):
        _patched(admitting, _FORGE, _HALF)
    assert _patched(admitting)["metadata"]["name"] == "p"


def test_a_late_webhook_may_add_a_request_to_a_stamped_pod(admitting: Gate) -> None:
    made = _patched(admitting, _REQUEST, gpu_assigned="false")
    assert made["metadata"]["annotations"].keys() == STAMPS.keys()
    with pytest.raises(ApiError, match="request 100 or 200"):
        _patched(admitting, _HALF, gpu_assigned="false")


def test_stamps_are_removed_with_a_request_that_a_late_webhook_removes(admitting: Gate) -> None:
    plain = {"op": "add", "path": "/spec/containers/0/resources", "value": {}}
    with admitting.late_webhook(patch_with(plain)):
        made = admitting.cluster.create(_pod(GPU), dry_run=True)
    assert made["metadata"].get("annotations", {}) == {}


@pytest.mark.parametrize("limits", [GPU, None], ids=["with limits", "without"])
def test_a_manifest_copied_from_a_running_pod_is_created(
    admitting: Gate, limits: Json | None
) -> None:
    copied = _pod(
        limits,
        predicate_time="1",
        admission_order="01700000000000000000-w1-00000000",
        bind_order="01700000000000000000-w1-00000000",
        predicate_node="n1",
        gpu_assigned="true",
        gpu_allocation="{}",
        predicate_gpu_idx_0="3",
    )
    output = admitting.kubectl.run(
        *("create", f"--namespace={admitting.cluster.namespace}", "--dry-run=server"),
        *("--filename=-", "--output=json"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "Pod", **copied}),
    )
    made = json.loads(output.stdout)["metadata"].get("annotations", {})
    assert made.keys() == (STAMPS.keys() if limits else set())
    why = "gpu-turnstile writes it" if limits else "the pod requests no GPU"
    assert f"[{NAMES.gpu_allocation}]: dropped, {why}" in output.stderr
