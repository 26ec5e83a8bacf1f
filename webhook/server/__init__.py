"""The HTTPS server: gunicorn's processes, TLS, connections, and Flask's routes.

I/O is allowed here: sockets, signals, and the files of the certificate. Decisions about
reviews are not made here; requests go to :mod:`webhook.handler`.
"""
