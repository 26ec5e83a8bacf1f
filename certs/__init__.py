"""The webhook's own certificates: made, kept, handed to the API server, renewed.

Here belong: what a certificate authority and a serving certificate must say
(:mod:`certs.issue`, pure but for the key generator of the cryptography library, and
:mod:`certs.reading`), the names they are for (:mod:`certs.names`), a directory they are kept

read at one moment (:mod:`certs.observing`), and the phases (:mod:`certs.rotation`).

I/O is in :mod:`certs.store`, :mod:`certs.cluster` (the API server) and :mod:`certs.replicas`
(the webhooks) only.

Banned: imports from the rest of the project but ``common``. It must run alone, in a pod of its own,
under an account that may touch two Secrets, the ``caBundle`` of its webhooks and nothing else.
"""
