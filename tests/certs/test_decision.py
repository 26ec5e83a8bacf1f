"""Single decisions: total and deterministic. Whole rotations: test_rotation."""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from certs.issue import KeyPair, make_authority, sign_serving
from certs.objects import Configuration, ObservedObjects, Origin, Secret, WebhookKind
from certs.reading import Certificate, is_issued_by, read_certificate
from certs.replicas import Replicas
from certs.rotation import (
    Ask,
    DateServing,
    Done,
    StoreServing,
    Wait,
    WriteCaBundle,
    WriteCaCrt,
    decide,
    event,
)
from tests.certs.fakes import GRACE, SETTLE, START, settings

SETTINGS = settings()
FORCED = settings(replicas=Replicas("hook", 1), force=True)
AUTHORITIES = [make_authority(now=START + timedelta(days=days), days=90) for days in (0, 40, 70)]
SERVING = [
    sign_serving(authority, replace(SETTINGS.subject, days=30), now=START + timedelta(days=days))
    for authority in AUTHORITIES
    for days in (0, 60)
]

_TIMES = st.integers(-10, 120).map(lambda days: START + timedelta(days=days))
_STAMPS = st.none() | _TIMES
_BUNDLES = st.lists(
    st.sampled_from([read_certificate(each.certificate) for each in AUTHORITIES]), max_size=3
).map(tuple)


def _secret(name: str, pairs: list[KeyPair]) -> st.SearchStrategy[Secret]:
    def make(
        pair: KeyPair | None,
        origin: Origin,
        trusted: tuple[Certificate, ...],
        since: datetime | None,
    ) -> Secret:
        if pair is None:
            return Secret(name, origin, problem="is bad", trusted=trusted, since=since)
        certificate = read_certificate(pair.certificate)
        return Secret(name, origin, pair, certificate, "", trusted, since)

    origins = st.sampled_from([Origin.OURS, Origin.EMPTY, Origin.FOREIGN])
    return st.builds(make, st.none() | st.sampled_from(pairs), origins, _BUNDLES, _STAMPS)


_CONFIGURATIONS = st.builds(
    Configuration,
    st.sampled_from(WebhookKind),
    st.just("c"),
    st.just("1"),
    st.lists(_BUNDLES, max_size=2).map(tuple),
    _STAMPS,
)
_OBSERVED = st.builds(
    ObservedObjects,
    _secret("a", AUTHORITIES),
    _secret("s", SERVING),
    st.lists(_CONFIGURATIONS, max_size=2).map(tuple),
)

ONE, OTHER = (read_certificate(each.certificate) for each in AUTHORITIES[:2])
_MADE = Secret("a", Origin.OURS, AUTHORITIES[0], ONE)
_SERVED = Secret(
    "s", Origin.OURS, SERVING[0], read_certificate(SERVING[0].certificate), "", (ONE,), START
)
_EMPTY = Secret("s", Origin.EMPTY, problem="is bad")


def _trusting(*bundle: Certificate) -> tuple[Configuration, ...]:
    return (Configuration(WebhookKind.MUTATING, "c", "1", (bundle,), START),)


DAY = START + timedelta(days=1)


@given(_OBSERVED, _TIMES)
@example(ObservedObjects(_MADE, _SERVED, _trusting(ONE)), DAY)  # done
@example(ObservedObjects(_MADE, _SERVED, _trusting(OTHER)), DAY)  # to be trusted
@example(ObservedObjects(_MADE, _EMPTY, _trusting(ONE)), DAY)  # to be made
def test_no_step_serves_an_untrusted_certificate_or_ends_trust_in_a_served_one(
    observed: ObservedObjects, now: datetime
) -> None:
    """And every state has an action, always the same."""
    serving = observed.serving.certificate
    action = decide(observed, FORCED, now=now, served={})
    assert action == decide(observed, FORCED, now=now, served={})
    assert event(action)[0].isprintable()
    match action:
        case WriteCaBundle(_, trusted) | WriteCaCrt(trusted) if serving is not None:
            assert all(now <= each.not_after for each in trusted)
            before = [each for found in observed.configurations for each in found.bundles]
            known = {each for bundle in (*before, observed.serving.trusted) for each in bundle}
            if serving.is_valid_at(now) and any(is_issued_by(serving, each) for each in known):
                assert any(is_issued_by(serving, each) for each in trusted)
        case StoreServing():
            authority = observed.authority.certificate
            for found in observed.configurations:
                assert all(authority in bundle for bundle in found.bundles)
        case Done(renewal):
            assert now < renewal
            assert serving is not None
            for found in observed.configurations:
                assert all(bundle == (observed.authority.certificate,) for bundle in found.bundles)


NOW = START + timedelta(days=61)


def _renewed(
    pair: KeyPair, since: datetime | None, *configurations: Configuration
) -> ObservedObjects:
    """A new authority, beside the old one in all that trusts."""
    authority = Secret("a", Origin.OURS, AUTHORITIES[1], OTHER)
    certificate = read_certificate(pair.certificate)
    serving = Secret("s", Origin.OURS, pair, certificate, "", (OTHER, ONE), since)
    return ObservedObjects(authority, serving, configurations)


def test_a_certificate_of_unknown_age_is_dated_before_anything_is_dropped() -> None:
    """And webhooks are checked only after the time of grace."""
    for since in (None, NOW + timedelta(minutes=6)):
        assert decide(_renewed(SERVING[3], since), FORCED, now=NOW) == DateServing()
    served = _renewed(SERVING[3], NOW - GRACE)
    assert isinstance(decide(served, FORCED, now=NOW), Ask)
    assert decide(served, SETTINGS, now=NOW) == WriteCaCrt((OTHER,))


def test_the_configuration_that_changed_last_is_waited_for() -> None:
    early, late = (
        Configuration(WebhookKind.MUTATING, name, "1", ((OTHER, ONE),), changed)
        for name, changed in (("c", NOW - SETTLE), ("d", NOW))
    )
    observed = _renewed(SERVING[1], START, early, late)
    why = "API servers may not have seen the changed caBundle"
    assert decide(observed, SETTINGS, now=NOW) == Wait(NOW + SETTLE, why)
    assert isinstance(decide(observed, SETTINGS, now=NOW + SETTLE), StoreServing)
