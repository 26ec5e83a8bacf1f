"""The operator's options that decisions depend on."""

from dataclasses import dataclass
from enum import StrEnum

from contract.other_systems import Dialect
from contract.requests import USUAL_BLOCK
from webhook.admission.claims import Claims
from webhook.admission.privileged import Privileged


class DefaultMemory(StrEnum):
    """What happens to a share without memory."""

    REFUSE = "refuse"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """The operator's options.

    Attributes:
        largest_card: memory blocks of the largest card; 0 if unknown.
        default_memory: what to do with shares without memory; ``PROPORTIONAL`` needs
            *largest_card*.
        scheduler_name: scheduler for GPU pods that name none; empty to set none.
        runtime_class: RuntimeClass for GPU pods that name none; empty to set none.
        privileged: what to do with GPU pods that have a privileged container.
        accept: other systems whose pods are translated.
        memory_block: bytes of a memory block, to translate MiB.
        claims: whether GPU pods get a claim.
    """

    largest_card: int = 0
    default_memory: DefaultMemory = DefaultMemory.REFUSE
    scheduler_name: str = ""
    runtime_class: str = ""
    privileged: Privileged = Privileged.WARN
    accept: frozenset[Dialect] = frozenset()
    memory_block: int = USUAL_BLOCK
    claims: Claims = Claims.OFF


DEFAULTS = AdmissionOptions()
"""The options if the operator sets none."""
