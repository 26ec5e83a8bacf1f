"""The manifests as shipped, before a real API server: nothing of them is kept."""

from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.deploy.kustomize import OVERLAYS
from tests.deploy.manifests import DEPLOY, Json, read_yaml
from tests.e2e.cluster import Kubectl
from tests.e2e.ground import wait
from tests.e2e.installation import OURS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def namespaces(kubectl: Kubectl) -> Iterator[None]:
    """The namespaces: what is in one can only be tried where it is."""
    given = read_yaml(DEPLOY / "base" / "namespaces.yaml")
    made = yaml.safe_dump_all(each for each in given if each["kind"] == "Namespace")
    found = kubectl.names("--filename=-", stdin=made)
    assert found == [], f"gpu-turnstile is installed: {found}"
    try:
        kubectl.run("create", "--filename=-", stdin=made)
        yield
    finally:
        kubectl.run("delete", "--filename=-", "--ignore-not-found", stdin=made)


@pytest.fixture(scope="module")
def known(kubectl: Kubectl) -> set[str]:
    listed = kubectl.run("api-resources", "--no-headers").stdout
    return {line.split()[-1] for line in listed.splitlines()}


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_an_api_server_accepts_all_manifests_without_a_warning(
    overlay: str, kubectl: Kubectl, known: set[str], namespaces: None, report: Callable[[str], None]
) -> None:
    built: list[Json] = list(
        yaml.safe_load_all(kubectl.run("kustomize", str(DEPLOY / overlay)).stdout)
    )
    tried = [each for each in built if each["kind"] in known]
    left_out = sorted({each["kind"] for each in built} - known)
    output = kubectl.run(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-"),
        stdin=yaml.safe_dump_all(tried),
    )
    assert output.stderr == ""
    assert len(output.stdout.splitlines()) == len(tried)
    if left_out:
        report(f"{overlay}: the cluster has no {', '.join(left_out)}: not tried")


def test_nothing_was_kept(kubectl: Kubectl, namespaces: None) -> None:
    kinds = "validatingadmissionpolicies,mutatingwebhookconfigurations,clusterroles"
    kinds += ",validatingwebhookconfigurations,clusterrolebindings"
    wait("nothing is kept", lambda: not kubectl.names(kinds, f"--selector={OURS}"))
