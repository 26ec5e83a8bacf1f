"""A rotation: look, decide, do one thing, look again.

The phases, in the order that is safe at every point:

1. an authority is stored (:class:`StoreAuthority`) that nobody uses yet;
2. every configuration trusts it beside those before it, and so does ``ca.crt`` in the
   Secret of the webhook (:class:`TrustIn`, :class:`TrustBeside`);
3. API servers are given time to see that (:class:`Wait`);
4. the serving certificate is signed by it (:class:`StoreServing`);
5. webhooks are given time to serve that, and then asked whether they do
   (:class:`Wait`, :class:`Ask`);
6. nothing else is trusted any more (:class:`TrustIn`, :class:`TrustBeside`).

:func:`decide` is the whole of that: the objects and the time in, one action out. Nothing is
remembered between two actions but what the cluster holds: a run that ended anywhere is
continued by the next, whoever starts it. :func:`rotate` is the loop around it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias, TypeVar

from certs.errors import ClusterError, Conflict, Foreign
from certs.issue import make_authority, sign_serving
from certs.objects import (
    LABEL,
    Configuration,
    Json,
    Origin,
    Purpose,
    Secret,
    bundle_patch,
    new_secret,
    with_authority,
    with_label,
    with_serving,
    with_stamp,
    with_trusted,
    write_stamp,
)
from certs.observing import Cluster, Observed, Served, Snapshot, observe
from certs.reading import Certificate, is_issued_by
from certs.settings import Policy, Settings
from common.backoff import Jitter, by_chance, pause_after

AHEAD = timedelta(minutes=5)
"""A stamp may be this much in the future, written by a clock that runs ahead."""

ASK_AGAIN = timedelta(minutes=1)
"""Webhooks that do not serve the new certificate yet are asked again after this time."""

_CONFLICTS = 20
_CONFLICT_PAUSE_S = (0.1, 5.0)
_LONGEST_NAP = timedelta(seconds=30)
_MISSING_NAP = timedelta(seconds=5)

_T = TypeVar("_T")


# --- the actions: one write, or one reason to do nothing; the text is what is told of it ----


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


# --- the decision ---------------------------------------------------------------------------


def decide(
    observed: Observed, policy: Policy, *, now: datetime, served: Served | None = None
) -> Action:
    """Return what to do next.

    Args:
        observed: what there is.
        policy: what is wanted.
        now: the present.
        served: what the webhooks serve; ``None`` when they were not asked.

    Raises:
        Foreign: something belongs to somebody else.
    """
    _leave_injected(observed)
    for secret in (observed.authority, observed.serving):
        if secret.origin is Origin.FOREIGN:
            return _adopted(secret, force=policy.force)
    authority, serving = observed.authority.certificate, observed.serving.certificate
    if authority is None:
        return StoreAuthority(observed.authority.problem)
    others = _others(observed, authority, now)
    # What no client accepts anyway cannot be broken by being in a hurry.
    urgent = serving is None or not _is_accepted(serving, (authority, *others), now)
    in_use = serving is not None and is_issued_by(serving, authority)
    if spent := _spent(authority, now, may_be_renewed=in_use and not urgent):
        return StoreAuthority(spent)
    situation = _Situation(observed, policy, now, authority, others)
    return (
        situation.trust()
        or situation.switch(urgent=urgent)
        or situation.wait_for_webhooks(served)
        or situation.drop()
    )


@dataclass(frozen=True, slots=True)
class _Situation:
    """The objects, once there is an authority that can be used.

    Attributes:
        observed: what there is.
        policy: what is wanted.
        now: the present.
        authority: the one that is stored.
        others: what is trusted beside it and can still be of use, in a fixed order.
    """

    observed: Observed
    policy: Policy
    now: datetime
    authority: Certificate
    others: tuple[Certificate, ...]

    def trust(self) -> Step | None:
        """Let everybody trust the authority, and the one that signed what is served now."""
        serving = self.observed.serving.certificate
        needed = {self.authority.fingerprint}
        if serving is not None:
            needed |= {each.fingerprint for each in self.others if is_issued_by(serving, each)}
        trusted = (self.authority, *self.others)
        for each in self.observed.configurations:
            lacks = any(needed - _fingerprints(bundle) for bundle in each.bundles)
            if lacks or (each.bundles and not _is_stamp(each.changed, self.now)):
                return TrustIn(each, trusted)
        if serving is not None and needed - _fingerprints(self.observed.serving.trusted):
            return TrustBeside(trusted)
        return None

    def switch(self, *, urgent: bool) -> Action | None:
        """Replace the serving certificate if there is a reason, once API servers accept it."""
        why = self._renewal()
        if not why:
            return None
        changes = [each.changed for each in self.observed.configurations if each.changed]
        seen = max(changes, default=self.now - self.policy.settle) + self.policy.settle
        if self.now < seen and not urgent:
            return Wait(seen, "API servers may not have seen the changed caBundle")
        return StoreServing((self.authority, *self.others), why)

    def wait_for_webhooks(self, served: Served | None) -> Action | None:
        """Return what keeps authorities of before in use, if there are any."""
        if not self.others:
            return None
        since = self.observed.serving.since
        if since is None or not _is_stamp(since, self.now):
            return DateServing()
        if self.now < since + self.policy.grace:
            return Wait(since + self.policy.grace, "webhooks may not serve the new certificate yet")
        if not self.policy.asks:
            return None
        return Ask() if served is None else self._wait_for_late(served)

    def drop(self) -> Action:
        """Leave nothing trusted but the authority."""
        only = (self.authority,)
        for each in self.observed.configurations:
            if any(bundle != only for bundle in each.bundles):
                return TrustIn(each, only)
        serving = self.observed.serving
        if serving.trusted != only:
            return TrustBeside(only)
        found = (self.authority, serving.certificate)
        return Done(min(each.renew_at for each in found if each is not None))

    def _renewal(self) -> str:
        serving, names = self.observed.serving.certificate, self.policy.names
        if serving is None:
            return self.observed.serving.problem
        if not serving.is_valid_at(self.now):
            return f"{serving} is not valid"
        if serving.names != names:
            return f"it is to be for {', '.join(sorted(names))}"
        if not is_issued_by(serving, self.authority):
            return f"{serving} is not signed by authority {self.authority}"
        if serving.renew_at <= self.now:
            return f"two thirds of the life of {serving} are over"
        return ""

    def _wait_for_late(self, served: Served) -> Wait | None:
        again = self.now + ASK_AGAIN
        if not served:
            return Wait(again, "no webhook was found to ask what it serves")
        late = [
            address
            for address, found in sorted(served.items())
            if found is None or not is_issued_by(found, self.authority)
        ]
        if late:
            return Wait(again, f"the new certificate is not served by {', '.join(late)}")
        return None


def _leave_injected(observed: Observed) -> None:
    for configuration in observed.configurations:
        if configuration.injector:
            raise Foreign(
                f"{configuration}: annotation {configuration.injector} gives its caBundle to "
                "cert-manager: remove the annotation, or leave rotation to cert-manager"
            )


def _adopted(secret: Secret, *, force: bool) -> Adopt:
    if not force:
        raise Foreign(
            f"secret {secret.name}: was made by somebody else (it lacks our label {LABEL}): "
            "delete it, name another, or give --force to take it over"
        )
    return Adopt(secret)


def _is_accepted(serving: Certificate, trusted: tuple[Certificate, ...], now: datetime) -> bool:
    return serving.is_valid_at(now) and any(is_issued_by(serving, each) for each in trusted)


def _spent(authority: Certificate, now: datetime, *, may_be_renewed: bool) -> str:
    """Return why the authority is to be replaced; empty when it is not.

    One that is stored and not in use yet has to come into use first: else one that is
    renewed faster than webhooks follow would never get there. The same holds while no client
    accepts what is served: an authority that is trusted already helps soonest. That ends
    where too little is left of its life to sign anything.
    """
    if not authority.is_valid_at(now):
        return f"{authority} is not valid"
    if authority.renew_at <= now and may_be_renewed:
        return f"two thirds of the life of {authority} are over"
    if authority.not_after - now < (authority.not_after - authority.not_before) / 6:
        return f"five sixths of the life of {authority} are over"
    return ""


def _others(observed: Observed, authority: Certificate, now: datetime) -> tuple[Certificate, ...]:
    """Return what is trusted beside *authority* and can still be of use, in a fixed order."""
    found = {each.fingerprint: each for each in _all_trusted(observed)}
    found.pop(authority.fingerprint, None)
    alive = (each for each in found.values() if now <= each.not_after)
    return tuple(sorted(alive, key=lambda each: (each.not_after, each.fingerprint), reverse=True))


def _is_stamp(moment: datetime | None, now: datetime) -> bool:
    """Return whether we can have written a stamp: none is from a future we should wait for."""
    return moment is not None and moment <= now + AHEAD


def _fingerprints(certificates: tuple[Certificate, ...]) -> set[str]:
    return {each.fingerprint for each in certificates}


def _all_trusted(observed: Observed) -> Iterator[Certificate]:
    """Return every authority that anybody trusts, doubles included."""
    for configuration in observed.configurations:
        for bundle in configuration.bundles:
            yield from bundle
    yield from observed.serving.trusted


# --- the loop -------------------------------------------------------------------------------


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
            empty = _empty(settings, settings.ca_secret, Purpose.AUTHORITY)
            obj = with_authority(snapshot.authority or empty, pair)
            _store(cluster, settings.ca_secret, snapshot.authority, obj)
        case StoreServing():
            pair = sign_serving(_there(snapshot.observed.authority.pair), settings.subject, now=now)
            empty = _empty(settings, settings.tls_secret, Purpose.SERVING)
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


def _empty(settings: Settings, name: str, purpose: Purpose) -> Json:
    return new_secret(name, settings.namespace, purpose, settings.component)


def _say(around: Surroundings, action: Step | Wait | Done) -> None:
    message, fields = _event(action)
    around.say(message, **fields)


def _event(action: Step | Wait | Done) -> tuple[str, dict[str, object]]:
    """Return the message and the fields of the log line about *action*."""
    fields: dict[str, object]
    match action:
        case Adopt(secret):
            message, fields = "secret taken over", {"secret": secret.name}
        case StoreAuthority(why):
            message, fields = "new authority", {"reason": why}
        case StoreServing(why=why):
            message, fields = "new serving certificate", {"reason": why}
        case DateServing():
            message, fields = "serving certificate dated", {}
        case TrustIn(configuration, trusted):
            message = "trust changed"
            fields = {
                "configuration": str(configuration),
                "trusts": [each.fingerprint for each in trusted],
            }
        case TrustBeside(trusted):
            message, fields = "ca.crt changed", {"trusts": [each.fingerprint for each in trusted]}
        case Wait(until, why):
            message, fields = "next step later", {"until": write_stamp(until), "reason": why}
        case Done(renewal):
            message, fields = "nothing to do", {"until": write_stamp(renewal)}
    return message, fields


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
