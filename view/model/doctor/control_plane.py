"""Checks of version, webhook, policies, scheduler extender and leftover objects."""

import re
from collections.abc import Iterator, Mapping, Sequence

from contract.claims import SHAPE_LABEL
from contract.text import format_count
from view.model.doctor.facts import (
    AGENT,
    CLAIMS,
    EXTENDER,
    KUBE_SCHEDULER,
    PROXY,
    WEBHOOK,
    Facts,
    Finding,
    ManagedObject,
    OrUnread,
    Samples,
    UnreadSource,
    error,
    ok,
    read_samples,
    require,
    unknown,
    value,
    warning,
)
from view.model.words import name_some

POD_HOOK = "pods.gpu-turnstile.io"
DIALECT_HOOK = "dialects.gpu-turnstile.io"
"""The entry of ``deploy/components/dialects``."""
_OLDEST = (1, 30)
_NEW_CERTIFICATE_DAYS = 14
"""Certificates are renewed 30 days before they expire: with fewer days left, renewal failed."""

CLAIMED_PODS = "gpu-turnstile-claimed-pods"
"""The policy of the component ``dra`` that denies a GPU pod without a claim."""

_STAMPS = "gpu-turnstile-stamps"
"""The policy that denies a GPU pod without the webhook's stamps."""

POLICIES = (
    "gpu-turnstile-agent-node",
    "gpu-turnstile-agent-pods",
    "gpu-turnstile-bindings",
    "gpu-turnstile-node-annotations",
    "gpu-turnstile-pod-annotations",
    "gpu-turnstile-records",
    "gpu-turnstile-resizes",
    "gpu-turnstile-requests",
    _STAMPS,
)
"""The policies of ``deploy/base/policies``."""

WORKLOADS = {
    "agent": ("DaemonSet", AGENT),
    "certs": ("Deployment", "gpu-turnstile-certs"),
    "dra": ("Deployment", CLAIMS),
    "proxy": ("DaemonSet", PROXY),
    "scheduler-extender": ("Deployment", EXTENDER),
    "scheduler-own": ("Deployment", KUBE_SCHEDULER),
    "scheduler-queues": ("Deployment", "gpu-turnstile-gates"),
    "view": ("Deployment", "gpu-turnstile-view"),
    "webhook": ("Deployment", WEBHOOK),
}
"""The workload of each component, by its label; other components have none."""

_ESSENTIAL = ("agent", "proxy", "webhook")
"""Components of every installation: without their workload they are damaged, not leftover."""

