"""Admission: what the API server asks, answered.

Here belong: the reading of an AdmissionReview (:mod:`webhook.reviews`), the
verdicts (:mod:`webhook.pods`), the patches that carry them out, and the server
around them. Decisions are pure functions of a request, the names and a stamp; they
do no I/O and raise only for a request that is not one.

I/O is allowed in :mod:`webhook.app` (Flask), :mod:`webhook.server` (gunicorn),
:mod:`webhook.tls` (files of the certificate) and :mod:`webhook.logs`, nowhere else.

Banned: imports of ``agent``, ``certs`` and ``simulator``; reading or changing
anything of an object beyond our own annotations and the resources asked for.
"""
