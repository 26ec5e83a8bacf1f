"""Issues, stores and renews the webhook's certificates, and writes the ``caBundle`` of webhooks.

Here belong: the certificates of authority and webhook, made by :mod:`certs.issue` (which also
writes them to a directory) and read by :mod:`certs.reading`; the names in them
(:mod:`certs.names`); Secrets and webhook configurations (:mod:`certs.objects`); the phases of a
rotation (:mod:`certs.rotation`), and the loop that takes them (:mod:`certs.loop`).

Only :mod:`certs.issue` (a directory), :mod:`certs.cluster` (the API server) and
:mod:`certs.replicas` (the webhooks) have I/O.

Banned: imports from the rest of the project except ``common``. It must run alone, in its own pod,
with an account that may write two Secrets, the ``caBundle`` of its webhooks and nothing else.
"""
