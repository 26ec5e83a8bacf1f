"""The phases of a rotation: objects and time in, one action out. Pure.

The phases are in an order that is safe at every point:

1. store a new authority, which is not used yet (:class:`StoreAuthority`);
2. add it to the earlier ones in the ``caBundle`` of every webhook, and in ``ca.crt`` of the
   webhook's Secret (:class:`WriteCaBundle`, :class:`WriteCaCrt`);
3. wait until API servers have seen that (:class:`Wait`);
4. store a serving certificate that it has signed (:class:`StoreServing`);
5. wait until webhooks should serve that certificate, and check whether they do
   (:class:`Wait`, :class:`Ask`);
6. remove the trust in earlier authorities (:class:`WriteCaBundle`, :class:`WriteCaCrt`).

:func:`decide` implements all phases. All state is in the cluster: if a run ends at any point, the
next run continues it. :func:`certs.loop.rotate` takes one action after the other.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import TypeAlias

from certs.errors import Foreign
from certs.objects import (
    LABEL,
    Configuration,
    ObservedObjects,
    Origin,
    Secret,
    Served,
    write_stamp,
)
from certs.reading import Certificate, is_issued_by
from certs.settings import Settings

AHEAD = timedelta(minutes=5)
"""A stamp may be this much in the future, written by a clock that runs ahead."""

ASK_AGAIN = timedelta(minutes=1)
"""Time until webhooks that do not serve the new certificate yet are checked again."""


# --- the actions: one write, or one reason to do nothing ------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Add our label to a Secret that lacks it."""

    secret: Secret


@dataclass(frozen=True, slots=True)
class StoreAuthority:
    """Make an authority and write its Secret."""

    why: str


@dataclass(frozen=True, slots=True)
class WriteCaBundle:
    """Write *trusted* as the ``caBundle`` of a webhook configuration."""

    configuration: Configuration
    trusted: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True)
class WriteCaCrt:
    """Write *trusted* as ``ca.crt`` of the webhook's Secret, for clients other than API servers."""

    trusted: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True)
class StoreServing:
    """Make a serving certificate, signed by the stored authority, and write its Secret."""

    trusted: tuple[Certificate, ...]
    why: str


