"""The loop of a rotation: reads the objects, decides, and takes one action, again and again."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from certs.cluster import RotationApi
from certs.errors import ClusterError, Conflict
from certs.issue import make_authority, sign_serving
from certs.objects import Json, ObservedObjects, Purpose, changed, new_secret
from certs.reading import write_bundle
from certs.rotation import (
    Action,
    Ask,
    DateServing,
    Done,
    Step,
    StoreAuthority,
    StoreServing,
    TakeOver,
    Wait,
    WriteCaBundle,
    WriteCaCrt,
    decide,
    event,
)
from certs.settings import Settings
from common.backoff import Jitter, by_chance, pause_after

_CONFLICTS = 20
_CONFLICT_PAUSE_S = (0.1, 5.0)
_LONGEST_PAUSE = timedelta(seconds=30)
_MISSING_PAUSE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Environment:
    """Clock, log and randomness of a run.

    Attributes:
        clock: returns the present time.
        sleep: waits for a duration.
        log: writes a line: a message, and fields by keyword.
        jitter: source of randomness for pauses, so that two runs do not collide again.
    """

    clock: Callable[[], datetime]
    sleep: Callable[[timedelta], None]
    log: Callable[..., None]
    jitter: Jitter = by_chance


def rotate(cluster: RotationApi, env: Environment, *, until: datetime | None = None) -> Wait | Done:
    """Take all steps that are possible now, and wait for later ones, but not beyond *until*.

    Returns:
        The reason why no step is possible now.

    Raises:
        CertsError: the API server rejects a request, or an object belongs to another owner.
    """
    conflicts, logged = 0, ""
    while True:
        try:
            observed, action = _step(cluster, env)
        except Conflict as error:
            conflicts += 1
            if conflicts == _CONFLICTS:
                raise
            env.log("reading again", reason=str(error))
            seconds = pause_after(conflicts, *_CONFLICT_PAUSE_S, jitter=env.jitter)
            env.sleep(timedelta(seconds=seconds))
            continue
        conflicts = 0
        if not isinstance(action, Wait | Done):
            _log_action(env, action)
            continue
        pause, why = _pause(action, observed, env.clock())
        if until is None or not pause or env.clock() + pause > until:
            if observed.missing:
                raise ClusterError(f"{', '.join(observed.missing)}: not found: apply it")
            _log_action(env, action)
            return action
        if why != logged:
            env.log("waiting", reason=why)
            logged = why
        env.sleep(pause)


def keep_rotating(
    cluster: RotationApi, env: Environment, *, every: timedelta, longest: timedelta
) -> NoReturn:
    """Run :func:`rotate` without an end: for at most *longest*, then a pause of *every*, and again.

    Raises:
        CertsError: as :func:`rotate` does.
    """
    while True:
        rotate(cluster, env, until=env.clock() + longest)
        env.sleep(every)


def unless_repeated(log: Callable[..., None]) -> Callable[..., None]:
    """Return a log that omits a line if it equals the one before."""
    before: object = None

    def write(message: str, /, **fields: object) -> None:
        nonlocal before
        if (message, fields) != before:
            before = message, fields
            log(message, **fields)

    return write


def _log_action(env: Environment, action: Action) -> None:
    message, fields = event(action)
    env.log(message, **fields)


def _step(cluster: RotationApi, env: Environment) -> tuple[ObservedObjects, Step | Wait | Done]:
    """Read the objects, decide, and carry out the decision if it is a step.

    Raises:
        Conflict: an object has changed, or the API server does not respond.
        CertsError: the API server rejects a request, or an object belongs to another owner.
    """
    observed, settings, now = cluster.observe(), cluster.settings, env.clock()
    action = decide(observed, settings, now=now)
    if isinstance(action, Ask) and settings.replicas is not None:
        served = settings.replicas.fetch_served(settings.subject.dns[0])
        action = decide(observed, settings, now=now, served=served)
    assert not isinstance(action, Ask), "asked once already"  # noqa: S101 - for mypy
    if not isinstance(action, Wait | Done):
        _carry_out(action, observed, cluster, now)
    return observed, action


def _carry_out(step: Step, observed: ObservedObjects, cluster: RotationApi, now: datetime) -> None:
    """Make one write; the API server rejects it if the object has changed since it was read.

    Raises:
        Conflict: the object has changed.
        ClusterError: the API server rejects the request for another reason.
    """
    authority, serving, settings = observed.authority, observed.serving, cluster.settings
    match step:
        case StoreAuthority():
            made = make_authority(now=now, days=settings.ca_days)
            data = {"ca.crt": made.certificate, "ca.key": made.key}
            obj = authority.obj or _empty(settings, authority.name, Purpose.AUTHORITY)
            cluster.write_secret(changed(obj, data))
        case StoreServing(trusted):
            assert authority.pair is not None  # noqa: S101 - checked by decide
            made = sign_serving(authority.pair, settings.subject, now=now)
            data = {
                "tls.crt": made.certificate,
                "tls.key": made.key,
                "ca.crt": write_bundle(trusted),
            }
            obj = serving.obj or _empty(settings, serving.name, Purpose.SERVING)
            cluster.write_secret(changed(obj, data, since=now))
        case TakeOver(secret):
            cluster.write_secret(changed(secret.obj, {}))
        case WriteCaCrt(trusted):
            cluster.write_secret(changed(serving.obj, {"ca.crt": write_bundle(trusted)}))
        case DateServing():
            cluster.write_secret(changed(serving.obj, {}, since=now))
        case WriteCaBundle(configuration, trusted):
            cluster.write_bundle(configuration, trusted, now)


def _empty(settings: Settings, name: str, purpose: Purpose) -> Json:
    return new_secret(name, purpose, namespace=settings.namespace, component=settings.component)


def _pause(action: Wait | Done, observed: ObservedObjects, now: datetime) -> tuple[timedelta, str]:
    """Return how long to wait before the next check, and why; zero if everything is done."""
    if observed.missing:
        return _MISSING_PAUSE, f"{', '.join(observed.missing)} not found"
    if isinstance(action, Wait):
        return min(max(action.until - now, timedelta(seconds=1)), _LONGEST_PAUSE), action.why
    return timedelta(), ""
