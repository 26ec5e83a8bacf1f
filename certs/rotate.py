"""A rotation carried out: look, decide, do one thing, look again."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from certs.errors import ClusterError, Conflict
from certs.issue import make_authority, sign_serving
from certs.objects import (
    Json,
    Purpose,
    bundle_patch,
    new_secret,
    with_authority,
    with_label,
    with_serving,
    with_stamp,
    with_trusted,
)
from certs.observing import Cluster, Snapshot, observe
from certs.plan import Observed, Served, decide
from certs.report import as_event
from certs.settings import Settings
from certs.steps import (
    Adopt,
    Ask,
    DateServing,
    Done,
    Step,
    StoreAuthority,
    StoreServing,
    TrustBeside,
    TrustIn,
    Wait,
)
from common.backoff import Jitter, by_chance, pause_after

_CONFLICTS = 20
_CONFLICT_PAUSE_S = (0.1, 5.0)
_LONGEST_NAP = timedelta(seconds=30)
_MISSING_NAP = timedelta(seconds=5)

_T = TypeVar("_T")


class Say(Protocol):
    """Writes a line to the log."""

    def __call__(self, message: str, /, **fields: object) -> None:
        """Write one line."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a run beside the API server.

    Attributes:
        clock: gives the present.
        sleep: waits for a time.
        served: asks the webhooks what they serve.
        say: takes each step.
        jitter: source of randomness for pauses, so that two runs do not meet again.
    """

    clock: Callable[[], datetime]
    sleep: Callable[[timedelta], None]
    served: Callable[[], Served]
    say: Say
    jitter: Jitter = by_chance


def rotate(
    cluster: Cluster, settings: Settings, around: Surroundings, *, until: datetime | None = None
) -> Wait | Done:
    """Do whatever can be done.

    Args:
        cluster: where.
        settings: what.
        around: clock, sleep and the rest.
        until: stay so long where time has to pass; ``None`` to leave that to the next run.

    Returns:
        Why there is nothing to do now.

    Raises:
        CertsError: the API server refuses, or what is there belongs to somebody else.
    """
    conflicts, told = 0, ""
    while True:
        try:
            observed, action = _step(cluster, settings, around)
        except Conflict as error:
            conflicts += 1
            if conflicts == _CONFLICTS:
                raise
            around.say("looking again", reason=str(error))
            pause = pause_after(conflicts, *_CONFLICT_PAUSE_S, jitter=around.jitter)
            around.sleep(timedelta(seconds=pause))
            continue
        conflicts = 0
        if not isinstance(action, Wait | Done):
            continue
        now = around.clock()
        nap = _nap(action, observed, now)
        if until is None or not nap or now + nap > until:
            _need_all(observed)
            _say(around, action)
            return action
        why = _why(action, observed)
        if why != told:
            around.say("waiting", reason=why)
            told = why
        around.sleep(nap)


def _step(
    cluster: Cluster, settings: Settings, around: Surroundings
) -> tuple[Observed, Step | Wait | Done]:
    """Look, decide, and do it if it is something to do.

    Raises:
        Conflict: somebody else was faster.
        CertsError: the API server refuses, or what is there belongs to somebody else.
    """
    snapshot = observe(cluster, settings)
    now = around.clock()
    action = decide(snapshot.observed, settings.policy, now=now)
    if isinstance(action, Ask):
        action = decide(snapshot.observed, settings.policy, now=now, served=around.served())
    assert not isinstance(action, Ask), "asked once already"  # noqa: S101 - tells mypy
    if not isinstance(action, Wait | Done):
        _carry_out(action, snapshot, cluster, settings, now)
        _say(around, action)
    return snapshot.observed, action


def _carry_out(
    step: Step, snapshot: Snapshot, cluster: Cluster, settings: Settings, now: datetime
) -> None:
    """Make one write; it is refused if what it is based on has changed.

    Raises:
        Conflict: it has.
        ClusterError: the API server refuses.
    """
    match step:
        case StoreAuthority():
            pair = make_authority(now=now, days=settings.ca_days)
            empty = new_secret(settings.ca_secret, settings.namespace, Purpose.AUTHORITY)
            obj = with_authority(snapshot.authority or empty, pair)
            _store(cluster, settings.ca_secret, snapshot.authority, obj)
        case StoreServing():
            pair = sign_serving(_there(snapshot.observed.authority.pair), settings.subject, now=now)
            empty = new_secret(settings.tls_secret, settings.namespace, Purpose.SERVING)
            obj = with_serving(snapshot.serving or empty, pair, trusted=step.trusted, now=now)
            _store(cluster, settings.tls_secret, snapshot.serving, obj)
        case Adopt():
            name = step.secret.name
            found = snapshot.authority if name == settings.ca_secret else snapshot.serving
            cluster.replace_secret(name, with_label(_there(found)))
        case TrustBeside():
            obj = with_trusted(_there(snapshot.serving), step.trusted)
            cluster.replace_secret(settings.tls_secret, obj)
        case DateServing():
            cluster.replace_secret(settings.tls_secret, with_stamp(_there(snapshot.serving), now))
        case TrustIn():
            target = step.configuration
            patch = bundle_patch(target, step.trusted, now)
            cluster.patch_configuration(target.kind, target.name, patch)


def _say(around: Surroundings, action: Step | Wait | Done) -> None:
    message, fields = as_event(action)
    around.say(message, **fields)


def _store(cluster: Cluster, name: str, before: Json | None, obj: Json) -> None:
    if before is None:
        cluster.create_secret(obj)
    else:
        cluster.replace_secret(name, obj)


def _there(value: _T | None) -> _T:
    if value is None:
        raise Conflict("what was to be changed is gone")
    return value


def _nap(action: Wait | Done, observed: Observed, now: datetime) -> timedelta:
    """Return how long to wait before looking again; nothing when all is done."""
    naps = []
    if isinstance(action, Wait):
        naps.append(min(max(action.until - now, timedelta(seconds=1)), _LONGEST_NAP))
    if observed.missing:
        naps.append(_MISSING_NAP)
    return min(naps, default=timedelta())


def _why(action: Wait | Done, observed: Observed) -> str:
    """Return what is waited for; the same text while it is the same."""
    reasons = [f"{each} not found" for each in observed.missing]
    if isinstance(action, Wait):
        reasons.append(action.why)
    return "; ".join(reasons)


def _need_all(observed: Observed) -> None:
    if observed.missing:
        raise ClusterError(
            f"{', '.join(observed.missing)}: not found: apply it, "
            "or leave it out of --mutating and --validating"
        )
