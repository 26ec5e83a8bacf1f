"""HTTPS for webhook, scheduler extender and page, by gunicorn's ``asgi`` worker.

gunicorn implements HTTP and supervises the process. Here are its settings, the certificate, bounds
for clients, Flask's routes on the event loop, and the adapter for the page's WSGI. The content of
requests is not handled here.
"""
