"""The actions of a rotation: one write, or one reason to do nothing. Pure.

The text of each is what is told of it in one line.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from certs.objects import Configuration, Secret
from certs.reading import Certificate


@dataclass(frozen=True, slots=True)
class Adopt:
    """Put our label on a Secret that somebody else made."""

    secret: Secret

    def __str__(self) -> str:
        return f"secret {self.secret.name}: taken over"


@dataclass(frozen=True, slots=True)
class StoreAuthority:
    """Make an authority and store it."""

    why: str

    def __str__(self) -> str:
        return f"new authority: {self.why}"


@dataclass(frozen=True, slots=True)
class TrustIn:
    """Let a webhook configuration trust *trusted* and nothing else."""

    configuration: Configuration
    trusted: tuple[Certificate, ...]

    def __str__(self) -> str:
        return f"{self.configuration} trusts {_listed(self.trusted)}"


@dataclass(frozen=True, slots=True)
class TrustBeside:
    """Write *trusted* beside the serving certificate, for clients other than API servers."""

    trusted: tuple[Certificate, ...]

    def __str__(self) -> str:
        return f"ca.crt beside the serving certificate holds {_listed(self.trusted)}"


@dataclass(frozen=True, slots=True)
class StoreServing:
    """Make a serving certificate under the stored authority and store it."""

    trusted: tuple[Certificate, ...]
    why: str

    def __str__(self) -> str:
        return f"new serving certificate: {self.why}"


@dataclass(frozen=True, slots=True)
class DateServing:
    """Write down that the serving certificate is there, as nobody knows since when."""

    def __str__(self) -> str:
        return "serving certificate: dated"


@dataclass(frozen=True, slots=True)
class Ask:
    """Find out what the webhooks serve, and decide again."""

    def __str__(self) -> str:
        return "webhooks are asked which certificate they serve"


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before *until*."""

    until: datetime
    why: str

    def __str__(self) -> str:
        return f"next step not before {_minute(self.until)}: {self.why}"


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do until *renewal*."""

    renewal: datetime

    def __str__(self) -> str:
        return f"nothing to do before {_minute(self.renewal)}"


Step: TypeAlias = Adopt | StoreAuthority | TrustIn | TrustBeside | StoreServing | DateServing
Action: TypeAlias = Step | Ask | Wait | Done


def _listed(certificates: tuple[Certificate, ...]) -> str:
    return ", ".join(map(str, certificates))


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
