"""The settings of the webhook: each field with its flag."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import click

from common.commandline import choice, setting
from common.serving.tls import Files
from common.text import cut
from contract.names import DEFAULT_DOMAIN, Names
from webhook.admission.options import AdmissionOptions, DefaultMemory
from webhook.admission.privileged import Privileged

__all__ = ["Files", "Settings"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _name_of(kind: str) -> Callable[[str], str]:
    """Check a name: with one that nothing can have, no GPU pod would ever run."""

    def check(value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise click.BadParameter(f"{cut(value, 80)!r} is no name of a {kind}")
        return value

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One running webhook; host, port and files are those of every server."""

    host: str
    port: int
    files: Files
    names: Names = setting(
        "domain",
        default=DEFAULT_DOMAIN,
        parse=Names,
        prefix="GPU_TURNSTILE",
        help="Domain of resources and annotations; the agents must have the same.",
    )
    connections: int = setting(
        default=1000,
        type=click.IntRange(1, 65536),
        help="Connections that are held at once; a further one ends the least useful.",
    )
    largest_card: int = setting(
        default=0,
        type=click.IntRange(0),
        help="Memory blocks of the largest card; warn of shares of more, lower what is asked for "
        "beside whole cards. 0: not known.",
    )
    default_memory: DefaultMemory = choice(
        DefaultMemory.REFUSE,
        help="Refuse shares without memory, or give them their part of --largest-card.",
    )
    scheduler_name: str = setting(
        default="",
        parse=_name_of("scheduler"),
        help="Scheduler for GPU pods that name none or the default one; empty changes nothing.",
    )
    runtime_class: str = setting(
        default="",
        parse=_name_of("RuntimeClass"),
        help="RuntimeClass for GPU pods that name none; empty changes nothing.",
    )
    privileged: Privileged = choice(
        Privileged.WARN,
        help="Warn of GPU pods with a privileged container, which sees every card, or deny them.",
    )
    drain_delay: float = setting(
        default=2.0,
        type=click.FloatRange(0, 15),
        help="Seconds from SIGTERM, while not ready, until no connection is accepted any more.",
    )

    @property
    def options(self) -> AdmissionOptions:
        """The choices on which decisions depend."""
        return AdmissionOptions(
            self.largest_card,
            self.default_memory,
            self.scheduler_name,
            self.runtime_class,
            self.privileged,
        )
