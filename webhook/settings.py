"""The settings of the webhook: each field with its flag."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import click

from common.commandline import Seconds, WholeNumber, choice, setting
from common.serving.tls import Files
from common.text import cut
from contract.names import DEFAULT_DOMAIN, Names
from contract.other_systems import Dialect
from contract.quantity import BLOCK_SIZE_RULE, parse_block_size
from webhook.admission.claims import Claims
from webhook.admission.options import AdmissionOptions, DefaultMemory
from webhook.admission.privileged import Privileged

__all__ = ["Files", "Settings"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _name_of(kind: str) -> Callable[[str], str]:
    """Return a check of names: if nothing can have the name, no GPU pod would ever run."""

    def check(value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise click.BadParameter(f"{cut(value, 80)!r} is not a valid name of a {kind}")
        return value

    return check


def _parse_accept(text: str) -> frozenset[Dialect]:
    words = [each for each in (entry.strip() for entry in text.split(",")) if each]
    for each in words:
        if each not in tuple(Dialect):
            allowed = ", ".join(Dialect)
            raise click.BadParameter(f"{cut(each, 80)!r} is not one of {allowed}")
    if {Dialect.GPUSHARE, Dialect.GPUSHARE_MIB} <= set(words):
        raise click.BadParameter("gpushare counts GiB, gpushare-mib MiB: accept one of them")
    return frozenset(map(Dialect, words))


def _parse_memory_block(text: str) -> int:
    size = parse_block_size(text)
    if size is None:
        raise click.BadParameter(f"{cut(text, 80)!r}: {BLOCK_SIZE_RULE}")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one webhook; host, port and files are those of every server."""

    host: str
    port: int
    files: Files
    names: Names = setting(
        "domain",
        default=DEFAULT_DOMAIN,
        parse=Names,
        prefix="GPU_TURNSTILE",
        help="Domain of resources and annotations; must be the agents' too.",
    )
    connections: int = setting(
        default=1000,
        type=WholeNumber("number of connections, such as 1000", 1, 65536),
        help="Most connections at a time; one more closes the least useful one.",
    )
    largest_card: int = setting(
        default=0,
        type=WholeNumber("number of memory blocks, such as 96", 0),
        help="Memory blocks of the largest card: warn of shares that request more, and lower the "
        "memory of whole cards to it. 0: unknown.",
    )
    default_memory: DefaultMemory = choice(
        DefaultMemory.REFUSE,
        help="Deny shares without memory, or set it in proportion to --largest-card.",
    )
    scheduler_name: str = setting(
        default="",
        parse=_name_of("scheduler"),
        help="Scheduler for GPU pods that name none, or the default one. Empty, or with "
        "--claims on: no change.",
    )
    runtime_class: str = setting(
        default="",
        parse=_name_of("RuntimeClass"),
        help="RuntimeClass for GPU pods that name none. Empty: no change.",
    )
    privileged: Privileged = choice(
        Privileged.WARN,
        help="Warn of GPU pods with a privileged container (it sees every card), or deny them.",
    )
    accept: frozenset[Dialect] = setting(
        default="",
        parse=_parse_accept,
        help="Translate pods written for these systems, comma-separated: "
        + ", ".join(Dialect)
        + ".",
    )
    memory_block: int = setting(
        default="256Mi",
        parse=_parse_memory_block,
        help="Size of a memory block, to translate MiB; must be the agents' too.",
    )
    claims: Claims = choice(
        Claims.OFF,
        help="Give GPU pods a claim, for nodes whose agent runs with --mode dra; the limits stay. "
        "With away they get none, and an affinity that keeps them off those nodes.",
    )
    drain_delay: float = setting(
        default=2.0,
        type=Seconds("2", 0, 15),
        help="Seconds from SIGTERM until no new connection is accepted; not ready meanwhile.",
    )

    @property
    def options(self) -> AdmissionOptions:
        """The options that decisions depend on."""
        return AdmissionOptions(
            self.largest_card,
            self.default_memory,
            self.scheduler_name,
            self.runtime_class,
            self.privileged,
            self.accept,
            self.memory_block,
            self.claims,
        )
