"""The HTTPS server of webhook and scheduler: processes, TLS, connections, Flask's routes.

I/O is allowed here: sockets, signals, and the files of the certificate. Nothing is decided here
about what is asked; requests go to the programs.
"""
