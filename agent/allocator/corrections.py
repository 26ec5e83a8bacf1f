"""What the checkpoint and ``List`` say of our last answers (R6). Pure.

Only guesses are corrected: what was known does not turn out wrong, and the entry of an ended pod
may show the same places (K29) or come back (K33).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from agent.allocator.in_service import Answered, InService
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef, Correction
from agent.allocator.model.podresources import ListedContainer, ListedPod
from agent.allocator.pods import Pods, kubelet_uid
from agent.allocator.record import Offered, Record
from agent.allocator.recorded_pod import RecordedPod
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import count_of
from placement.pods import PodId, PodInfo


def by_checkpoint(
    service: InService,
    before: Checkpoint,
    now: Checkpoint,
    *,
    may_be_new: Callable[[str], bool],
    pods: Pods,
) -> tuple[InService, list[Correction]]:
    """Return the pod in service without the guesses that the file shows with other containers.

    Args:
        service: the pod in service.
        before: the file as it was read before.
        now: the file.
        may_be_new: whether a pod, by its UID, may be what is new in the file.
        pods: what the API shows of pods.
    """
    found: list[Correction] = []
    result = service
    for each in service.answers:
        owners = now.owners(each.resource, each.ids)
        if not _is_guess(each) or (service.uid, each.container) in owners:
            continue  # another container may hold the same (K7)
        old = before.owners(each.resource, each.ids)
        for owner in owners:
            view = pods.by_uid(owner.pod_uid)
            if owner.pod_uid == service.uid and _is_init(view, owner.container):
                continue  # handed on by it (K7)
            nameless = not service.uid and view is not None and view.id.key == service.pod.key
            if nameless and owner.container == each.container:
                continue  # its UID was not known
            if owner not in old and may_be_new(owner.pod_uid):
                pod = view.id if view is not None else PodId("", "", owner.pod_uid)
                found.append(_correction(service, each, ContainerRef(pod, owner.container)))
                result = result.without(each)
    return result, found


def by_list(service: InService, record: Record) -> tuple[InService, list[Correction]]:
    """Return the pod in service after what ``List`` shows: a guess that it shows is none any more.

    What its own entry does not show of a listed container was a wrong guess; what was none has been
    freed, and all else with it. What another pod's entry shows was a wrong guess.
    """
    found: list[Correction] = []
    result = service
    for each in service.answers:
        if not each.allocated:
            continue
        for pod, one in _listed(record.listed_unsettled):
            has = one.held.get(each.resource) == each.ids
            if service.is_pod(pod.id, pod.uid) and one.name == each.container:
                if not has and not _is_guess(each):
                    return replace(service, answers=()), found
                result = result.proven(each) if has else result.without(each)
        for pod, one in _listed(record.pods) if _is_guess(each) else ():
            has = one.held.get(each.resource) == each.ids
            if has and not service.is_pod(pod.id, pod.uid):
                result = result.without(each)
                found.append(_correction(service, each, ContainerRef(pod.id, one.name)))
    return result, found


def _listed(pods: Iterable[RecordedPod]) -> Iterator[tuple[RecordedPod, ListedContainer]]:
    """Walk the containers that ``List`` shows."""
    for pod in pods:
        if pod.listed is not None:
            for one in pod.listed.containers:
                yield pod, one


def by_offer(
    service: InService, offered: Offered, written: Checkpoint, record: Record
) -> InService:
    """Return the pod in service without the guesses whose places the kubelet offers again.

    They were given to another container, which has been refused since. What the file or ``List``
    shows is held although it is offered (K15).
    """
    for each in service.answers:
        if (
            _is_guess(each)
            and each.ids <= offered.get(each.resource, frozenset())
            and not written.owners(each.resource, each.ids)
            and not any(one.held.get(each.resource) == each.ids for _, one in _listed(record.pods))
        ):
            service = service.without(each)
    return service


def without_guesses(service: InService) -> InService:
    """Return the pod in service without its guesses: with them no container can be asking."""
    for each in service.answers:
        if _is_guess(each):
            service = service.without(each)
    return service


def _is_init(view: PodInfo | None, container: str) -> bool:
    asked = view.demand.of(container) if view is not None else None
    return asked is not None and asked.kind is ContainerKind.INIT


def _is_guess(answer: Answered) -> bool:
    return answer.allocated and answer.evidence is Evidence.ORDER


def _correction(service: InService, answer: Answered, right: ContainerRef) -> Correction:
    wrong = ContainerRef(service.pod, answer.container)
    return Correction(answer.resource, answer.ids, wrong, right)


def identified(
    service: InService,
    before: Checkpoint,
    now: Checkpoint,
    *,
    entries: Iterable[ListedPod],
    pods: Pods,
) -> InService:
    """Return the pod in service with its UID, once the file or the API tells that.

    Args:
        service: the pod in service.
        before: the file as it was read before.
        now: the file.
        entries: what ``List`` shows.
        pods: what the API shows of pods.
    """
    if not service.uid:
        by_file = _as_written(service, before, now, pods)
        return by_file or _as_the_api_shows(service, now, entries, pods) or service
    view = pods.by_uid(service.uid)  # of a static pod its mirror may have come
    if view is None or view.id == service.pod:
        return service
    return replace(service, pod=view.id)


def _as_written(
    service: InService, before: Checkpoint, now: Checkpoint, pods: Pods
) -> InService | None:
    """Return it as the pod with which the file newly shows an answer; ``None`` without one."""
    for each in service.answers:
        old = before.owners(each.resource, each.ids)
        for owner in now.owners(each.resource, each.ids):
            new = owner.container == each.container and owner not in old
            view = pods.by_uid(owner.pod_uid)
            if new and (view is None or view.id.key == service.pod.key):
                pod = view.id if view is not None else PodId(*service.pod.key, owner.pod_uid)
                return replace(service, pod=pod, uid=owner.pod_uid)
    return None


def _as_the_api_shows(
    service: InService, now: Checkpoint, entries: Iterable[ListedPod], pods: Pods
) -> InService | None:
    """Return it as the only pod that it can be by what that asks for; ``None`` without one."""
    mine = [entry for entry in entries if entry.key == service.pod.key]
    views = [
        each
        for each in pods.of_name(service.pod.key)
        if not each.terminal
        and pods.is_shown(kubelet_uid(each))
        and any(entry.may_be(each) for entry in mine)
    ]
    if len(views) != 1 or not service.answers:
        return None
    (view,) = views
    uid = kubelet_uid(view)
    answers: list[Answered] = []
    for each in service.answers:  # which container it was is known only now
        lacking = (
            one.name
            for one in view.demand.containers
            if now.pods.get(uid, {}).get(one.name, {}).get(each.resource) in {None, each.ids}
            and count_of(one.demand, each.resource) == len(each.ids)
            and all((one.name, each.resource) != (it.container, it.resource) for it in answers)
        )
        name = next(lacking, None)
        if name is None:
            return None  # another of its name, which asks for other counts
        answers.append(replace(each, container=name))
    return replace(service, pod=view.id, uid=uid, answers=tuple(answers))
