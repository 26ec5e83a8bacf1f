"""Checks of what is not on a node: version, webhook, policies, scheduler extender, leftovers."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

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
    Program,
    Samples,
    Unread,
    value,
)

VERSION = "kubernetes-version"
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
_CERTS, _EXTENDER_CERTS = "gpu-turnstile-certs", "gpu-turnstile-scheduler-certs"


def check_version(facts: Facts) -> Iterator[Finding]:
    """Compare the API server's version with the oldest that is served."""
    check = VERSION
    if isinstance(facts.version, Unread):
        yield _unknown(check, facts.version)
        return
    found = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if found is None:
        yield Finding(check, Level.UNKNOWN, f"cannot read the version {facts.version!r}")
    elif (int(found[1]), int(found[2])) < _OLDEST:
        text = f"{facts.version}: gpu-turnstile needs Kubernetes 1.30 or newer"
        yield Finding(check, Level.ERROR, text, "docs/install.md#what-you-need")
    else:
        yield Finding(check, Level.OK, facts.version)


def check_webhook(facts: Facts) -> Iterator[Finding]:
    """Judge the dry run, the configuration and the replicas."""
    yield from _trial(facts)
    yield from _configuration(facts)
    yield from _replicas("webhook-replicas", WEBHOOK, facts.programs, least=1)
    yield from _certificates(facts, "webhook-certificate", "gpu_turnstile_webhook_", facts.webhooks)


def check_policies(facts: Facts) -> Iterator[Finding]:
    """Look for each policy and its binding."""
    check = "policies"
    if isinstance(facts.policies, Unread):
        yield _unknown(check, facts.policies)
        return
    missing = [name for name in POLICIES if name not in facts.policies]
    unbound = [name for name in POLICIES if facts.policies.get(name) is False]
    if missing:
        yield Finding(check, Level.ERROR, f"not there: {', '.join(missing)}", facts.install)
    if unbound:
        yield Finding(check, Level.ERROR, f"without a binding: {', '.join(unbound)}", facts.install)
    if not missing and not unbound:
        yield Finding(check, Level.OK, f"all {len(POLICIES)} are there and bound")


def check_extender(facts: Facts) -> Iterator[Finding]:
    """Judge the scheduler extender, if there is one."""
    check = "scheduler-extender"
    if isinstance(facts.programs, Unread):
        yield _unknown(check, facts.programs)
        return
    if not _installed(facts, EXTENDER):
        text = "not installed: a pod may be sent to a node where it fits on no single card"
        yield Finding(check, Level.OK, text, "docs/install.md#a-scheduler-that-sees-cards")
        return
    yield from _replicas(check, EXTENDER, facts.programs, least=1)
    if _installed(facts, KUBE_SCHEDULER):
        yield from _replicas("scheduler-own", KUBE_SCHEDULER, facts.programs, least=1)
    yield from _lease(facts)
    yield from _asked(facts)
    prefix = "gpu_turnstile_scheduler_"
    yield from _certificates(facts, "extender-certificate", prefix, facts.extenders)


def _installed(facts: Facts, program: str) -> bool:
    """Tell whether there are pods of a program, or the Deployment that makes them."""
    pods = () if isinstance(facts.programs, Unread) else facts.programs
    owned = () if isinstance(facts.owned, Unread) else facts.owned
    return any(each.component == program for each in pods) or any(
        (each.kind, each.name) == ("Deployment", program) for each in owned
    )


def check_leftovers(facts: Facts) -> Iterator[Finding]:
    """Find objects of components that run nothing any more."""
    check = "leftovers"
    if isinstance(facts.owned, Unread):
        yield _unknown(check, facts.owned)
        return
    there: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for each in facts.owned:
        there[each.component].add((each.kind, each.name))
    clean = True
    for component, (workload, name) in sorted(WORKLOADS.items()):
        if component not in there or (workload, name) in there[component]:
            continue
        left = [each for each in facts.owned if each.component == component]
        shown = ", ".join(sorted({each.kind for each in left}))
        clean = False
        yield Finding(
            check,
            Level.WARNING,
            f"component {component} has no {workload} {name} any more, and left "
            f"{len(left)} objects: {shown}",
            facts.install if component in _ESSENTIAL else _DELETE.format(component),
        )
    old = sorted({f"{each.kind} {each.name}" for each in facts.owned if not each.component})
    if old:
        clean = False
        yield Finding(
            check,
            Level.WARNING,
            f"of a version before 0.3.0, which had no component labels: {', '.join(old)}",
            "docs/upgrade.md#from-020",
        )
    if clean:
        yield Finding(check, Level.OK, "none")


def _trial(facts: Facts) -> Iterator[Finding]:
    check, trial = "webhook", facts.trial
    if isinstance(trial, Unread):
        yield _unknown(check, trial)
    elif trial.stamped:
        yield Finding(check, Level.OK, "the API server reaches it: a GPU pod would be stamped")
    elif not trial.refused:
        text = "a GPU pod is created without its stamps: the API server does not call the webhook"
        yield Finding(check, Level.ERROR, text, "kubectl get mutatingwebhookconfigurations")
    elif _STAMPS in trial.refused:
        text = (
            "a GPU pod has no stamps and is refused: the API server does not call the webhook, or "
            f"another webhook takes them away: {trial.refused}"
        )
        yield Finding(check, Level.ERROR, text, "kubectl get mutatingwebhookconfigurations")
    elif "x509" in trial.refused:
        text = f"the API server does not trust the webhook's certificate: {trial.refused}"
        yield Finding(check, Level.ERROR, text, _RENEW.format(_CERTS))
    elif "failed calling webhook" in trial.refused:
        text = f"the API server cannot reach the webhook: {trial.refused}"
        yield Finding(check, Level.ERROR, text, "kubectl -n gpu-turnstile get pods,endpointslices")
    else:  # quota, Pod Security, another webhook: nothing is known of ours
        text = f"a GPU pod cannot be tried: {trial.refused}"
        yield Finding(check, Level.UNKNOWN, text, "kubectl gpu doctor --namespace ANOTHER")