@dataclass(frozen=True, slots=True)
class DateServing:
    """Write a stamp for the serving certificate, because its Secret has none."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Read the certificates that the webhooks serve, and decide again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before *until*."""

    until: datetime
    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do until *renewal*."""

    renewal: datetime


Step: TypeAlias = (
    TakeOver | StoreAuthority | WriteCaBundle | WriteCaCrt | StoreServing | DateServing
)
Action: TypeAlias = Step | Ask | Wait | Done


def event(action: Action) -> tuple[str, dict[str, object]]:
    """Return the message and the fields of the log line about an action."""
    fields: dict[str, object] = {}
    match action:
        case TakeOver(secret):
            message, fields = "secret taken over", {"secret": secret.name}
        case StoreAuthority(why):
            message, fields = "new authority", {"reason": why}
        case StoreServing(why=why):
            message, fields = "new serving certificate", {"reason": why}
        case DateServing():
            message = "serving certificate dated"
        case WriteCaBundle(configuration, trusted):
            message = "trust changed"
            fields = {"configuration": str(configuration), "trusts": _listed(trusted)}
        case WriteCaCrt(trusted):
            message, fields = "ca.crt changed", {"trusts": _listed(trusted)}
        case Ask():
            message = "reading the certificates that webhooks serve"
        case Wait(until, why):
            message, fields = "next step later", {"until": write_stamp(until), "reason": why}
        case Done(renewal):
            message, fields = "nothing to do", {"until": write_stamp(renewal)}
    return message, fields


def _listed(certificates: tuple[Certificate, ...]) -> list[str]:
    return [each.fingerprint for each in certificates]


# --- the decision ---------------------------------------------------------------------------


def decide(
    observed: ObservedObjects, settings: Settings, *, now: datetime, served: Served | None = None
) -> Action:
    """Return what to do next; *served* is ``None`` if the webhooks' certificates were not read.

    Raises:
        Foreign: an object belongs to another owner.
    """
    _refuse_injected(observed)
    for secret in (observed.authority, observed.serving):
        if secret.origin is Origin.FOREIGN:
            return _take_over(secret, force=settings.force)
    authority, serving = observed.authority.certificate, observed.serving.certificate
    if authority is None:
        return StoreAuthority(observed.authority.problem)
    others = _others(observed, authority, now)
    # No client accepts the serving certificate: a fast change cannot make it worse.
    urgent = serving is None or not _is_accepted(serving, (authority, *others), now)
    in_use = serving is not None and is_issued_by(serving, authority)
    if spent := _spent(authority, now, may_be_renewed=in_use and not urgent):
        return StoreAuthority(spent)
    phases = _Phases(observed, settings, now, authority, others)
    return (
        phases.trust()
        or phases.switch(urgent=urgent)
        or phases.wait_for_webhooks(served)
        or phases.drop()
    )


@dataclass(frozen=True, slots=True)
class _Phases:
    """Phases 2 to 6, with a stored authority that can be used.

    *others* are the other authorities that are trusted and not expired, in a fixed order.
    """

    observed: ObservedObjects
    settings: Settings
    now: datetime
    authority: Certificate
    others: tuple[Certificate, ...]

    def trust(self) -> Step | None:
        """Phase 2: trust the new authority everywhere, and the one of the current certificate."""
        serving = self.observed.serving.certificate
        needed = {self.authority.fingerprint}
        if serving is not None:
            needed |= {each.fingerprint for each in self.others if is_issued_by(serving, each)}
        trusted = (self.authority, *self.others)
        for each in self.observed.configurations:
            lacks = any(needed - _fingerprints(bundle) for bundle in each.bundles)
            if lacks or (each.bundles and not _is_stamp(each.changed, self.now)):
                return WriteCaBundle(each, trusted)
        if serving is not None and needed - _fingerprints(self.observed.serving.trusted):
            return WriteCaCrt(trusted)
        return None

    def switch(self, *, urgent: bool) -> Action | None:
        """Phases 3 and 4: replace the serving certificate after API servers accept a new one."""
        why = self._renewal()
        if not why:
            return None
        changes = [each.changed for each in self.observed.configurations if each.changed]
        seen = max(changes, default=self.now - self.settings.settle) + self.settings.settle
        if self.now < seen and not urgent:
            return Wait(seen, "API servers may not have seen the changed caBundle")
        return StoreServing((self.authority, *self.others), why)

    def wait_for_webhooks(self, served: Served | None) -> Action | None:
        """Phase 5: wait until no webhook serves a certificate of the other authorities."""
        if not self.others:
            return None
        since = self.observed.serving.since
        if since is None or not _is_stamp(since, self.now):
            return DateServing()
        if self.now < since + self.settings.grace:
            return Wait(
                since + self.settings.grace, "webhooks may not serve the new certificate yet"
            )
        if not self.settings.replicas:
            return None
        return Ask() if served is None else self._wait_for_late(served)

    def drop(self) -> Action:
        """Phase 6: trust only the stored authority."""
        only = (self.authority,)
        for each in self.observed.configurations:
            if any(bundle != only for bundle in each.bundles):
                return WriteCaBundle(each, only)
        serving = self.observed.serving
        if serving.trusted != only:
            return WriteCaCrt(only)
        found = (self.authority, serving.certificate)
        return Done(min(each.renew_at for each in found if each is not None))

    def _renewal(self) -> str:
        serving, names = self.observed.serving.certificate, self.settings.names
        if serving is None:
            return self.observed.serving.problem
        if not serving.is_valid_at(self.now):
            return f"{serving} is not valid"
        if serving.names != names:
            return f"it must be for {', '.join(sorted(names))}"
        if not is_issued_by(serving, self.authority):
            return f"{serving} is not signed by authority {self.authority}"
        if serving.renew_at <= self.now:
            return f"two thirds of the validity of {serving} are over"
        return ""

    def _wait_for_late(self, served: Served) -> Wait | None:
        again = self.now + ASK_AGAIN
        if not served:
            return Wait(again, "no webhook was found")
        late = [
            address
            for address, found in sorted(served.items())
            if found is None or not is_issued_by(found, self.authority)
        ]
        if late:
            return Wait(again, f"the new certificate is not served by {', '.join(late)}")
        return None


def _refuse_injected(observed: ObservedObjects) -> None:
    for configuration in observed.configurations:
        if configuration.injector:
            raise Foreign(
                f"{configuration}: annotation {configuration.injector} makes cert-manager write "
                "its caBundle: remove the annotation, or let only cert-manager renew certificates"
            )


def _take_over(secret: Secret, *, force: bool) -> TakeOver:
    if not force:
        raise Foreign(
            f"secret {secret.name}: belongs to another owner (it lacks our label {LABEL}): "
            "delete it, name another, or give --force to take it over"
        )
    return TakeOver(secret)


def _is_accepted(serving: Certificate, trusted: tuple[Certificate, ...], now: datetime) -> bool:
    return serving.is_valid_at(now) and any(is_issued_by(serving, each) for each in trusted)


def _spent(authority: Certificate, now: datetime, *, may_be_renewed: bool) -> str:
    """Return why the authority must be replaced; empty if it need not.

    A stored authority must first have signed the serving certificate, else an authority that is
    renewed faster than webhooks follow would never be used. Nor is it replaced while no client
    accepts the serving certificate, because an authority that is already trusted helps fastest.
    Both exceptions end when too little of its validity is left to sign a certificate.
    """
    if not authority.is_valid_at(now):
        return f"{authority} is not valid"
    if authority.renew_at <= now and may_be_renewed:
        return f"two thirds of the validity of {authority} are over"
    if authority.not_after - now < (authority.not_after - authority.not_before) / 6:
        return f"five sixths of the validity of {authority} are over"
    return ""


def _others(
    observed: ObservedObjects, authority: Certificate, now: datetime
) -> tuple[Certificate, ...]:
    """Return the other authorities that are trusted and not expired, in a fixed order."""
    bundles = [each for known in observed.configurations for each in known.bundles]
    found = {each.fingerprint: each for each in chain(*bundles, observed.serving.trusted)}
    found.pop(authority.fingerprint, None)
    valid = (each for each in found.values() if now <= each.not_after)
    return tuple(sorted(valid, key=lambda each: (each.not_after, each.fingerprint), reverse=True))


def _is_stamp(moment: datetime | None, now: datetime) -> bool:
    """Return whether a stamp can be ours: it exists, and is not in the future."""
    return moment is not None and moment <= now + AHEAD


def _fingerprints(certificates: tuple[Certificate, ...]) -> set[str]:
    return {each.fingerprint for each in certificates}
