"""Checks of what is not on a node: version, webhook, policies, scheduler extender, leftovers."""

import re
from collections.abc import Iterator, Mapping

from view.model.doctor.facts import (
    AGENT,
    EXTENDER,
    KUBE_SCHEDULER,
    PROXY,
    WEBHOOK,
    Facts,
    Finding,
    Level,
    Maybe,
    Samples,
    UnreadSource,
    error,
    known,
    ok,
    unknown,
    value,
    warning,
)

POD_HOOK = "pods.gpu-turnstile.io"
_OLDEST = (1, 30)
_NEW_CERTIFICATE_DAYS = 14
"""A certificate is renewed 30 days before its end: with fewer than these left, nobody did."""

_STAMPS = "gpu-turnstile-stamps"
"""The policy that refuses a GPU pod without the webhook's stamps."""

POLICIES = (
    "gpu-turnstile-agent-node",
    "gpu-turnstile-agent-pods",
    "gpu-turnstile-bindings",
    "gpu-turnstile-node-annotations",
    "gpu-turnstile-pod-annotations",
    "gpu-turnstile-records",
    "gpu-turnstile-requests",
    _STAMPS,
)
"""The policies of ``deploy/base/policies``."""

WORKLOADS = {
    "agent": ("DaemonSet", AGENT),
    "certs": ("Deployment", "gpu-turnstile-certs"),
    "proxy": ("DaemonSet", PROXY),
    "scheduler-extender": ("Deployment", EXTENDER),
    "scheduler-own": ("Deployment", KUBE_SCHEDULER),
    "view": ("Deployment", "gpu-turnstile-view"),
    "webhook": ("Deployment", WEBHOOK),
}
"""What each component must run, by its label; components without a row run nothing."""

_ESSENTIAL = ("agent", "proxy", "webhook")
"""Components of every installation: what is left of them is no leftover, a part of it is lost."""

