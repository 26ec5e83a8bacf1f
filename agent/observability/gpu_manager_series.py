"""What is asked for and used, under the names of gpu-manager's gauges. Pure.

Names, labels and units are those of tkestack/gpu-manager, ``pkg/services/display/display.go``: a
card is ``gpu<index>``, all cards together are ``total``; use of cores is in hundredths of a card,
a request of them in cards, memory in MiB.
"""

from collections.abc import Iterator, Mapping

from agent.observability.series import Series
from agent.usage.holdings import Holder, Holdings
from agent.usage.join import Measured, Used

_LABELS = ("pod_name", "namespace", "node", "container_name")
_TOTAL = "total"
_MIB = 1 << 20
_WHOLE = 100


def gpu_manager_series(
    node: str,
    indices: Mapping[str, int],
    holdings: Holdings | None,
    measured: Measured | None,
) -> Iterator[Series]:
    """Make the four gauges; *indices* are those of the cards, by UUID."""
    cores: dict[tuple[str, ...], float] = {}
    memory: dict[tuple[str, ...], float] = {}
    asked_cores: dict[tuple[str, ...], float] = {}
    asked_memory: dict[tuple[str, ...], float] = {}
    use = measured.use if measured is not None else {}
    for each in holdings.holders if holdings is not None else ():
        of = _labels(each, node)
        shares = each.shares.values()
        asked_cores[*of, _TOTAL] = sum(share.cores for share in shares) / _WHOLE
        asked_memory[*of, _TOTAL] = sum(share.memory for share in shares) / _MIB
        for name, used in _by_card(use.get(each.ref, {}), indices):
            if used.cores is not None:
                cores[*of, name] = used.cores
            if used.memory is not None:
                memory[*of, name] = used.memory / _MIB
    for name, text, label, samples in (
        ("gpu_utilization", "gpu utilization", "gpu", cores),
        ("gpu_memory_total", "gpu memory usage in MiB", "gpu_memory", memory),
        ("request_gpu_utilization", "request of gpu utilization", "req_of_gpu", asked_cores),
        ("request_gpu_memory", "request of gpu memory in MiB", "req_of_gpu_memory", asked_memory),
    ):
        yield Series(f"container_{name}", text, (*_LABELS, label), samples)


def _labels(holder: Holder, node: str) -> tuple[str, ...]:
    return holder.ref.pod.name, holder.ref.pod.namespace, node, holder.ref.container


def _by_card(used: Mapping[str, Used], indices: Mapping[str, int]) -> Iterator[tuple[str, Used]]:
    """Return use by gpu-manager's names of cards, and the sum, if every card tells its part."""
    if not used:
        return
    for uuid, each in used.items():
        yield f"gpu{indices[uuid]}", each
    cores = [each.cores for each in used.values() if each.cores is not None]
    memory = [each.memory for each in used.values() if each.memory is not None]
    yield (
        _TOTAL,
        Used(
            sum(cores) if len(cores) == len(used) else None,
            sum(memory) if len(memory) == len(used) else None,
        ),
    )
