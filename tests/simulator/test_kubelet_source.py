"""Where pods come from."""

import threading

from simulator.kubelet.pods import parse_pod
from simulator.kubelet.source import Change, Op, PodSource
from tests.simulator.kubelet_helpers import FakeApi, container, pod, wait_for


def test_list_watch_break_expire_and_outage() -> None:
    api, stop = FakeApi(), threading.Event()
    changes: list[Change] = []
    first = api.put(pod("a", container("c")))
    source = PodSource(api, "n1", changes.append, stop)
    thread = threading.Thread(target=source.run)
    thread.start()
    try:
        wait_for(lambda: api.watches == 1)
        assert changes == [Change(Op.ADD, (parse_pod(first),))]
        second = api.put(pod("b", container("c")))
        wait_for(lambda: Change(Op.ADD, (parse_pod(second),)) in changes)
        api.break_watches(expired=True)
        wait_for(lambda: api.watches >= 3, what="list again after 410")
        api.down = True
        api.break_watches()
        third = api.put(pod("c", container("c")))
        api.force_delete("default/a")
        api.down = False
        wait_for(lambda: any(c.op is Op.ADD and c.pods == (parse_pod(third),) for c in changes))
        api.put({"metadata": {"name": "broken"}, "spec": {}})
        api.put(pod("d", container("c")))
        wait_for(lambda: any(each.name == "d" for c in changes for each in c.pods))
    finally:
        stop.set()
        thread.join(5)
    assert not thread.is_alive()
