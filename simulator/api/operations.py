"""The verbs, with admission, on the store.

While a verb waits for a webhook, the object may change. Like the real server, the verb then
starts again, and refuses the request only if the caller based it on an older version.
"""

import copy
from collections.abc import Callable
from typing import TypeAlias

from simulator.api import errors
from simulator.api.admission import AdmissionChain
from simulator.api.patching import InvalidPatch
from simulator.api.resources import BUDGETS, NAMESPACES, NODES, PODS, Json, RequestTarget
from simulator.api.review import ReviewRequest
from simulator.api.selectors import labels_match, labels_of, parse_label_selector
from simulator.api.store import ObjectStore
from simulator.api.validation import check, decoded, prepared
from simulator.api.watching import with_kind

Edit: TypeAlias = Callable[[Json], Json]
"""Returns the new object, made from the stored one."""

_ATTEMPTS = 5
_DEFAULT_GRACE_S = 30
_SET_BY_SYSTEM = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "uid")


class Operations:
    """The verbs; each appends the webhooks' warnings for the user to *warnings*."""

    def __init__(self, store: ObjectStore, admission: AdmissionChain) -> None:
        self._store = store
        self._admission = admission

    async def create(
        self, target: RequestTarget, obj: Json, warnings: list[str], *, dry_run: bool = False
    ) -> Json:
        """Create an object in the collection that *target* names.

        Webhooks are called before a name is generated from ``generateName``, as by the real server.
        A dry run calls them too, and stores nothing.

        Raises:
            StatusError: the request is refused.
        """
        resource, namespace = target.resource, target.namespace
        obj = with_kind(resource, decoded(resource, _with_metadata(obj, namespace)))
        for each in (*_SET_BY_SYSTEM, "resourceVersion"):
            obj["metadata"].pop(each, None)
        if namespace and self._store.find(NAMESPACES, "", namespace) is None:
            raise errors.not_found(NAMESPACES, namespace)
        obj = prepared(resource, obj)
        named = RequestTarget(resource, namespace, str(obj["metadata"].get("name", "")))
        kind = (resource.api_version, resource.kind)
        request = ReviewRequest(named, "CREATE", kind, dry_run=dry_run)
        admitted = await self._admission.mutate(
            request,
            obj,
            warnings,
            normalize=lambda patched: prepared(resource, decoded(resource, patched)),
        )
        admitted = with_kind(
            resource, decoded(resource, _with_metadata(admitted or obj, namespace))
        )
        meta = admitted["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = self._store.new_name(meta["generateName"])
        if resource == NAMESPACES:
            label = {"kubernetes.io/metadata.name": meta.get("name", "")}
            meta["labels"] = (meta.get("labels") or {}) | label
            admitted.setdefault("status", {"phase": "Active"})
        check(resource, admitted)
        await self._admission.validate(request, admitted, warnings)
        return self._store.create(resource, admitted, dry_run=dry_run)

    async def edit(
        self, target: RequestTarget, edit: Edit, warnings: list[str], *, dry_run: bool = False
    ) -> Json:
        """Change an object or its status; a dry run stores nothing.

        Raises:
            StatusError: the request is refused, or the object does not exist.
        """
        resource = target.resource
        for _ in range(_ATTEMPTS):
            old = self._store.get(resource, target.namespace, target.name)
            try:
                new = _with_metadata(edit(old), target.namespace)
            except InvalidPatch as error:
                raise errors.StatusError(422, "Invalid", str(error)) from error
            self._check_preconditions(target, old, new["metadata"])
            new = decoded(resource, _restore_protected(target, old, new))
            kind = (resource.api_version, resource.kind)
            request = ReviewRequest(target, "UPDATE", kind, old, dry_run)
            admitted = await self._admission.mutate(request, new, warnings) or new
            admitted = decoded(resource, _restore_protected(target, old, admitted))
            check(resource, admitted)
            await self._admission.validate(request, admitted, warnings)
            if dry_run:
                return admitted
            if self._store.find(resource, target.namespace, target.name) is old:
                return self._store.update(resource, admitted, based_on=old)
        raise errors.modified(resource, target.name)

    async def delete(self, target: RequestTarget, options: Json, warnings: list[str]) -> Json:
        """Delete an object; a pod on a node only gets its ``deletionTimestamp``.

        Returns:
            The object as it is now.

        Raises:
            StatusError: the request is refused, or the object does not exist.
        """
        resource = target.resource
        for _ in range(_ATTEMPTS):
            old = self._store.get(resource, target.namespace, target.name)
            self._check_preconditions(target, old, options.get("preconditions") or {})
            request = ReviewRequest(target, "DELETE", (resource.api_version, resource.kind), old)
            await self._admission.mutate(request, None, warnings)
            await self._admission.validate(request, None, warnings)
            if self._store.find(resource, target.namespace, target.name) is not old:
                continue
            grace = _grace(target, old, options)
            if not grace:
                return self._store.delete(resource, target.namespace, target.name)
            metadata = old["metadata"]
            if grace >= metadata.get("deletionGracePeriodSeconds", grace + 1):
                return old  # it is already being deleted, and not later than this
            deletion = {
                "deletionTimestamp": self._store.timestamp_in(grace),
                "deletionGracePeriodSeconds": grace,
            }
            return self._store.update(
                resource, {**old, "metadata": metadata | deletion}, based_on=old
            )
        raise errors.modified(resource, target.name)

    async def bind(self, target: RequestTarget, binding: Json, warnings: list[str]) -> None:
        """Set a pod's node, and add the annotations and labels of the Binding (K13).

        Raises:
            StatusError: 409 if the pod has a node or is being deleted, or another refusal.
        """
        self._store.get(PODS, target.namespace, target.name)
        binding = with_kind(PODS, _with_metadata(binding, target.namespace))
        binding |= {"kind": "Binding", "apiVersion": "v1"}
        binding["metadata"].setdefault("name", target.name)
        if binding["metadata"]["name"] != target.name:
            raise errors.bad_request("name in URL does not match name in Binding object")
        request = ReviewRequest(target, "CREATE", ("v1", "Binding"))
        binding = await self._admission.mutate(request, binding, warnings) or binding
        await self._admission.validate(request, binding, warnings)
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise errors.StatusError(422, "Invalid", "target.name: Required value")
        pod = self._store.get(PODS, target.namespace, target.name)
        self._check_preconditions(target, pod, binding["metadata"])
        if pod["metadata"].get("deletionTimestamp"):
            reason = f"pod {target.name} is being deleted, cannot be assigned to a host"
            raise errors.conflict(PODS, target.name, reason)
        if pod["spec"].get("nodeName"):
            reason = f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"'
            raise errors.conflict(PODS, target.name, reason)
        bound = _bound(pod, binding, node, now=self._store.now())
        self._store.update(PODS, bound, based_on=pod)

    async def evict(self, target: RequestTarget, eviction: Json, warnings: list[str]) -> None:
        """Delete a pod, unless a PodDisruptionBudget does not allow it.

        Raises:
            StatusError: 429 by a budget, or another refusal.
        """
        pod = self._store.get(PODS, target.namespace, target.name)
        running = (pod.get("status") or {}).get("phase") == "Running"
        budgets = [
            each
            for each in self._store.list(BUDGETS, target.namespace)
            if running and _selects(each, pod) and "deletionTimestamp" not in pod["metadata"]
        ]
        if len(budgets) > 1:
            reason = "This pod has more than one PodDisruptionBudget"
            raise errors.StatusError(500, "InternalError", reason)
        options = eviction.get("deleteOptions") or {}
        self._check_preconditions(target, pod, options.get("preconditions") or {})
        for budget in budgets:
            status = budget.get("status") or {}
            allowed = status.get("disruptionsAllowed", 0)
            if allowed <= 0:
                reason = "Cannot evict pod as it would violate the pod's disruption budget."
                raise errors.StatusError(429, "TooManyRequests", reason)
            left = {**status, "disruptionsAllowed": allowed - 1}
            self._store.update(BUDGETS, {**budget, "status": left}, based_on=budget)
        await self.delete(RequestTarget(PODS, target.namespace, target.name), options, warnings)

    def _check_preconditions(self, target: RequestTarget, old: Json, wanted: Json) -> None:
        uid, version = wanted.get("uid"), wanted.get("resourceVersion")
        found = old["metadata"]
        if uid and uid != found["uid"]:
            raise errors.conflict(
                target.resource,
                target.name,
                f"Precondition failed: UID in precondition: {uid}, "
                f"UID in object meta: {found['uid']}",
            )
        if version and version != found["resourceVersion"]:
            raise errors.modified(target.resource, target.name)


def _selects(budget: Json, pod: Json) -> bool:
    selector = budget["spec"].get("selector")
    return selector is not None and labels_match(parse_label_selector(selector), labels_of(pod))


def _with_metadata(obj: Json, namespace: str) -> Json:
    """Copy *obj* with the request's namespace in its metadata; raise if that is malformed."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise errors.bad_request("metadata: must be an object")
    metadata = {key: value for key, value in metadata.items() if value is not None}
    for each in ("name", "namespace"):
        if not isinstance(metadata.get(each, ""), str):
            raise errors.bad_request(f"metadata.{each}: must be a string")
    if namespace and metadata.setdefault("namespace", namespace) != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return {**obj, "metadata": metadata}


def _restore_protected(target: RequestTarget, old: Json, new: Json) -> Json:
    """Undo the changes that an edit may not make.

    These are the system's metadata and, of pods and nodes, the status. An edit of the ``status``
    subresource may change only the status.
    """
    if new["metadata"].get("name", target.name) != target.name:
        raise errors.bad_request(
            "the name of the object does not match the name on the URL "
            f"({new['metadata']['name']} and {target.name})"
        )
    metadata = {k: v for k, v in new["metadata"].items() if k not in _SET_BY_SYSTEM}
    metadata |= {k: v for k, v in old["metadata"].items() if k in _SET_BY_SYSTEM}
    kept = with_kind(target.resource, {**new, "metadata": metadata})
    if target.subresource == "status":
        return {**old, "metadata": metadata, "status": new.get("status")}
    if target.resource in (PODS, NODES):
        kept["status"] = old.get("status")
    return kept


def _grace(target: RequestTarget, old: Json, options: Json) -> int:
    """Return the grace period in seconds; 0 for everything but unfinished pods on a node."""
    if target.resource != PODS or not old["spec"].get("nodeName"):
        return 0
    if (old.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = options.get("gracePeriodSeconds")
    if grace is None:
        grace = old["spec"].get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE_S if grace is None else max(int(grace), 0)


def _bound(pod: Json, binding: Json, node: str, *, now: str) -> Json:
    bound = copy.deepcopy(pod)
    bound["spec"]["nodeName"] = node
    for field_name in ("annotations", "labels"):
        added = binding["metadata"].get(field_name)
        if added:
            bound["metadata"][field_name] = (bound["metadata"].get(field_name) or {}) | added
    conditions = [
        each
        for each in (bound["status"].get("conditions") or ())
        if each.get("type") != "PodScheduled"
    ]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    bound["status"]["conditions"] = [*conditions, scheduled]
    return bound
