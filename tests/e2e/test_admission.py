"""Admission on a real API server: what is allowed, denied and stamped, with its messages."""

import pytest

from contract.requests import read_pod_demand
from contract.stamps import OrderStamp, decode_time
from tests.e2e.cluster import ApiError
from tests.e2e.ground import phase, wait
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_share_sees_its_card_and_nothing_else(stage: Stage) -> None:
    pods = stage.run(stage.make.single("single", 30, 8))
    (seen,) = stage.audit("one share", pods)
    assert seen.visible == (stage.cards[0],)


def test_a_pod_is_stamped_with_its_admission_rank(admitting: Stage) -> None:
    names = admitting.names
    pods = admitting.run(*(admitting.make.single(f"p{number}", 5, 4) for number in range(20)))
    notes = [each["metadata"]["annotations"] for each in pods.values()]
    stamps = [OrderStamp.decode(each[names.admission_order]) for each in notes]
    assert len(set(stamps)) == 20
    bound = [OrderStamp.decode(each[names.bind_order]) for each in notes]
    assert len(set(bound)) == 20
    assert all(late > early for early, late in zip(stamps, bound, strict=True))
    # Stamped at create, and again when it was bound.
    assert [stamp.time_ns for stamp in bound] == [
        decode_time(each[names.predicate_time]) for each in notes
    ]
    assert {each[names.predicate_node] for each in notes} == {
        each["spec"]["nodeName"] for each in pods.values()
    }
    assert {each[names.gpu_assigned] for each in notes} == {"true"}
    assert {each[names.predicate_gpu_idx(0)] for each in notes} == {"0"}


@pytest.mark.parametrize(
    ("cores", "memory"),
    [(150, 4), (10, None), (None, 4)],
    ids=["a card and a half", "a share without memory", "memory without cores"],
)
def test_an_impossible_request_is_denied_with_a_reason(
    admitting: Stage, cores: int | None, memory: int | None
) -> None:
    pod = admitting.make.single("refused", cores, memory)
    with pytest.raises(ApiError) as raised:
        admitting.cluster.create(pod)
    _, errors = read_pod_demand(pod, admitting.names)
    assert raised.value.code == 422
    assert raised.value.status["reason"] == "Invalid"
    assert raised.value.status["message"] == (
        'admission webhook "pods.gpu-turnstile.io" denied the request: '
        + "; ".join(str(error) for error in errors)
    )
    causes = raised.value.status["details"]["causes"]
    assert [(each["field"], each["message"]) for each in causes] == [
        (error.path, str(error).removeprefix(f"{error.path}: ")) for error in errors
    ]
    assert errors


def test_plain_pods_pass_while_the_webhook_is_down_and_gpu_pods_do_not(admitting: Stage) -> None:
    admitting.webhook.stop()
    admitting.cluster.create(admitting.make.plain("plain"))
    with pytest.raises(ApiError, match=r'failed calling webhook "pods\.gpu-turnstile\.io"'):
        admitting.cluster.create(admitting.make.single("gpu", 10, 4))
    wait("the plain pod runs", lambda: phase(admitting.cluster.pods()["plain"]) == "Running")
    admitting.webhook.start()
    admitting.audit("after the webhook is back", admitting.run(admitting.make.single("gpu", 10, 4)))
