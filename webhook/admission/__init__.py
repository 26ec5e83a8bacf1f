"""Admission decisions: AdmissionReview in; allowed or denied, patch and warnings out.

Here belong the reading and writing of reviews, the validation of pods, bindings and
workloads, and the patches that stamp them. Everything is a pure function of a review, the
names and a stamp. The only exceptions raised are :class:`common.serving.errors.BadRequest` and
its subclasses.

Pods, templates and other objects are decoded JSON, possibly hostile, and are not changed. *names*
are the resources and annotations, *options* the operator's, and *path* is the prefix of the
object's fields in errors and warnings.

I/O is not allowed, nor are clocks, environment and randomness (they arrive as arguments).
The only library is ``jsonpatch``, in :mod:`webhook.admission.patches`.
"""
