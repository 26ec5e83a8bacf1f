"""Admission decisions: AdmissionReview in, verdict, patch and warnings out.

Here belong the reading and writing of reviews, the validation of pods, bindings and
workloads, and the patches that stamp them. Everything is a pure function of a review, the
names and a stamp; the only exceptions are :class:`common.serving.errors.BadRequest` and below.

I/O is not allowed, nor are clocks, environment and randomness (they arrive as arguments).
The only library is ``jsonpatch``, in :mod:`webhook.admission.patches`.
"""
