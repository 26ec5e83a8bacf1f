"""The health of cards: faults, quiet time, probe, recovery.

A state machine of pure, total functions: they take the state and an observation, and return the
next state. The clock is an argument; nothing here waits or does I/O.

::

             a fault that counts                   another fault: the quiet time starts again
    healthy ---------------------> unhealthy ----.
       ^                            |   ^        |
       |                            |   `--------'
       `----------------------------'
         no fault for the quiet time, then a probe that passes
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

# The driver's error numbers, by NVIDIA's Xid catalog, "Xid Errors":
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a faulty program causes on a healthy card; they do not affect the next container."""

RESET_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158})
"""Xids after which a card needs a reset: the catalog's immediate action is ``RESET_GPU`` or
``RESTART_BM``, or (48, 74) a workflow that ends in one.

A driver that reports recovery actions (R565 and newer) knows better whether this one did: NVIDIA's
DRA driver judges all Xids by that (kubernetes-sigs/dra-driver-nvidia-gpu, pull request 1441)."""

_XID_NAMES: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after earlier errors",
    46: "GPU timeout",
    48: "double-bit ECC error",
    61: "PMU breakpoint",
    62: "PMU halt",
    63: "memory row or page set aside",
    64: "memory row or page could not be set aside",
    68: "NVDEC0 exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    154: "GPU recovery action changed",
    155: "NVLink software-defined error",
    156: "resource retired",
    157: "resource could not be retired",
    158: "GPU fatal timeout",
}


class FaultKind(StrEnum):
    """The kind of a fault."""

    XID = "xid"
    ECC = "ecc"
    LOST = "lost"
    ERROR = "error"
    RESET = "reset"
    DEFECT = "defect"
    MIG = "mig"
    NVML = "nvml"
    DRIVER = "driver"


# If a card responds again after one of these, it was initialized meanwhile: a lost card does not
# come back before the driver is loaded again, and a driver initializes all cards when it is loaded.
_REINITIALIZED_AFTER = frozenset({FaultKind.LOST, FaultKind.DRIVER})
_REPORTED_ONCE = frozenset({FaultKind.XID, FaultKind.ECC})


@dataclass(frozen=True, slots=True)
class CardFault:
    """A fault of a card; *text* describes it for people, without a time."""

    kind: FaultKind
    text: str
    xid: int | None = None

    @property
    def needs_reset(self) -> bool:
        """Whether the card needs a reset."""
        return self.kind in (FaultKind.ECC, FaultKind.RESET) or self.xid in RESET_XIDS


def xid_fault(xid: int) -> CardFault:
    """Describe an Xid, with its name if it has one: ``Xid 79 (GPU has fallen off the bus)``."""
    name = _XID_NAMES.get(xid)
    return CardFault(FaultKind.XID, f"Xid {xid} ({name})" if name else f"Xid {xid}", xid)


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe to which a card has responded.

    Attributes:
        uncorrectable: uncorrectable ECC errors since the driver was loaded, ``None`` without ECC.
        action: the recovery action that the driver requests; empty for none, ``None`` if the
            driver is too old to report it.
        pending: whether faulty memory will be retired at the next reset.
        defect: a defect that a reset does not repair, such as memory that could not be retired;
            empty for none.
    """

    uncorrectable: int | None = None
    action: str | None = None
    pending: bool = False
    defect: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of card health.

    Attributes:
        quiet: seconds without a fault before an unhealthy card may become healthy.
        ignored_xids: the Xids that leave a card healthy; ``None`` for all.
        fatal_xids: the Xids that make it unhealthy even if they are ignored.
    """

    quiet: float = 300.0
    ignored_xids: Collection[int] | None = APPLICATION_XIDS
    fatal_xids: Collection[int] = ()

    def counts(self, fault: CardFault) -> bool:
        """Whether a fault makes a card unhealthy."""
        if fault.xid is None or fault.xid in self.fatal_xids:
            return True
        return self.ignored_xids is not None and fault.xid not in self.ignored_xids


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A time, on two clocks."""

    at: float
    """Seconds on a monotonic clock, which measures the quiet time."""
    wall: datetime
    """The time of day, for people."""


@dataclass(frozen=True, slots=True)
class CardHealth:
    """The health of one card.

    Attributes:
        fault: the gravest fault since the card was healthy, ``None`` while it is healthy.
        since: the time of that fault.
        last: the time of the latest fault, on the monotonic clock of :class:`ClockReading`.
        needs_reset: whether one of the faults needs a reset.
        reset_seen: whether there was a reset since then.
        gone: whether the card has not responded since it was lost.
        uncorrectable: the last known count of uncorrectable ECC errors.
    """

    fault: CardFault | None = None
    since: datetime | None = None
    last: float = 0.0
    needs_reset: bool = False
    reset_seen: bool = False
    gone: bool = False
    uncorrectable: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether new containers may get the card."""
        return self.fault is None

    @property
    def reason(self) -> str:
        """Why the card is unhealthy, and since when: ``Xid 79 at 2026-11-21T12:00:01Z``."""
        if self.fault is None or self.since is None:
            return ""
        return f"{self.fault.text} at {self.since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def is_event_only(self) -> bool:
        """Whether the fault is an event, which the driver does not report to the next agent."""
        return self.fault is not None and self.fault.kind in _REPORTED_ONCE