_DELETE = (
    "kubectl delete --all-namespaces --selector "
    "app.kubernetes.io/part-of=gpu-turnstile,app.kubernetes.io/component={} "
    "deployments,daemonsets,services,endpointslices,configmaps,secrets,leases,serviceaccounts,"
    "networkpolicies,poddisruptionbudgets,roles,rolebindings,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
"""As in ``deploy/README.md``, with two labels: other products use the same component names."""

_DELETE_TEMPLATES = (
    f"kubectl delete resourceclaimtemplates --all-namespaces --selector {SHAPE_LABEL}"
    "  # docs/upgrade.md#from-the-device-plugin-to-dra-and-back"
)
_PODS = "kubectl -n gpu-turnstile describe pods --selector app.kubernetes.io/name={}"
_LOGS = "kubectl -n gpu-turnstile logs --selector app.kubernetes.io/name={} --prefix --tail 50"
_DEPLOYMENT = "kubectl -n gpu-turnstile describe deployment {}"
_RENEW = "kubectl -n gpu-turnstile rollout restart deployment/{}"
CERTS, EXTENDER_CERTS = "gpu-turnstile-certs", "gpu-turnstile-scheduler-certs"
_WITH_SCHEDULER = {
    True: " --set scheduling=own",
    False: "  # with the component scheduler-own: docs/install.md#a-scheduler-that-sees-cards",
}
"""By whether Helm is used."""
_QUEUES = "docs/queues.md#preemption"
_CHECK = "docs/queues.md#the-check"
_PREEMPTION = {
    KUBE_SCHEDULER: "scheduler-preemption",
    EXTENDER: "scheduler-extender-preemption",
}
"""The component that turns on ``--preempt``, by the workload that has the extender."""
_DIALECTS = "docs/install.md#pods-of-other-systems"
_WEBHOOKS = "kubectl get mutatingwebhookconfigurations"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def check_version(facts: Facts) -> Iterator[Finding]:
    """Compare the version of the API server with the oldest supported one."""
    version = require(facts.version)
    if not _VERSION.match(version):
        yield unknown(f"cannot read the version {version!r}")
    elif is_older(version, _OLDEST):
        text = f"{version}: gpu-turnstile needs Kubernetes 1.30 or newer"
        yield error(text, "docs/install.md#what-you-need")
    else:
        yield ok(version)


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Return whether a version of Kubernetes is older than another one; false if it is unknown."""
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) < than


def check_dry_run(facts: Facts) -> Iterator[Finding]:
    """Check the result of the dry run of a GPU pod."""
    dry_run = require(facts.dry_run)
    if dry_run.stamped:
        yield ok("the API server calls it: a GPU pod would be stamped")
    elif not dry_run.denied:
        text = "a GPU pod would get no stamps: the API server does not call the webhook"
        yield error(text, _WEBHOOKS)
    elif _STAMPS in dry_run.denied:
        text = (
            "a GPU pod without stamps is denied: the API server does not call the webhook, or "
            f"another webhook removes the stamps: {dry_run.denied}"
        )
        yield error(text, _WEBHOOKS)
    elif "x509" in dry_run.denied:
        text = f"the API server does not trust the webhook's certificate: {dry_run.denied}"
        yield error(text, _RENEW.format(CERTS))
    elif "failed calling webhook" in dry_run.denied:
        text = f"the API server cannot reach the webhook: {dry_run.denied}"
        yield error(text, "kubectl -n gpu-turnstile get pods,endpointslices")
    elif CLAIMED_PODS in dry_run.denied:
        yield unknown("the dry run of a GPU pod was denied: see the check claims")
    else:  # quota, Pod Security or another webhook: ours was not tested
        text = f"the dry run of a GPU pod was denied: {dry_run.denied}"
        yield unknown(text, "kubectl gpu doctor --namespace ANOTHER")


def check_configuration(facts: Facts) -> Iterator[Finding]:
    """Check the MutatingWebhookConfiguration."""
    hooks = require(facts.mutating)
    if hooks is None:
        yield error("MutatingWebhookConfiguration gpu-turnstile is missing", facts.install)
        return
    pods = [each for each in hooks if each.name == POD_HOOK]
    ignored = [each.failure_policy for each in pods if each.failure_policy != "Fail"]
    untrusted = [each.name for each in hooks if not each.has_ca_bundle]
    if not pods:
        yield error(f"webhook {POD_HOOK} is missing", facts.install)
    for policy in ignored:
        text = f"{POD_HOOK} has failurePolicy {policy}: GPU pods may be created without stamps"
        yield error(text, facts.install)
    if untrusted:
        logs = "kubectl -n gpu-turnstile logs deployment/gpu-turnstile-certs"
        yield error(f"without a caBundle: {', '.join(untrusted)}", logs)
    dialects = any(each.name == DIALECT_HOOK for each in hooks)
    disagreeing = tuple(_check_dialects(facts, has_entry=dialects))
    yield from disagreeing
    if pods and not ignored and not untrusted and not disagreeing:
        yield ok(f"{format_count(len(hooks), 'webhook')}; failurePolicy of GPU pods is Fail")


def _check_dialects(facts: Facts, *, has_entry: bool) -> Iterator[Finding]:
    """Check that the entry for other systems' pods and the webhook's ``--accept`` agree."""
    for pod, samples in sorted(read_samples(facts.webhooks).items()):
        accepted = [
            each.labels["system"]
            for each in samples
            if each.name == "gpu_turnstile_webhook_accepts"
        ]
        if has_entry and not accepted:
            text = f"{DIALECT_HOOK} sends pods of other systems, and {pod} has no --accept"
            yield error(text, _DIALECTS)
        elif accepted and not has_entry:
            text = f"{pod} has --accept {','.join(accepted)}, and {DIALECT_HOOK} is missing"
            yield error(f"{text}: not all such pods are translated", _DIALECTS)


def check_policies(facts: Facts, policies: Sequence[str]) -> Iterator[Finding]:
    """Check that each of our *policies* exists and has a binding."""
    found = require(facts.policies)
    missing = [name for name in policies if name not in found]
    unbound = [name for name in policies if found.get(name) is False]
    if missing:
        yield error(f"missing: {', '.join(missing)}", facts.install)
    if unbound:
        yield error(f"without a binding: {', '.join(unbound)}", facts.install)
    if not missing and not unbound:
        yield ok(f"all {len(policies)} exist and have a binding")


def extender(facts: Facts) -> str:
    """Return the workload that has the scheduler extender; empty if none is installed."""
    found = (each for each in (KUBE_SCHEDULER, EXTENDER) if installed(facts, each))
    return next(found, "")


def check_extender(facts: Facts) -> Iterator[Finding]:
    """Check that a scheduler sees cards; the replicas of the extender, if it has pods of its own.

    That of our own kube-scheduler is in the pods of that one.
    """
    require(facts.programs)
    found = extender(facts)
    if found == EXTENDER:
        yield from check_replicas(facts, EXTENDER)
    elif found and installed(facts, EXTENDER):
        text = "installed beside scheduler-own, which has an extender: no scheduler calls this one"
        yield warning(text, _DELETE.format("scheduler-extender"))
    elif not found:
        text = (
            "not installed: no scheduler sees cards, so a pod can be sent to a node where no card "
            "has room, and fails there; harmless if all pods request whole cards, or shares of one "
            "size that divides a card"
        )
        yield warning(text, f"{facts.install}{_WITH_SCHEDULER[facts.by_helm]}")


def check_own_scheduler(facts: Facts) -> Iterator[Finding]:
    """Check replicas and version of our own kube-scheduler, if it is installed."""
    if not installed(facts, KUBE_SCHEDULER):
        return
    yield from check_replicas(facts, KUBE_SCHEDULER)
    version = "" if isinstance(facts.version, UnreadSource) else facts.version
    pods = [each for each in require(facts.programs) if each.component == KUBE_SCHEDULER]
    for image in sorted({each.image for each in pods}):
        tag = image.rpartition(":")[2]
        own, cluster = _VERSION.match(tag), _VERSION.match(version)
        ahead = int(own[2]) - int(cluster[2]) if own and cluster else 0
        if ahead > 0 or ahead < -1:
            than = "newer than" if ahead > 0 else "two or more versions older than"
            text = f"kube-scheduler {tag} is {than} the API server, {version}"
            page = "docs/install.md#a-second-kube-scheduler"
            yield (error if ahead > 0 else warning)(text, page)


def check_lease(facts: Facts) -> Iterator[Finding]:
    """Check that the extender has a leader."""
    found = extender(facts)
    if not found:
        return
    lease, logs = require(facts.leases).get(found), _LOGS.format(found)
    if lease is None or not lease.holder or lease.renewed is None:
        yield error("it has no leader: it binds no pods", logs)
        return
    age = (facts.now - lease.renewed).total_seconds()
    renewed = f"last renewal {format_count(round(age), 'second')} ago"
    if age <= lease.seconds:
        yield ok(f"{lease.holder} is the leader, {renewed}")
        return
    text = f"it has no leader: it binds no pods. {lease.holder} was the last one, {renewed}"
    yield error(f"{text}, valid for {lease.seconds:g} s", logs)


def check_scheduler_calls(facts: Facts) -> Iterator[Finding]:
    """Check that a scheduler calls the extender, and can reach it."""
    found = extender(facts)
    unreached = () if isinstance(facts.unreached, UnreadSource) else facts.unreached
    if unreached:
        pods = f"{format_count(len(unreached), 'pod')} pending"
        text = f"a scheduler's requests to it fail ({pods}): {unreached[0]}"
        describe = _PODS.format(found or EXTENDER)
        yield error(text, f"{describe}  # docs/operate.md#the-scheduler-extender-is-down")
        return
    if not found:
        return
    unread = [each for each in facts.extenders.values() if isinstance(each, UnreadSource)]
    read = [each for each in facts.extenders.values() if not isinstance(each, UnreadSource)]
    name = "gpu_turnstile_scheduler_request_duration_seconds_count"
    calls = sum(value(each, name, verb="filter") or 0 for each in read)
    if calls:
        yield ok(f"schedulers called it {format_count(round(calls), 'time')}")
    elif unread or not read:
        yield unknown(unread[0].why if unread else "the metrics of no replica were read")
    else:
        text = "no scheduler has called it since it started: "
        if found == KUBE_SCHEDULER:
            text += "no GPU pod was created since, or each names another scheduler"
        else:
            text += "GPU pods are scheduled by counts per node"
        yield warning(text, f"{_LOGS.format(found)}  # docs/scheduler.md")


def check_queues(facts: Facts) -> Iterator[Finding]:
    """Check that what Kueue admits finds a card, and a pod for which Kueue evicts others gets one.

    Kueue counts quota, not cards.
    """
    queues = require(facts.queues)
    if queues is None:
        return
    yield from _check_admission(facts)
    evicting = {name: policy for name, policy in sorted(queues.items()) if policy}
    if not evicting:
        yield ok(
            "no ClusterQueue with our resources evicts pods" if queues else "not used for GPUs"
        )
        return
    named = name_some([f"{name} ({policy})" for name, policy in evicting.items()])
    text = f"ClusterQueues evict pods until quota is free, on whichever cards: {named}"
    program = extender(facts)
    require(facts.programs)
    if not isinstance(facts.dry_run, UnreadSource) and facts.dry_run.claims == "on":
        text += "; kube-scheduler evicts nobody for a claim, so the pod may stay pending"
        yield warning(text, _QUEUES)
    elif not program:
        yield warning(f"{text}; no scheduler sees cards, so the pod may fail on its node", _QUEUES)
    else:
        yield from _check_preempts(facts, program, text)


def _check_admission(facts: Facts) -> Iterator[Finding]:
    checks, owned = require(facts.card_checks), require(facts.managed)
    installed = any((each.kind, each.name) == WORKLOADS["scheduler-queues"] for each in owned)
    if checks is None:
        return
    if checks.names and not installed:
        text = f"AdmissionCheck {name_some(checks.names)} has no controller (component "
        text += "scheduler-queues or scheduler-extender-queues), "
        yield error(f"{text}so Kueue admits nothing in its queues", _CHECK)
    elif installed and checks.unchecked:
        text = f"no check gpu-turnstile.io/cards in ClusterQueues {name_some(checks.unchecked)}: "
        yield warning(f"{text}they admit pods by quota that may find no card", _CHECK)


def _check_preempts(facts: Facts, program: str, text: str) -> Iterator[Finding]:
    read = read_samples(facts.extenders).values()
    values = {value(each, "gpu_turnstile_scheduler_preempts") for each in read}
    if 0 in values:
        text += "; the scheduler's --preempt is off, so the pod may stay pending"
        helm, component = (
            " --set preemption=true",
            f"  # with the component {_PREEMPTION[program]}:",
        )
        how = f"{helm}  #" if facts.by_helm else component
        yield warning(text, f"{facts.install}{how} {_QUEUES}")
    elif values - {None}:
        yield ok(f"{text}; the scheduler's --preempt frees a card")
    else:
        yield unknown(f"{text}; whether the scheduler's --preempt is on cannot be read")


def check_leftovers(facts: Facts) -> Iterator[Finding]:
    """Find objects of components whose workload is gone."""
    owned, clean = require(facts.managed), True
    for component, workload in sorted(WORKLOADS.items()):
        left = [each for each in owned if each.component == component]
        if component == "dra" and facts.device_class is True:
            left.append(ManagedObject("DeviceClass", "", component))
        if not left or workload in [(each.kind, each.name) for each in left]:
            continue
        clean, kinds = False, ", ".join(sorted({each.kind for each in left}))
        delete = _DELETE.format(component) + ",deviceclasses" * (component == "dra")
        yield warning(
            f"component {component} has no {' '.join(workload)} any more; left over: "
            f"{format_count(len(left), 'object')} ({kinds})",
            facts.install if component in _ESSENTIAL else delete,
        )
    if WORKLOADS["dra"] not in {(each.kind, each.name) for each in owned}:
        swept = tuple(_check_templates(facts))
        yield from swept
        clean = clean and not swept
    old = sorted({f"{each.kind} {each.name}" for each in owned if not each.component})
    if old:
        text = f"from a version before 0.3.0, without component labels: {', '.join(old)}"
        yield warning(text, "docs/upgrade.md#from-020")
    elif clean:
        yield ok("none")


def _check_templates(facts: Facts) -> Iterator[Finding]:
    """Find what claims leave in the namespaces of users, and nobody sweeps any more."""
    if isinstance(facts.templates, UnreadSource):
        yield unknown(f"ResourceClaimTemplates: {facts.templates.why}")
    elif facts.templates:
        count = format_count(len(facts.templates), "ResourceClaimTemplate")
        where = name_some(sorted(set(facts.templates)))
        text = f"component dra has no {' '.join(WORKLOADS['dra'])} any more, which would sweep "
        yield warning(f"{text}{count} (namespaces {where})", _DELETE_TEMPLATES)
    if isinstance(facts.device_class, UnreadSource):
        yield unknown(f"DeviceClass: {facts.device_class.why}")


def installed(facts: Facts, program: str) -> bool:
    """Return whether a program has pods or a Deployment."""
    if isinstance(facts.programs, UnreadSource):
        return False
    owned = () if isinstance(facts.managed, UnreadSource) else facts.managed
    return any(each.component == program for each in facts.programs) or any(
        (each.kind, each.name) == ("Deployment", program) for each in owned
    )


def check_replicas(facts: Facts, component: str) -> Iterator[Finding]:
    """Check the replicas of a Deployment: at least one must be ready."""
    pods = [each for each in require(facts.programs) if each.component == component]
    ready = sum(each.ready for each in pods)
    text = f"{ready} of {len(pods)} pods are ready"
    if not pods:
        ending = sum(each.component == component for each in require(facts.ending))
        owned = () if isinstance(facts.managed, UnreadSource) else facts.managed
        off = any(
            (each.kind, each.name, each.replicas) == ("Deployment", component, 0) for each in owned
        )
        why = ": spec.replicas is 0" if off else ", or is missing"
        text = f"Deployment {component} has no pods{why}"
        text += f"; {format_count(ending, 'pod')} ending or ended" if ending else ""
    if ready and ready == len(pods):
        yield ok(text)
        return
    why = "; ".join(sorted({each.why for each in pods if each.why}))
    run = (_PODS if pods else _DEPLOYMENT).format(component)
    yield (warning if ready else error)(": ".join(filter(None, (text, why))), run)


def check_certificates(
    facts: Facts, prefix: str, replicas: Mapping[str, OrUnread[Samples]], renewed_by: str
) -> Iterator[Finding]:
    """Check the certificates that replicas serve, from their metrics."""
    ends, unread = [], []
    for pod, samples in sorted(replicas.items()):
        if isinstance(samples, UnreadSource):
            unread.append(f"{pod}: {samples.why}")
            continue
        expiry = value(samples, f"{prefix}certificate_expiry_timestamp_seconds")
        if expiry is None:
            unread.append(f"{pod}: its metrics have no expiry time")
        else:
            ends.append((expiry, pod))
        if value(samples, f"{prefix}certificate_reloads_total", result="refused"):
            text = f"{pod} could not load new certificate files and may serve the previous ones"
            yield warning(text, f"kubectl -n gpu-turnstile logs {pod}")
    if unread:
        yield unknown("; ".join(unread))
    if not ends:
        return
    expiry, pod = min(ends)
    days = (expiry - facts.now.timestamp()) / 86400
    text = f"the certificate of {pod} expires in {format_count(round(days), 'day')}"
    if days < 0:
        text = f"the certificate of {pod} expired {format_count(round(-days), 'day')} ago"
    if days >= _NEW_CERTIFICATE_DAYS:
        yield ok(text)
    else:
        yield (error if days < 1 else warning)(text, _RENEW.format(renewed_by))