def _configuration(facts: Facts) -> Iterator[Finding]:
    check, hooks = "webhook-configuration", facts.mutating
    if isinstance(hooks, Unread):
        yield _unknown(check, hooks)
        return
    if hooks is None:
        text = "there is no MutatingWebhookConfiguration gpu-turnstile"
        yield Finding(check, Level.ERROR, text, facts.install)
        return
    wrong = False
    pods = [each for each in hooks if each.name == POD_HOOK]
    if not pods:
        wrong = True
        yield Finding(check, Level.ERROR, f"it lacks the webhook {POD_HOOK}", facts.install)
    for each in pods:
        if each.failure_policy != "Fail":
            wrong = True
            text = f"{POD_HOOK} has failurePolicy {each.failure_policy}: GPU pods come unstamped"
            yield Finding(check, Level.ERROR, text, facts.install)
    untrusted = [each.name for each in hooks if not each.trusts]
    if untrusted:
        wrong = True
        text = f"no caBundle: {', '.join(untrusted)}"
        yield Finding(
            check, Level.ERROR, text, "kubectl -n gpu-turnstile logs deployment/gpu-turnstile-certs"
        )
    if not wrong:
        yield Finding(check, Level.OK, f"{len(hooks)} webhooks, GPU pods wait for theirs (Fail)")


def _replicas(
    check: str, component: str, programs: Maybe[Sequence[Program]], *, least: int
) -> Iterator[Finding]:
    if isinstance(programs, Unread):
        yield _unknown(check, programs)
        return
    pods = [each for each in programs if each.component == component]
    ready = [each for each in pods if each.ready]
    text = f"{len(ready)} of {len(pods)} pods are ready"
    why = sorted({each.why for each in pods if each.why})
    if len(ready) == len(pods) and len(ready) >= least:
        yield Finding(check, Level.OK, text)
    else:
        bad = Level.WARNING if len(ready) >= least else Level.ERROR
        told = ": ".join(filter(None, (text, "; ".join(why))))
        yield Finding(check, bad, told, (_PODS if pods else _DEPLOYMENT).format(component))


def _certificates(
    facts: Facts, check: str, prefix: str, replicas: Mapping[str, Maybe[Samples]]
) -> Iterator[Finding]:
    ends, unread = [], []
    for pod, samples in sorted(replicas.items()):
        if isinstance(samples, Unread):
            unread.append(f"{pod}: {samples.why}")
            continue
        expiry = value(samples, f"{prefix}certificate_expiry_timestamp_seconds")
        if expiry is None:
            unread.append(f"{pod}: its metrics do not say")
        else:
            ends.append((expiry, pod))
        if value(samples, f"{prefix}certificate_reloads_total", result="refused"):
            text = f"{pod} refused new certificate files, and may serve the one before"
            yield Finding(check, Level.WARNING, text, f"kubectl -n gpu-turnstile logs {pod}")
    if unread:
        yield Finding(check, Level.UNKNOWN, "; ".join(unread))
    if ends:
        expiry, pod = min(ends)
        days = (expiry - facts.now.timestamp()) / 86400
        text = f"the certificate that {pod} serves ends in {days:.0f} days"
        if days < 0:
            text = f"the certificate that {pod} serves has ended {-days:.0f} days ago"
        bad = Level.ERROR if days < 1 else Level.WARNING
        due = days < _NEW_CERTIFICATE_DAYS
        renew = _RENEW.format(
            _CERTS if prefix.startswith("gpu_turnstile_webhook") else _EXTENDER_CERTS
        )
        yield Finding(check, bad if due else Level.OK, text, renew if due else "")


def _lease(facts: Facts) -> Iterator[Finding]:
    check, lease = "extender-lease", facts.lease
    logs = _LOGS.format(EXTENDER)
    if isinstance(lease, Unread):
        yield _unknown(check, lease)
    elif lease is None or not lease.holder or lease.renewed is None:
        yield Finding(check, Level.ERROR, "no replica leads: nothing is bound by it", logs)
    else:
        age = (facts.now - lease.renewed).total_seconds()
        text = f"{lease.holder} leads, and said so {age:.0f} seconds ago"
        bad = age > lease.seconds
        yield Finding(check, Level.ERROR if bad else Level.OK, text, logs if bad else "")


def _asked(facts: Facts) -> Iterator[Finding]:
    check = "extender-asked"
    unread = [each for each in facts.extenders.values() if isinstance(each, Unread)]
    read = [each for each in facts.extenders.values() if not isinstance(each, Unread)]
    name = "gpu_turnstile_scheduler_request_duration_seconds_count"
    asked = sum(value(each, name, verb="filter") or 0 for each in read)
    if asked:
        yield Finding(check, Level.OK, f"a scheduler has asked it {asked:.0f} times")
    elif unread or not read:
        why = unread[0].why if unread else "no replica has been asked for its metrics"
        yield Finding(check, Level.UNKNOWN, why)
    else:
        text = "no scheduler has asked it since it started: GPU pods are placed by counts alone"
        yield Finding(check, Level.WARNING, text, "docs/scheduler.md")


def _unknown(check: str, unread: Unread) -> Finding:
    return Finding(check, Level.UNKNOWN, unread.why)
