"""Admission decisions: AdmissionReview in; allowed or denied, patch and warnings out.

Here belong the reading and writing of reviews, the validation of pods, bindings and
workloads, and the patches that stamp them. Everything is a pure function of a review, the
names and a stamp. The only exceptions raised are :class:`common.serving.errors.BadRequest` and
its subclasses.

I/O is not allowed, nor are clocks, environment and randomness (they arrive as arguments).
The only library is ``jsonpatch``, in :mod:`webhook.admission.patches`.
"""
