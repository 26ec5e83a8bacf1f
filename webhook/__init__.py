"""The admission webhook: responds to the API server's AdmissionReviews.

============================  ====================================================
:mod:`webhook.admission`      decisions: pure, no I/O
:mod:`webhook.app`            routes; one review: decision, response, metrics and log line
:mod:`webhook.server`         the process, over :mod:`common.serving`
============================  ====================================================

I/O is allowed in :mod:`webhook.server` (files of the certificate) and :mod:`webhook.access_log`.

Banned: imports of ``agent``, ``certs`` and ``simulator``; reading or changing any part of
an object other than our annotations, the requested resources, and the fields that
:mod:`webhook.admission.defaults` fills in if the operator configures it.
"""
