import pytest

from simulator.api.cel import EvaluationError, InvalidExpression, compile_condition
from tests.simulator.api_helpers import CORE, pod

ASKS = (
    "(object.spec.containers + "
    "(has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, "
    "has(c.resources) && has(c.resources.limits) && "
    "c.resources.limits.exists(r, r.startsWith('tencent.com/vcuda-')))"
)


@pytest.mark.parametrize(
    ("obj", "answer"),
    [
        (pod(), False),
        (pod(limits={"cpu": "1"}), False),
        (pod(limits={CORE: "10"}), True),
        (pod(initContainers=[{"name": "i", "resources": {"limits": {CORE: "1"}}}]), True),
    ],
)
def test_a_condition_tells_gpu_pods_from_plain_ones(obj: dict[str, object], answer: bool) -> None:
    assert compile_condition(ASKS)({"object": obj}) is answer


def test_an_expression_that_does_not_parse_is_refused() -> None:
    with pytest.raises(InvalidExpression, match="compilation failed"):
        compile_condition("object.spec.(")


def test_a_missing_field_is_an_error_not_a_no() -> None:
    with pytest.raises(EvaluationError, match="resulted in error"):
        compile_condition("object.spec.nodeName == 'n'")({"object": {"spec": {}}})


def test_an_answer_that_is_no_bool_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="must evaluate to bool"):
        compile_condition("object.a")({"object": {"a": 1}})