_DELETE = (
    "kubectl delete --all-namespaces --selector "
    "app.kubernetes.io/part-of=gpu-turnstile,app.kubernetes.io/component={} "
    "deployments,services,endpointslices,configmaps,secrets,leases,serviceaccounts,networkpolicies,"
    "poddisruptionbudgets,roles,rolebindings,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
"""As ``deploy/README.md`` has it. Others have components of these names: ours has two labels."""

_PODS = "kubectl -n gpu-turnstile describe pods --selector app.kubernetes.io/name={}"
_LOGS = "kubectl -n gpu-turnstile logs --selector app.kubernetes.io/name={} --prefix --tail 50"
_DEPLOYMENT = "kubectl -n gpu-turnstile describe deployment {}"
_RENEW = "kubectl -n gpu-turnstile rollout restart deployment/{}"
CERTS, EXTENDER_CERTS = "gpu-turnstile-certs", "gpu-turnstile-scheduler-certs"
_WEBHOOKS = "kubectl get mutatingwebhookconfigurations"


def check_version(facts: Facts) -> Iterator[Finding]:
    """Compare the API server's version with the oldest that is served."""
    version = known(facts.version)
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        yield unknown(f"cannot read the version {version!r}")
    elif (int(found[1]), int(found[2])) < _OLDEST:
        text = f"{version}: gpu-turnstile needs Kubernetes 1.30 or newer"
        yield error(text, "docs/install.md#what-you-need")
    else:
        yield ok(version)


def check_trial(facts: Facts) -> Iterator[Finding]:
    """Judge what became of a GPU pod that was created as a dry run."""
    trial = known(facts.trial)
    if trial.stamped:
        yield ok("the API server reaches it: a GPU pod would be stamped")
    elif not trial.refused:
        text = "a GPU pod is created without its stamps: the API server does not call the webhook"
        yield error(text, _WEBHOOKS)
    elif _STAMPS in trial.refused:
        text = (
            "a GPU pod has no stamps and is refused: the API server does not call the webhook, or "
            f"another webhook takes them away: {trial.refused}"
        )
        yield error(text, _WEBHOOKS)
    elif "x509" in trial.refused:
        text = f"the API server does not trust the webhook's certificate: {trial.refused}"
        yield error(text, _RENEW.format(CERTS))
    elif "failed calling webhook" in trial.refused:
        text = f"the API server cannot reach the webhook: {trial.refused}"
        yield error(text, "kubectl -n gpu-turnstile get pods,endpointslices")
    else:  # quota, Pod Security, another webhook: nothing is known of ours
        text = f"a GPU pod cannot be tried: {trial.refused}"
        yield unknown(text, "kubectl gpu doctor --namespace ANOTHER")


def check_configuration(facts: Facts) -> Iterator[Finding]:
    """Judge the MutatingWebhookConfiguration."""
    hooks = known(facts.mutating)
    if hooks is None:
        yield error("there is no MutatingWebhookConfiguration gpu-turnstile", facts.install)
        return
    pods = [each for each in hooks if each.name == POD_HOOK]
    ignored = [each.failure_policy for each in pods if each.failure_policy != "Fail"]
    untrusted = [each.name for each in hooks if not each.trusts]
    if not pods:
        yield error(f"it lacks the webhook {POD_HOOK}", facts.install)
    for policy in ignored:
        text = f"{POD_HOOK} has failurePolicy {policy}: GPU pods come unstamped"
        yield error(text, facts.install)
    if untrusted:
        logs = "kubectl -n gpu-turnstile logs deployment/gpu-turnstile-certs"
        yield error(f"no caBundle: {', '.join(untrusted)}", logs)
    if pods and not ignored and not untrusted:
        yield ok(f"{len(hooks)} webhooks, GPU pods wait for theirs (Fail)")


def check_policies(facts: Facts) -> Iterator[Finding]:
    """Look for each policy and its binding."""
    there = known(facts.policies)
    missing = [name for name in POLICIES if name not in there]
    unbound = [name for name in POLICIES if there.get(name) is False]
    if missing:
        yield error(f"not there: {', '.join(missing)}", facts.install)
    if unbound:
        yield error(f"without a binding: {', '.join(unbound)}", facts.install)
    if not missing and not unbound:
        yield ok(f"all {len(POLICIES)} are there and bound")


def check_extender(facts: Facts) -> Iterator[Finding]:
    """Judge the scheduler extender's replicas, if there is one."""
    known(facts.programs)
    if installed(facts, EXTENDER):
        yield from check_replicas(facts, EXTENDER)
        return
    text = "not installed: a pod may be sent to a node where it fits on no single card"
    yield Finding("", Level.OK, text, "docs/install.md#a-scheduler-that-sees-cards")


def check_own_scheduler(facts: Facts) -> Iterator[Finding]:
    """Judge the kube-scheduler that asks the extender, if there is one of ours."""
    if installed(facts, EXTENDER) and installed(facts, KUBE_SCHEDULER):
        yield from check_replicas(facts, KUBE_SCHEDULER)


def check_lease(facts: Facts) -> Iterator[Finding]:
    """See that a replica of the extender leads."""
    if not installed(facts, EXTENDER):
        return
    lease, logs = known(facts.lease), _LOGS.format(EXTENDER)
    if lease is None or not lease.holder or lease.renewed is None:
        yield error("no replica leads: nothing is bound by it", logs)
        return
    age = (facts.now - lease.renewed).total_seconds()
    text = f"{lease.holder} leads, and said so {age:.0f} seconds ago"
    yield error(text, logs) if age > lease.seconds else ok(text)


def check_asked(facts: Facts) -> Iterator[Finding]:
    """See that a scheduler asks the extender."""
    if not installed(facts, EXTENDER):
        return
    unread = [each for each in facts.extenders.values() if isinstance(each, UnreadSource)]
    read = [each for each in facts.extenders.values() if not isinstance(each, UnreadSource)]
    name = "gpu_turnstile_scheduler_request_duration_seconds_count"
    asked = sum(value(each, name, verb="filter") or 0 for each in read)
    if asked:
        yield ok(f"a scheduler has asked it {asked:.0f} times")
    elif unread or not read:
        yield unknown(unread[0].why if unread else "no replica has been asked for its metrics")
    else:
        text = "no scheduler has asked it since it started: GPU pods are placed by counts alone"
        yield warning(text, "docs/scheduler.md")


def check_leftovers(facts: Facts) -> Iterator[Finding]:
    """Find objects of components that run nothing any more."""
    owned, clean = known(facts.owned), True
    for component, workload in sorted(WORKLOADS.items()):
        left = [each for each in owned if each.component == component]
        if not left or workload in [(each.kind, each.name) for each in left]:
            continue
        clean = False
        yield warning(
            f"component {component} has no {' '.join(workload)} any more, and left "
            f"{len(left)} objects: {', '.join(sorted({each.kind for each in left}))}",
            facts.install if component in _ESSENTIAL else _DELETE.format(component),
        )
    old = sorted({f"{each.kind} {each.name}" for each in owned if not each.component})
    if old:
        text = f"of a version before 0.3.0, which had no component labels: {', '.join(old)}"
        yield warning(text, "docs/upgrade.md#from-020")
    elif clean:
        yield ok("none")


def installed(facts: Facts, program: str) -> bool:
    """Tell whether there are pods of a program, or the Deployment that makes them."""
    if isinstance(facts.programs, UnreadSource):
        return False
    owned = () if isinstance(facts.owned, UnreadSource) else facts.owned
    return any(each.component == program for each in facts.programs) or any(
        (each.kind, each.name) == ("Deployment", program) for each in owned
    )


def check_replicas(facts: Facts, component: str) -> Iterator[Finding]:
    """Judge the replicas of a Deployment, of which one must be ready."""
    pods = [each for each in known(facts.programs) if each.component == component]
    ready = sum(each.ready for each in pods)
    text = f"{ready} of {len(pods)} pods are ready"
    if ready and ready == len(pods):
        yield ok(text)
        return
    why = "; ".join(sorted({each.why for each in pods if each.why}))
    run = (_PODS if pods else _DEPLOYMENT).format(component)
    yield (warning if ready else error)(": ".join(filter(None, (text, why))), run)


def check_certificates(
    facts: Facts, prefix: str, replicas: Mapping[str, Maybe[Samples]], renewed_by: str
) -> Iterator[Finding]:
    """Judge the certificates that replicas say that they serve."""
    ends, unread = [], []
    for pod, samples in sorted(replicas.items()):
        if isinstance(samples, UnreadSource):
            unread.append(f"{pod}: {samples.why}")
            continue
        expiry = value(samples, f"{prefix}certificate_expiry_timestamp_seconds")
        if expiry is None:
            unread.append(f"{pod}: its metrics do not say")
        else:
            ends.append((expiry, pod))
        if value(samples, f"{prefix}certificate_reloads_total", result="refused"):
            text = f"{pod} refused new certificate files, and may serve the one before"
            yield warning(text, f"kubectl -n gpu-turnstile logs {pod}")
    if unread:
        yield unknown("; ".join(unread))
    if not ends:
        return
    expiry, pod = min(ends)
    days = (expiry - facts.now.timestamp()) / 86400
    text = f"the certificate that {pod} serves ends in {days:.0f} days"
    if days < 0:
        text = f"the certificate that {pod} serves has ended {-days:.0f} days ago"
    if days >= _NEW_CERTIFICATE_DAYS:
        yield ok(text)
    else:
        yield (error if days < 1 else warning)(text, _RENEW.format(renewed_by))
