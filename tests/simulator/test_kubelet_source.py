"""Where pods come from."""

import threading

from simulator.kubelet.pods import Pod, parse_pod
from simulator.kubelet.source import Change, Op, PodSource, PodStore
from tests.simulator.kubelet_helpers import FakeApi, container, pod, wait_for


def a(uid: str, name: str = "", phase: str = "Pending") -> Pod:
    return Pod(uid, "default", name or uid, "", (), phase=phase)


def test_the_first_list_gives_one_batch_even_an_empty_one() -> None:
    assert list(PodStore().replace([])) == [Change(Op.ADD, ())]
    assert list(PodStore().replace([a("1"), a("2")])) == [Change(Op.ADD, (a("1"), a("2")))]


def test_a_later_list_tells_what_is_gone_new_and_changed() -> None:
    store = PodStore()
    list(store.replace([a("1"), a("2")]))
    assert list(store.replace([a("2", phase="Running"), a("3")])) == [
        Change(Op.REMOVE, (a("1"),)),
        Change(Op.ADD, (a("3"),)),
        Change(Op.UPDATE, (a("2", phase="Running"),)),
    ]


def test_a_namesake_with_another_uid_removes_the_one_before() -> None:
    store = PodStore()
    list(store.put(a("1", "p")))
    assert list(store.put(a("2", "p"))) == [
        Change(Op.REMOVE, (a("1", "p"),)),
        Change(Op.ADD, (a("2", "p"),)),
    ]
    assert list(store.drop(a("1", "p"))) == []


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
