"""The operator's choices on which decisions depend."""

from dataclasses import dataclass
from enum import StrEnum

from webhook.admission.privileged import Privileged


class DefaultMemory(StrEnum):
    """The treatment of a share whose author left the memory out."""

    REFUSE = "refuse"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """The operator's choices.

    Attributes:
        largest_card: memory blocks of the largest card; 0 when unknown.
        default_memory: for shares without memory; ``PROPORTIONAL`` needs *largest_card*.
        scheduler_name: of the scheduler for GPU pods that name none; empty for none.
        runtime_class: RuntimeClass for GPU pods that name none; empty for none.
        privileged: GPU pods with a privileged container.
    """

    largest_card: int = 0
    default_memory: DefaultMemory = DefaultMemory.REFUSE
    scheduler_name: str = ""
    runtime_class: str = ""
    privileged: Privileged = Privileged.WARN


DEFAULTS = AdmissionOptions()
"""The choices of an operator who made none."""
