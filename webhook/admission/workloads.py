"""The decision about a workload: its pod template must follow the rules for pods.

Without this check a Deployment that can never run is accepted, and the reason appears only in an
Event of one of its ReplicaSets.
"""

from collections.abc import Mapping
from typing import Any

from contract.demand import PodDemand
from contract.errors import FieldError
from contract.names import Names
from contract.requests import annotations_of
from contract.spelling import advise_places, advise_wishes
from contract.workloads import WORKLOADS, template_of
from webhook.admission.annotations import about_supplied
from webhook.admission.claims import Claims, about_claims, drop_claims
from webhook.admission.decision import Decision, bounded
from webhook.admission.defaults import adjust_memory
from webhook.admission.dialects.translation import translate
from webhook.admission.options import DEFAULTS, AdmissionOptions
from webhook.admission.reviews import Review, allow_unchecked
from webhook.admission.validation import ReadPod, read_pod
from webhook.admission.warnings import about_environment, about_memory, about_runtime_class, advise

_TEMPLATES = {
    (each.group, "v1", name): each.template
    for kind, each in WORKLOADS.items()
    for name in (each.resource, kind)
}
"""The path to the template, by plural and by kind: a request may lack one of them."""


def validate_workload(
    review: Review, *, names: Names, options: AdmissionOptions = DEFAULTS
) -> Decision:
    """Decide a review sent to ``/validate/workloads``.

    Anything but CREATE or UPDATE of a workload means that the webhook configuration sends too much:
    it is allowed, with a warning about that.
    """
    group, version, name, subresource = review.target.parts
    steps = None if subresource else _TEMPLATES.get((group, version, name))
    if steps is None or review.operation not in ("CREATE", "UPDATE") or review.object is None:
        return allow_unchecked(review, "gpu-turnstile checks only objects with a pod template here")
    return decide_workload(review.object, review.old_object, steps, names=names, options=options)


def decide_workload(
    new: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    steps: tuple[str, ...],
    *,
    names: Names,
    options: AdmissionOptions = DEFAULTS,
) -> Decision:
    """Decide about a workload.

    An update is denied only for new errors. Errors that the old workload has too, from before the
    webhook was installed, must not block scaling to zero or a controller's status.

    *old* is ``None`` if the workload is created; *steps* is the path to the template.
    """
    path = "".join(f"{each}." for each in steps)
    template = template_of(new, steps)
    translated = translate(template, names=names, options=options, path=path)
    adjusted = adjust_memory(translated.pod, names=names, options=options)
    found = _read(adjusted.pod, translated.errors, names, path, options)
    claimed = options.claims is Claims.ON
    _, dropped = drop_claims(template) if claimed else ((), ())
    if found is None:
        return Decision(warnings=bounded(dropped))
    demand, errors, read_warnings = found
    read_warnings = (*translated.warnings, *read_warnings)
    if set(errors) - set(_errors(old, steps, names, path, options)):
        return Decision(errors=errors, warnings=bounded(read_warnings))
    warnings = (*(f"its pods are denied, as before: {each}" for each in errors), *read_warnings)
    if not demand:
        return Decision(warnings=bounded((*warnings, *dropped)))
    given = annotations_of(template)
    return Decision(
        warnings=bounded(
            (
                *warnings,
                *adjusted.warnings,
                *about_memory(demand, options.largest_card, in_blocks=not translated.changes),
                *advise(demand, annotations_of(adjusted.pod), names=names, path=path),
                *about_environment(template.get("spec"), demand),
                *about_runtime_class(template["spec"], options.runtime_class),
                *(about_claims(template["spec"], demand) if claimed else ()),
                *advise_wishes(adjusted.pod, names, path=path),
                *advise_places(new, names, steps=steps),
                *about_supplied(given, names, path=path),
            )
        )
    )


def _errors(
    old: Mapping[str, Any] | None,
    steps: tuple[str, ...],
    names: Names,
    path: str,
    options: AdmissionOptions,
) -> tuple[FieldError, ...]:
    translated = translate(template_of(old, steps), names=names, options=options, path=path)
    found = _read(translated.pod, translated.errors, names, path, options)
    return () if found is None else found.errors


def _read(
    template: Mapping[str, Any],
    errors: tuple[FieldError, ...],
    names: Names,
    path: str,
    options: AdmissionOptions,
) -> ReadPod | None:
    """Read a translated template; one with *errors* is still in another system's names."""
    if errors:
        return ReadPod(PodDemand(), errors)
    return read_pod(
        template, names, path=path, privileged=options.privileged, claims=options.claims
    )
