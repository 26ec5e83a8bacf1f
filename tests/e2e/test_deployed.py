"""The overlay ``try-out``, applied and changed as by an administrator."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench import start
from tests.deploy.manifests import DEPLOY
from tests.e2e.cluster import ApiError, Kubectl, KubectlError, succeeds
from tests.e2e.ground import Ground, is_ready, phase, wait
from tests.e2e.installation import AGENTS, NAMESPACE, WEBHOOK, Deploy, Deployed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PODS = 60
EXAMPLES = sorted((DEPLOY / "examples").glob("[0-9]*.yaml"))


@pytest.fixture(scope="module")
def whole(deploy: Deploy) -> Iterator[Deployed]:
    with deploy() as deployed:
        yield deployed


def test_both_webhooks_serve_a_certificate_that_api_servers_trust(deployed: Deployed) -> None:
    installation = deployed.installation
    assert len(installation.webhooks()) == 2
    assert installation.trusted() == {installation.secret("ca")["ca.crt"]}
    assert installation.served() == {installation.secret("tls")["tls.crt"]}
    assert "ca.key" not in installation.secret("tls")


def test_the_api_server_has_no_warning_about_policies(deployed: Deployed) -> None:
    assert deployed.installation.policy_warnings() == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.stem)
def test_examples_are_accepted_or_denied_as_documented(deployed: Deployed, example: Path) -> None:
    def apply() -> str:
        namespace = f"--namespace={deployed.ground.cluster.namespace}"
        return deployed.kubectl.run(
            "apply", namespace, "--dry-run=server", f"--filename={example}"
        ).stdout

    if "invalid" not in example.stem:
        assert "created (server dry run)" in apply()
        return
    with pytest.raises(KubectlError, match=r"tencent\.com/vcuda-(core|memory)\]: "):
        apply()


@pytest.mark.timeout(1200)
def test_the_start_of_a_burst_is_measured(deployed: Deployed) -> None:
    found = start.run(turns=3)
    deployed.ground.report(f"bench start: {found.tables[0].rows}")
    assert [row[0] for row in found.tables[0].rows] == ["device plugin"]


def test_a_deleted_proxy_pod_fails_at_most_one_pod_and_causes_an_event(deployed: Deployed) -> None:
    ground, kubectl = deployed.ground, deployed.kubectl
    proxies = f"--namespace={AGENTS}", "--selector=app.kubernetes.io/name=gpu-turnstile-proxy"
    made = ground.submit(ground.make.burst(20, seed=7))
    kubectl.run("delete", "pod", *proxies, "--wait=true")
    pods = ground.settle(made)
    refused = ground.refused(pods)
    ground.report(f"the proxy's pod deleted while 20 pods start: {len(refused)} failed")
    wait("the next proxy", lambda: all(map(is_ready, kubectl.items("pods", *proxies))))
    field = "--field-selector=reason=GPUProxyEnded"
    assert kubectl.items("events", "--namespace=default", field)
    assert len(refused) <= 1
    ground.audit("the proxy's pod deleted", {n: p for n, p in pods.items() if n not in refused})


def test_the_agent_may_write_only_its_annotations(deployed: Deployed, tmp_path: Path) -> None:
    """With a token of the kind that the agent has: it names the pod, and so the node."""
    ground, make = deployed.ground, deployed.ground.make
    waiting = make.pod("waiting", [make.container("main", 5, 4)])
    waiting["spec"]["schedulingGates"] = [{"name": "e2e/never"}]
    ground.run(make.single("own", 5, 4))
    ground.cluster.create(waiting)
    own = f"{ground.names.gpu_assigned}=true"
    (ours,) = (pod for pod, node in deployed.installation.agents().items() if node == ground.node)
    agent = _with_token_of(deployed, ours, tmp_path)
    for pod, changed in (("own", own), ("own", f"{ground.names.gpu_allocation}={{}}")):
        _try(agent, ground, "annotate", "pod", pod, changed)
    bound, other = f"{ground.names.bind_order}=1", "e2e/other=1"
    for pod, verb, changed, why in (
        ("waiting", "annotate", own, "only pods of its own node"),
        ("own", "annotate", other, "only the annotations"),
        ("own", "annotate", bound, "only the annotations"),
        ("own", "label", other, "only annotations in a pod's metadata"),
    ):
        with pytest.raises(KubectlError, match=f"the agent may change {why}"):
            _try(agent, ground, verb, "pod", pod, changed)
    label = '{"metadata": {"labels": {"e2e/other": "1"}}}'
    patch = ("patch", "node", ground.node, "--patch", label)
    for refused in (patch, ("delete", "pod", "own"), ("get", "secrets"), ("get", "nodes")):
        with pytest.raises(KubectlError, match=r"(?i)forbidden"):
            _try(agent, ground, *refused)


def test_a_token_that_names_no_node_may_write_nothing(deployed: Deployed, tmp_path: Path) -> None:
    ground = deployed.ground
    ground.run(ground.make.single("own", 5, 4))
    agent = _with_token_of(deployed, None, tmp_path)
    with pytest.raises(KubectlError, match="the agent may change only pods of its own node"):
        _try(agent, ground, "annotate", "pod", "own", f"{ground.names.gpu_assigned}=true")


def test_no_other_user_can_change_a_pods_allocation(deployed: Deployed) -> None:
    ground, admin = deployed.ground, deployed.kubectl
    ground.run(ground.make.single("own", 5, 4))
    _try(admin, ground, "annotate", "pod", "own", "e2e/other=1")
    for name in (ground.names.gpu_allocation, ground.names.predicate_time):
        with pytest.raises(KubectlError, match="of an existing pod"):
            _try(admin, ground, "annotate", "pod", "own", f"{name}=1")
        with pytest.raises(KubectlError, match="of an existing pod"):
            _try(admin, ground, "annotate", "pod", "own", f"{name}-")
    with pytest.raises(KubectlError, match="gpu-cards is the inventory"):
        _try(admin, ground, "annotate", "node", ground.node, f"{ground.names.gpu_cards}=[]")


def test_gpu_pods_can_be_created_without_webhooks_and_policies_still_apply(
    deployed: Deployed,
) -> None:
    """By the commands of docs/operate.md."""
    ground, installation = deployed.ground, deployed.installation
    installation.scale_webhook(0)
    try:
        installation.permit_without_webhook()
        gpu = ground.make.single("gpu", 10, 4)
        create = partial(ground.cluster.create, gpu, dry_run=True)
        wait("pods are permitted", lambda: succeeds(create))
        assert ground.refused(ground.run(gpu)) == {}
        with pytest.raises(ApiError, match="more than one card must be a multiple of 100"):
            ground.cluster.create(ground.make.single("half", 150), dry_run=True)
        for cores in (10, None):
            forged = (
                ground.make.single("forged", cores, 4) if cores else ground.make.plain("forged")
            )
            forged["metadata"]["annotations"] = {ground.names.gpu_allocation: "{}"}
            with pytest.raises(ApiError, match=r"gpu-allocation.*: remove it"):
                ground.cluster.create(forged, dry_run=True)
    finally:
        installation.apply()
        installation.wait_until_ready()
    installation.compare()


def test_no_creation_fails_while_all_webhooks_are_replaced(deployed: Deployed) -> None:
    before = deployed.installation.webhooks()
    with deployed.load() as load:
        wait("calls", load.more(100))
        deployed.installation.roll(NAMESPACE, WEBHOOK)
        wait("more calls", load.more(100))
    deployed.ground.report(f"webhooks replaced: {load}")
    assert load.failures == []
    after = deployed.installation.webhooks
    wait("the old ones' end", lambda: not before.keys() & after().keys())


def test_no_creation_fails_while_authority_and_certificate_are_renewed(deployed: Deployed) -> None:
    """The old authority is dropped after every replica serves the new certificate."""
    installation = deployed.installation
    before, served = installation.trusted(), installation.served()
    with deployed.load() as load:
        wait("calls", load.more(100))
        installation.begin_renewal(settle=3, grace=0)
        wait("calls while webhooks serve the old one", load.more(1000))
        late = installation.served() == served
        installation.refresh_secrets()
        log = installation.end_renewal()
        wait("more calls", load.more(100))
    deployed.ground.report(f"certificate renewed, {'late' if late else 'soon'} served: {load}")
    assert load.failures == [], log
    assert installation.trusted() == {installation.secret("ca")["ca.crt"]} != before
    assert installation.served() == {installation.secret("tls")["tls.crt"]}


def test_no_pod_is_lost_while_agents_are_replaced(deployed: Deployed) -> None:
    """As for a new version: pods are created all the time, and none is refused."""
    ground, rolls = deployed.ground, 4
    staying = ground.make.burst(PODS // 2, seed=3)
    creating = []
    with ground.stream() as stream:
        wait("pods", stream.more(10))
        for roll in range(rolls):
            creating += ground.submit(staying[roll::rolls])
            deployed.installation.roll_agents()
        wait("more pods", stream.more(10))
    pods = ground.settle(creating)
    ground.report(f"{rolls} rolling updates of the agent: {stream}")
    assert stream.failed == {}
    assert len(stream.pods) > rolls * 10
    seen = ground.check("created while agents were replaced", pods)
    assert len(seen) > PODS // 2


def test_a_deleted_installation_leaves_nothing_and_gpu_pods_still_run(deployed: Deployed) -> None:
    """The last one: it ends what the others need."""
    ground = deployed.ground
    ground.run(ground.make.single("stays", 5, 4))
    deployed.installation.remove()
    assert deployed.installation.leftovers() == []
    wait("the node offers nothing", lambda: ground.offered() == 0)
    pods = ground.cluster.pods()
    assert phase(pods["stays"]) == "Running"
    ground.cluster.create(ground.make.plain("plain"))


def _with_token_of(deployed: Deployed, pod: str | None, folder: Path) -> Kubectl:
    bound = (f"--bound-object-name={pod}", "--bound-object-kind=Pod") if pod else ()
    token = deployed.kubectl.run(
        "create", "token", "gpu-turnstile-agent", f"--namespace={AGENTS}", *bound
    ).stdout
    return deployed.kubectl.with_token(token.strip(), folder)


def _try(kubectl: Kubectl, ground: Ground, verb: str, *arguments: str) -> None:
    """Request a change as a dry run."""
    dry = () if verb == "get" else ("--dry-run=server",)
    overwrite = ("--overwrite",) if verb in ("annotate", "label") else ()
    kubectl.run(verb, f"--namespace={ground.cluster.namespace}", *arguments, *dry, *overwrite)
