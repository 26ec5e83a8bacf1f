"""The stamps of a pod that is being bound: time, node and its order among pods bound there.

The API server copies the annotations of a Binding onto the pod, so the scheduler need not be
replaced or configured to learn node and order. A Binding does not contain the requests of its
pod: every bound pod is stamped.

Bindings are never denied. A Binding that cannot be stamped is allowed with a warning, and the
webhook configuration has ``failurePolicy: Ignore``: without these stamps the agent uses
those of the creation, but without Bindings no pod of the cluster would run.
"""

from collections.abc import Callable, Mapping
from typing import Any

from contract.errors import quote
from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.annotations import changes_at_bind
from webhook.admission.decision import Decision, bounded
from webhook.admission.patches import patch_annotations
from webhook.admission.reviews import Review, allow_unchecked


def mutate_binding(review: Review, *, names: Names, stamp: Callable[[], OrderStamp]) -> Decision:
    """Decide a review sent to ``/mutate/bindings``.

    Schedulers create ``pods/binding``; ``bindings`` is an older path of the same object.
    """
    is_binding = review.target.parts in _BINDINGS and review.target.kind in ("", "Binding")
    if review.operation != "CREATE" or not is_binding or review.object is None:
        return allow_unchecked(review, "gpu-turnstile stamps only CREATE of v1/pods/binding here")
    return stamp_binding(review.object, names=names, stamp=stamp)


def stamp_binding(
    binding: Mapping[str, Any], *, names: Names, stamp: Callable[[], OrderStamp]
) -> Decision:
    """Stamp a Binding; stamps that it already has are overwritten.

    *stamp* is called once if the Binding is stamped.
    """
    target = binding.get("target")
    node = target.get("name") if isinstance(target, Mapping) else None
    if not isinstance(target, Mapping) or not isinstance(node, str) or not node:
        return _allow(f"target.name: {quote(node)} is not a node name: bound without stamps")
    if target.get("kind") not in (None, "", "Node"):
        return _allow(f"target.kind: {quote(target['kind'])} is not Node: bound without stamps")
    metadata = binding.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for path, value in (("metadata", metadata), ("metadata.annotations", annotations)):
        if value is not None and not isinstance(value, Mapping):
            return _allow(f"{path}: {quote(value)} is not a mapping: bound without stamps")
    order_stamp = stamp()
    return Decision(patch=patch_annotations(metadata, changes_at_bind(names, order_stamp, node)))


def _allow(warning: str) -> Decision:
    return Decision(warnings=bounded([warning]))


_BINDINGS = {
    ("", "v1", "pods", "binding"),
    ("", "v1", "bindings", ""),
    ("", "v1", "Binding", "binding"),
    ("", "v1", "Binding", ""),
}
