"""HTTPS for webhook, scheduler extender and page, by gunicorn's ``asgi`` worker.

gunicorn speaks HTTP and keeps the process; here are its settings, the certificate, bounds for
clients, the routes of webhook and extender, and the way to the page's Flask. Nothing is decided
here about what is asked.
"""
