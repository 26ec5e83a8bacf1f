"""Admission: what the API server asks, answered.

Here belong: the reading of an AdmissionReview (:mod:`webhook.reviews`), the verdicts on
pods, bindings and workloads, the patches that carry them out, and the server around them.
Decisions are pure functions of a request, the names and a stamp; they do no I/O and raise
only for a request that is not one. A request comes in by :mod:`webhook.front` (bytes, TLS,
time), goes the short way (:mod:`webhook.express`) or the long one (gunicorn's parser and
:mod:`webhook.app`), and is answered by :mod:`webhook.reviewer`.

I/O is allowed in :mod:`webhook.front` (sockets), :mod:`webhook.server` (gunicorn),
:mod:`webhook.app` (Flask), :mod:`webhook.tls` (files of the certificate),
:mod:`webhook.metrics` (files the workers share) and :mod:`webhook.logs`, nowhere else.

Banned: imports of ``agent``, ``certs`` and ``simulator``; reading or changing anything of
an object beyond our own annotations and the resources asked for.
"""