def after_fault(
    health: CardHealth, fault: CardFault, now: ClockReading, rules: Rules
) -> CardHealth:
    """Return the health after a fault."""
    if not rules.counts(fault):
        return health
    health = replace(
        health,
        last=now.at if health.healthy else max(health.last, now.at),
        needs_reset=health.needs_reset or fault.needs_reset,
        reset_seen=health.reset_seen and not fault.needs_reset,
        gone=health.gone or fault.kind in _REINITIALIZED_AFTER,
    )
    # Keep the first of the gravest faults. Each probe of a card off the bus reports it as lost
    # again, which must not replace the cause.
    if health.fault is None or (fault.needs_reset and not health.fault.needs_reset):
        return replace(health, fault=fault, since=now.wall)
    return health


def after_probe(health: CardHealth, probe: Probe, now: ClockReading, rules: Rules) -> CardHealth:
    """Return the health after a probe, which may make an unhealthy card healthy."""
    before, count = health.uncorrectable, probe.uncorrectable
    fell = before is not None and count is not None and count < before
    rose = before is not None and count is not None and count > before
    health = replace(
        health,
        gone=False,
        # The count starts from zero when the card is reset or its driver loaded.
        reset_seen=health.reset_seen or (not health.healthy and (health.gone or fell)),
        uncorrectable=before if count is None else count,
    )
    faults = []
    if rose:
        faults.append(
            CardFault(FaultKind.ECC, f"{count} uncorrectable ECC errors, before {before}")
        )
    if before is None and count and probe.action is None:
        # They occurred while no agent ran. A newer driver reports itself if they need a reset.
        text = f"{count} uncorrectable ECC errors since the driver was loaded"
        faults.append(CardFault(FaultKind.ECC, text))
    if probe.action:
        faults.append(CardFault(FaultKind.RESET, f"the driver asks for {probe.action}"))
    if probe.defect:
        faults.append(CardFault(FaultKind.DEFECT, probe.defect))
    for fault in faults:
        health = after_fault(health, fault, now, rules)
    if health.healthy or faults or not _passes(health, probe, now, rules):
        return health
    return CardHealth(uncorrectable=health.uncorrectable)


def _passes(health: CardHealth, probe: Probe, now: ClockReading, rules: Rules) -> bool:
    """Return whether an unhealthy card recovers after a probe without a new fault."""
    if now.at - health.last < rules.quiet:
        return False
    if not health.needs_reset:
        return True
    # A driver that reports recovery actions, and requests none, decides.
    return (health.reset_seen or probe.action == "") and not probe.pending
