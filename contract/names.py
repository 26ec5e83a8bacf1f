"""Resource and annotation names under one domain."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from contract.errors import InvalidName, quote
from contract.resource import Resource

DEFAULT_DOMAIN = "tencent.com"
"""The domain of Tencent's gpu-manager, so that pods written for it work unchanged."""

# RFC 1123 subdomain, as Kubernetes requires of the prefix of a qualified name.
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
)


def _under_domain(last: str) -> "cached_property[str]":
    return cached_property(lambda names: f"{names.domain}/{last}")


@dataclass(frozen=True)
class Names:
    """All names that webhook and agent share, derived from one domain.

    Raises:
        InvalidName: *domain* is not an RFC 1123 subdomain, or is Kubernetes' own.
    """

    domain: str = DEFAULT_DOMAIN

    def __post_init__(self) -> None:
        """Check the domain: the API server would reject resource names with an invalid one."""
        if not _SUBDOMAIN.match(self.domain):
            raise InvalidName(
                f"domain: Invalid value: {quote(self.domain)}: must be a lower-case DNS name "
                f"such as {DEFAULT_DOMAIN}"
            )
        if self.domain == "kubernetes.io" or self.domain.endswith(".kubernetes.io"):
            raise InvalidName(
                f"domain: Invalid value: {quote(self.domain)}: kubernetes.io is reserved "
                "for Kubernetes itself, an extended resource cannot have it"
            )

    @cached_property
    def core(self) -> str:
        """Resource: hundredths of a card."""
        return self.of(Resource.CORE)

    @cached_property
    def memory(self) -> str:
        """Resource: blocks of card memory."""
        return self.of(Resource.MEMORY)

    @cached_property
    def resources(self) -> Mapping[str, Resource]:
        """All resources by name, in the order of :class:`Resource`."""
        return {self.of(each): each for each in Resource}

    predicate_time = _under_domain("predicate-time")
    """Pod annotation: unix time in ns, decimal; written at create, again at bind."""
    admission_order = _under_domain("admission-order")
    """Pod annotation: order stamp written at create."""
    bind_order = _under_domain("bind-order")
    """Pod annotation: order stamp written at bind."""
    predicate_node = _under_domain("predicate-node")
    """Pod annotation: the node's name, written at bind."""
    gpu_assigned = _under_domain("gpu-assigned")
    """Pod annotation: ``"false"`` from the webhook, ``"true"`` from the agent."""
    translated_from = _under_domain("translated-from")
    """Pod annotation, by the webhook: what the author wrote for another system, JSON."""
    gpu_allocation = _under_domain("gpu-allocation")
    """Pod annotation: the allocations, JSON (see :mod:`contract.allocation`)."""
    predicate_gpu_idx_prefix = _under_domain("predicate-gpu-idx-")
    """Prefix of the pod annotations with the card indices of each container."""
    gpu_promise = _under_domain("gpu-promise")
    """Pod annotation, by the admission check: the workload and pod set that cards are kept for."""

    use_gpu_type = _under_domain("use-gpu-type")
    """Pod annotation, by its author: parts of product names, one of which a card must have."""
    nouse_gpu_type = _under_domain("nouse-gpu-type")
    """Pod annotation, by its author: parts of product names that a card must not have."""
    use_gpu_uuid = _under_domain("use-gpu-uuid")
    """Pod annotation, by its author: the cards that may be used."""
    nouse_gpu_uuid = _under_domain("nouse-gpu-uuid")
    """Pod annotation, by its author: the cards that may not be used."""
    gpu_link = _under_domain("gpu-link")
    """Pod annotation, by its author: what must connect several cards, nvlink or numa."""
    gpu_policy = _under_domain("gpu-policy")
    """Pod annotation, by its author: which card a share prefers."""
    gpu_node_policy = _under_domain("gpu-node-policy")
    """Pod annotation, by its author: which node the scheduler prefers."""
    core_limit = _under_domain("vcuda-core-limit")
    """Pod annotation, by its author: percent of a card a share may use at most."""
    gpu_processes = _under_domain("gpu-processes")
    """Pod annotation, by its author: processes of a container that share its limits (MPS)."""
    gpu_cards_prefix = _under_domain("gpu-cards-")
    """Prefix of the pod annotations, by its author: over how many cards a share is divided."""

    gpu_cordoned = _under_domain("gpu-cordoned")
    """Node annotation, by an admin: cards that get no new containers (``contract.cordon``)."""
    gpu_cards = _under_domain("gpu-cards")
    """Node annotation: the card inventory, JSON."""
    gpu_model = _under_domain("gpu-model")
    """Node label: the model of its cards, or ``mixed``."""

    @cached_property
    def wishes(self) -> frozenset[str]:
        """All annotations with wishes of a pod's author (:mod:`contract.wishes`)."""
        cards = self.use_gpu_type, self.nouse_gpu_type, self.use_gpu_uuid, self.nouse_gpu_uuid
        others = self.gpu_link, self.gpu_policy, self.gpu_node_policy, self.core_limit
        return frozenset((*cards, *others, self.gpu_processes))

    def of(self, resource: Resource) -> str:
        """Return the name of a resource."""
        return f"{self.domain}/vcuda-{resource}"

    def gpu_cards_of(self, container: str) -> str:
        """Return the annotation with the number of cards over which a container's share is divided.

        Args:
            container: its name; Kubernetes allows the annotation for up to 53 characters.
        """
        return f"{self.gpu_cards_prefix}{container}"

    def predicate_gpu_idx(self, ordinal: int | str) -> str:
        """Return the annotation with the card indices of one container.

        Args:
            ordinal: ``0`` for ``spec.containers[0]``, as in gpu-manager; ``init-0`` for
                ``spec.initContainers[0]`` (:attr:`contract.demand.ContainerDemand.ordinal`).
        """
        return f"{self.predicate_gpu_idx_prefix}{ordinal}"
