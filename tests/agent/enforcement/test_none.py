from agent.allocator.model.answer import Answer
from agent.allocator.model.grant import Grant, Share
from agent.allocator.model.ledger import ContainerRef
from agent.allocator.model.ports import Enforcer
from agent.enforcement.none import NoEnforcement
from tests.agent.builders import CORE, MEMORY, ids, pod_id


def test_nothing_is_added_made_or_removed() -> None:
    enforcer: Enforcer = NoEnforcement()
    ref = ContainerRef(pod_id(), "c0")
    for resource in (CORE, MEMORY):
        grant = Grant(resource, (Share("GPU-0", 4),))
        assert enforcer.answer(ref, ids("GPU-0", range(4)), grant) == Answer()
    enforcer.start(ids("GPU-0", range(4)), None)
    enforcer.keep([])
