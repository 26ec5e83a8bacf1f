"""HTTPS for webhook, scheduler extender and page: gunicorn, set up, and Flask behind it.

gunicorn speaks HTTP and keeps the processes; here are its settings, the certificate, bounds for
clients, and the adapter from ASGI to Flask. Nothing is decided here about what is asked.
"""
