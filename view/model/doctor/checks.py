"""All checks, in the order in which they are shown."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from view.model.doctor import agents, control_plane, dra, nodes, refusals
from view.model.doctor.facts import (
    AGENT,
    CLAIMS,
    EXTENDER,
    PROXY,
    WEBHOOK,
    Facts,
    Finding,
    Level,
    NotReadError,
    UnreadSource,
    ok,
    require,
)
from view.model.words import missing_node

VERSION = "kubernetes-version"


def _check_proxies(facts: Facts) -> Iterable[Finding]:
    """Check proxies like agents; unread facts are reported only once, for the agents."""
    if isinstance(facts.programs, UnreadSource) or isinstance(facts.daemonsets, UnreadSource):
        return ()
    return nodes.check_programs(facts, PROXY)


def _if_used(check: Callable[[Facts], Iterable[Finding]]) -> Callable[[Facts], Iterable[Finding]]:
    """Make a check that is silent where nothing belongs to claims."""
    return lambda facts: check(facts) if dra.in_use(facts) else ()


def _check_policies(facts: Facts) -> Iterable[Finding]:
    more = dra.POLICIES if dra.in_use(facts) else ()
    return control_plane.check_policies(facts, (*control_plane.POLICIES, *more))


def _check_extender(facts: Facts) -> Iterable[Finding]:
    """Check the extender; where all cards are given by claims, nobody misses it."""
    served = () if isinstance(facts.nodes, UnreadSource) else facts.nodes
    with_cards = [each.serves_claims for each in served if each.node.cards]
    if with_cards and all(with_cards) and not control_plane.extender(facts):
        require(facts.programs)
        return (ok("not needed: kube-scheduler chooses the cards of claims"),)
    return control_plane.check_extender(facts)


def _check_extender_certificates(facts: Facts) -> Iterable[Finding]:
    if control_plane.extender(facts) != EXTENDER:
        return ()
    return control_plane.check_certificates(
        facts, "gpu_turnstile_scheduler_", facts.extenders, control_plane.EXTENDER_CERTS
    )


CHECKS: Mapping[str, Callable[[Facts], Iterable[Finding]]] = {
    VERSION: control_plane.check_version,
    "webhook": control_plane.check_dry_run,
    "webhook-configuration": control_plane.check_configuration,
    "webhook-replicas": lambda facts: control_plane.check_replicas(facts, WEBHOOK),
    "webhook-certificate": lambda facts: control_plane.check_certificates(
        facts, "gpu_turnstile_webhook_", facts.webhooks, control_plane.CERTS
    ),
    "policies": _check_policies,
    "agents": lambda facts: nodes.check_programs(facts, AGENT),
    "agents-rollout": agents.check_rollout,
    "proxies": _check_proxies,
    "kubelet": nodes.check_agents,
    "agent-requests": agents.check_requests,
    "agent-disks": agents.check_disks,
    "cdi": nodes.check_cdi,
    "other-plugins": nodes.check_other_plugins,
    "cards": nodes.check_cards,
    "allocatable": nodes.check_allocatable,
    "dra": _if_used(dra.check_api),
    "claims-replicas": _if_used(lambda facts: control_plane.check_replicas(facts, CLAIMS)),
    "claims": _if_used(dra.check_claims),
    "resource-slices": _if_used(dra.check_slices),
    "scheduler-extender": _check_extender,
    "scheduler-own": control_plane.check_own_scheduler,
    "extender-lease": control_plane.check_lease,
    "extender-asked": control_plane.check_scheduler_calls,
    "extender-certificate": _check_extender_certificates,
    "kueue": control_plane.check_queues,
    "enforcement": agents.check_enforcement,
    "allocations": nodes.check_allocations,
    "refusals": refusals.check_refusals,
    "leftovers": control_plane.check_leftovers,
}


def run_checks(facts: Facts, node: str | None = None) -> list[Finding]:
    """Run all checks; one whose facts could not be read is unknown.

    If a *node* is given, findings about others are left out.
    """
    found: list[Finding] = []
    missing = facts.find_missing((*facts.agents, *facts.proxies, node or ""))
    if node in missing:
        found.append(
            Finding("nodes", Level.ERROR, missing_node(node), "kubectl get nodes", (node,))
        )
    # Of a node that does not exist nothing can be read: that is reported of its pods.
    agents, proxies = (
        {name: read for name, read in each.items() if name not in missing}
        for each in (facts.agents, facts.proxies)
    )
    facts = replace(facts, agents=agents, proxies=proxies)
    for name, check in CHECKS.items():
        try:
            found += [replace(each, check=name) for each in check(facts)]
        except NotReadError as missing:
            found.append(Finding(name, Level.UNKNOWN, str(missing)))
    return [each for each in found if node is None or not each.nodes or node in each.nodes]
