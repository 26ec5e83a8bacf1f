"""The next action of a rotation. Pure: the objects and the time in, one action out.

The phases, in the order that is safe at every point:

1. an authority is stored (:class:`StoreAuthority`) that nobody uses yet;
2. every configuration trusts it beside those before it, and so does ``ca.crt`` in the
   Secret of the webhook (:class:`TrustIn`, :class:`TrustBeside`);
3. API servers are given time to see that (:class:`Wait`);
4. the serving certificate is signed by it (:class:`StoreServing`);
5. webhooks are given time to serve that, and then asked whether they do
   (:class:`Wait`, :class:`Ask`);
6. nothing else is trusted any more (:class:`TrustIn`, :class:`TrustBeside`).

Nothing is remembered between two actions but what the cluster holds: a run that ended
anywhere is continued by the next, whoever starts it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from certs.errors import Foreign
from certs.objects import LABEL, Configuration, Origin, Secret
from certs.reading import Certificate, is_issued_by
from certs.steps import (
    Action,
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

AHEAD = timedelta(minutes=5)
"""A stamp may be this much in the future, written by a clock that runs ahead."""

ASK_AGAIN = timedelta(minutes=1)
"""Webhooks that do not serve the new certificate yet are asked again after this time."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The wishes of the operator.

    Attributes:
        names: DNS names of the serving certificate.
        settle: how long API servers may need to see a changed configuration.
        grace: how long webhooks may need to serve what their Secret holds.
        asks: whether webhooks are asked what they serve.
        force: take over Secrets that somebody else made.
    """

    names: frozenset[str]
    settle: timedelta
    grace: timedelta
    asks: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects at one moment.

    Attributes:
        authority: the Secret of the authority.
        serving: the Secret that the webhook mounts.
        configurations: those that are there.
        missing: those that should be there and are not.
    """

    authority: Secret
    serving: Secret
    configurations: tuple[Configuration, ...]
    missing: tuple[str, ...] = ()


Served: TypeAlias = Mapping[str, Certificate | None]
"""What is served at each address; ``None`` where nobody answers."""


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


def all_trusted(observed: Observed) -> Iterator[Certificate]:
    """Return every authority that anybody trusts, doubles included."""
    for configuration in observed.configurations:
        for bundle in configuration.bundles:
            yield from bundle
    yield from observed.serving.trusted


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
    found = {each.fingerprint: each for each in all_trusted(observed)}
    found.pop(authority.fingerprint, None)
    alive = (each for each in found.values() if now <= each.not_after)
    return tuple(sorted(alive, key=lambda each: (each.not_after, each.fingerprint), reverse=True))


def _is_stamp(moment: datetime | None, now: datetime) -> bool:
    """Return whether we can have written a stamp: none is from a future we should wait for."""
    return moment is not None and moment <= now + AHEAD


def _fingerprints(certificates: tuple[Certificate, ...]) -> set[str]:
    return {each.fingerprint for each in certificates}
