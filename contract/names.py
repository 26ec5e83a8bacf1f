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

    @cached_property
    def predicate_time(self) -> str:
        """Pod annotation: unix time in ns, decimal; written at create, again at bind."""
        return f"{self.domain}/predicate-time"

    @cached_property
    def admission_order(self) -> str:
        """Pod annotation: order stamp written at create."""
        return f"{self.domain}/admission-order"

    @cached_property
    def bind_order(self) -> str:
        """Pod annotation: order stamp written at bind."""
        return f"{self.domain}/bind-order"

    @cached_property
    def predicate_node(self) -> str:
        """Pod annotation: the node's name, written at bind."""
        return f"{self.domain}/predicate-node"

    @cached_property
    def gpu_assigned(self) -> str:
        """Pod annotation: ``"false"`` from the webhook, ``"true"`` from the agent."""
        return f"{self.domain}/gpu-assigned"

    @cached_property
    def translated_from(self) -> str:
        """Pod annotation, by the webhook: what the author wrote for another system, JSON."""
        return f"{self.domain}/translated-from"

    @cached_property
    def gpu_allocation(self) -> str:
        """Pod annotation: the allocations, JSON (see :mod:`contract.allocation`)."""
        return f"{self.domain}/gpu-allocation"

    @cached_property
    def predicate_gpu_idx_prefix(self) -> str:
        """Prefix of the pod annotations with the card indices of each container."""
        return f"{self.domain}/predicate-gpu-idx-"

    @cached_property
    def use_gpu_type(self) -> str:
        """Pod annotation, by its author: parts of product names, one of which a card must have."""
        return f"{self.domain}/use-gpu-type"

    @cached_property
    def nouse_gpu_type(self) -> str:
        """Pod annotation, by its author: parts of product names that a card must not have."""
        return f"{self.domain}/nouse-gpu-type"

    @cached_property
    def use_gpu_uuid(self) -> str:
        """Pod annotation, by its author: the cards that may be used."""
        return f"{self.domain}/use-gpu-uuid"

    @cached_property
    def nouse_gpu_uuid(self) -> str:
        """Pod annotation, by its author: the cards that may not be used."""
        return f"{self.domain}/nouse-gpu-uuid"

    @cached_property
    def gpu_link(self) -> str:
        """Pod annotation, by its author: what must connect several whole cards, nvlink or numa."""
        return f"{self.domain}/gpu-link"

    @cached_property
    def gpu_policy(self) -> str:
        """Pod annotation, by its author: which card a share prefers."""
        return f"{self.domain}/gpu-policy"

    @cached_property
    def gpu_node_policy(self) -> str:
        """Pod annotation, by its author: which node the scheduler prefers."""
        return f"{self.domain}/gpu-node-policy"

    @cached_property
    def core_limit(self) -> str:
        """Pod annotation, by its author: percent of a card a share may use at most."""
        return f"{self.domain}/vcuda-core-limit"

    @cached_property
    def wishes(self) -> frozenset[str]:
        """All annotations with wishes of a pod's author (:mod:`contract.wishes`)."""
        return frozenset(
            (
                self.use_gpu_type,
                self.nouse_gpu_type,
                self.use_gpu_uuid,
                self.nouse_gpu_uuid,
                self.gpu_link,
                self.gpu_policy,
                self.gpu_node_policy,
                self.core_limit,
            )
        )

    @cached_property
    def gpu_cordoned(self) -> str:
        """Node annotation, by an admin: cards that get no new containers (``contract.cordon``)."""
        return f"{self.domain}/gpu-cordoned"

    @cached_property
    def gpu_cards(self) -> str:
        """Node annotation: the card inventory, JSON."""
        return f"{self.domain}/gpu-cards"

    @cached_property
    def gpu_cards_prefix(self) -> str:
        """Prefix of the pod annotations, by its author: over how many cards a share is divided."""
        return f"{self.gpu_cards}-"

    @cached_property
    def gpu_model(self) -> str:
        """Node label: the model of its cards, or ``mixed``."""
        return f"{self.domain}/gpu-model"

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
