"""Whether a card may be given to new containers: faults, quiet time, probe, recovery.

A state machine of pure, total functions: what happened goes in, the card's next state
comes out. The clock is an argument; nothing here waits, asks or writes.

::

             a fault that counts                   another: the quiet time starts again
    healthy ---------------------> unhealthy ----.
       ^                            |   ^        |
       |                            |   `--------'
       `----------------------------'
         quiet for long enough, then a probe that passes
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

# The driver's error numbers, by NVIDIA's Xid catalog, "Xid Errors":
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""What a faulty program causes on a sound card; the next container finds it as good as new."""

RESET_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158})
"""What a card does not get over without a reset: the catalog's immediate action is ``RESET_GPU``
or ``RESTART_BM``, or (48, 74) a workflow that ends in one."""

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
    """What went wrong."""

    XID = "xid"
    ECC = "ecc"
    LOST = "lost"
    ERROR = "error"
    RESET = "reset"
    DEFECT = "defect"
    MIG = "mig"
    NVML = "nvml"
    DRIVER = "driver"


# Once a card answers after one of these, it has been set up anew: a lost card does not come
# back within a driver's life, and a driver that was gone initialises all it finds.
_GONE = frozenset({FaultKind.LOST, FaultKind.DRIVER})
_TOLD_ONCE = frozenset({FaultKind.XID, FaultKind.ECC})


@dataclass(frozen=True, slots=True)
class CardFault:
    """One thing that went wrong with a card; *text* is for people, without a time."""

    kind: FaultKind
    text: str
    xid: int | None = None

    @property
    def needs_reset(self) -> bool:
        """Whether the card does not get over it without a reset."""
        return self.kind in (FaultKind.ECC, FaultKind.RESET) or self.xid in RESET_XIDS


def xid_fault(xid: int) -> CardFault:
    """Describe an Xid, with its name where it has one: ``Xid 79 (GPU has fallen off the bus)``."""
    name = _XID_NAMES.get(xid)
    return CardFault(FaultKind.XID, f"Xid {xid} ({name})" if name else f"Xid {xid}", xid)


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer of a card that was probed.

    Attributes:
        uncorrectable: uncorrectable ECC errors since the driver was loaded, ``None`` without ECC.
        action: what the driver asks for to recover the card; empty when it asks for nothing,
            ``None`` when it is too old to tell.
        pending: whether memory waits for a reset to be set aside.
        defect: what no reset mends, such as memory that could not be set aside; empty for none.
    """

    uncorrectable: int | None = None
    action: str | None = None
    pending: bool = False
    defect: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of card health.

    Attributes:
        quiet: seconds without a fault before an unhealthy card may come back.
        ignored_xids: the Xids that leave a card healthy; ``None`` for all.
        fatal_xids: the Xids that make it unhealthy, ignored or not.
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
    """Seconds on a clock that never jumps; the quiet time is measured with it."""
    wall: datetime
    """The time of day, for people."""


@dataclass(frozen=True, slots=True)
class CardHealth:
    """The health of one card.

    Attributes:
        fault: the gravest fault since the card was healthy, ``None`` while it is.
        since: when that one came.
        last: when the latest fault came, on the clock of :class:`ClockReading`.
        needs_reset: whether one of the faults takes a reset.
        reset_seen: whether there has been a reset since.
        gone: whether the card has not answered since it was lost.
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
        """Why not, for people: ``Xid 79 (GPU has fallen off the bus) at 12:00:01``."""
        if self.fault is None or self.since is None:
            return ""
        return f"{self.fault.text} at {self.since:%H:%M:%S}"

    @property
    def is_event_only(self) -> bool:
        """Whether the card is ill by an event, which the driver does not tell another agent."""
        return self.fault is not None and self.fault.kind in _TOLD_ONCE


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
        gone=health.gone or fault.kind in _GONE,
    )
    # The first of the gravest is told: that a card off the bus is lost again in every probe is
    # no news, and would hide how it came to that.
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
        # They came while no agent looked. A newer driver says itself whether they take a reset.
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
    """Whether an unhealthy card whose probe showed no new fault comes back."""
    if now.at - health.last < rules.quiet:
        return False
    if not health.needs_reset:
        return True
    # A driver that can tell and asks for nothing knows best.
    return (health.reset_seen or probe.action == "") and not probe.pending
