"""Admission, without any I/O."""

from random import Random

import pytest

from contract.demand import ContainerKind
from simulator.kubelet.admission import NodeView, admit, in_order
from simulator.kubelet.answers import Answer
from simulator.kubelet.devices import AllocateCall, Devices, Options, Step
from simulator.kubelet.errors import AdmissionFailure
from simulator.kubelet.numa import Device
from simulator.kubelet.pods import Container, Pod

R = "example.com/r"


def a_pod(uid: str = "u", created: str = "2026", **annotations: str) -> Pod:
    named = {f"simulator/{key.replace('_', '-')}": value for key, value in annotations.items()}
    containers = tuple(Container(name, ContainerKind.MAIN, {R: 1}) for name in "abc")
    return Pod(uid, "default", uid, created, containers, named)


def drive(pod: Pod, view: NodeView = NodeView()) -> tuple[list[Step], Devices]:  # noqa: B008 - frozen
    devices = Devices(random=Random(1))
    devices.connected(R, Options())
    devices.advertised(R, [Device(f"r{index}") for index in range(5)])
    steps = admit(pod, devices, lambda: {pod.uid}, lambda: view)
    seen: list[Step] = []
    try:
        seen.append(next(steps))
        while True:
            seen.append(steps.send(Answer()))
    except StopIteration:
        return seen, devices
    except AdmissionFailure as failure:
        failure.args = (*failure.args, seen)
        raise


def test_a_batch_is_sorted_by_creation_time_and_equal_ones_come_in_any_order() -> None:
    pods = [a_pod(f"u{index}", f"202{index // 5}") for index in range(10)]
    orders = {tuple(pod.uid for pod in in_order(pods, Random(seed))) for seed in range(30)}
    assert len(orders) > 10
    assert all({each[:5] for each in [order]} and set(order[:5]) == {f"u{i}" for i in range(5)}
               for order in orders)  # fmt: skip
    assert in_order(pods, Random(3)) == in_order(pods, Random(3))


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_another_plugin_can_fail_after_any_number_of_answers(answers: int) -> None:
    with pytest.raises(AdmissionFailure) as caught:
        drive(a_pod(fail_after=str(answers)))
    assert sum(isinstance(step, AllocateCall) for step in caught.value.args[1]) == answers
    assert caught.value.args[0].endswith("simulated failure of another device plugin")
