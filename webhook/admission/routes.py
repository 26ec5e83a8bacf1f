"""The paths that reviews are sent to, and the function that decides the reviews of each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.bindings import mutate_binding
from webhook.admission.debugging import validate_ephemeral_containers
from webhook.admission.decision import Decision
from webhook.admission.options import DEFAULTS, AdmissionOptions
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import Review
from webhook.admission.workloads import validate_workload

Routes: TypeAlias = Mapping[str, Callable[[Review], Decision]]


def make_routes(
    *, names: Names, stamp: Callable[[], OrderStamp], options: AdmissionOptions = DEFAULTS
) -> Routes:
    """Return the function that decides reviews, by path.

    *stamp* returns the next order stamp, unique across processes.
    """
    mutate = partial(mutate_pod, names=names, stamp=stamp)
    return {
        # Of our own pods, in every namespace: other systems' names in them are left as they are.
        "/mutate/pods": partial(mutate, options=replace(options, accept=frozenset())),
        "/mutate/pods/dialects": partial(mutate, options=options),
        "/mutate/bindings": partial(mutate_binding, names=names, stamp=stamp),
        "/validate/workloads": partial(validate_workload, names=names, options=options),
        "/validate/ephemeralcontainers": partial(
            validate_ephemeral_containers, names=names, options=options
        ),
    }
