"""The page: a read-only web server over the model, for people who watch the cluster.

Flask is known to :mod:`view.web.app` alone, gunicorn to :mod:`view.web.server`. Whatever a pod's
author has written reaches a browser as text: templates escape everything, and the script of the
page has no way to turn text into markup (Trusted Types).
"""
