"""HTTPS for webhook, scheduler extender and page, by gunicorn's ``asgi`` worker.

gunicorn speaks HTTP and keeps the process; here are its settings, the certificate, bounds for
clients, Flask's routes on the event loop, and the way to the page's WSGI. Nothing is decided
here about what is asked.
"""
