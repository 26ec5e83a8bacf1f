"""The page: a read-only web server that shows the model.

Only :mod:`view.web.app` imports Flask, and only :mod:`view.web.server` gunicorn. Texts of pods and
nodes reach the browser as text: templates escape everything, and the script of the page cannot
turn text into markup (Trusted Types).
"""
