"""Bursts drawn from a seed."""

from bench.bursts import draw_burst
from contract.demand import parse_pod_demand
from contract.names import Names
from contract.stamps import OrderStamp

NAMES = Names()


def test_every_pod_can_be_served_and_carries_stamps_that_parse() -> None:
    for pod in draw_burst(40, seed=1):
        assert parse_pod_demand(pod["spec"], NAMES)
        OrderStamp.decode(pod["metadata"]["annotations"][NAMES.bind_order])


def test_the_kubelet_hears_of_pods_in_another_order_than_they_were_stamped() -> None:
    stamps = [pod["metadata"]["annotations"][NAMES.bind_order] for pod in draw_burst(80, seed=1)]
    assert stamps != sorted(stamps)
    places = [sorted(stamps).index(each) for each in stamps]
    assert all(abs(place - index) < 64 for index, place in enumerate(places))
