"""The webhook's own certificates: made, kept, handed to the API server.

Here belong: what a certificate authority and a serving certificate must say
(:mod:`certs.issue`, pure but for the key generator of the cryptography library),
the names they are for (:mod:`certs.names`, pure), and the places they are kept
(:mod:`certs.store`, the only I/O).

Banned: imports from the rest of the project. It must run alone, in a Job, under
an account that may touch one Secret and nothing else.
"""
