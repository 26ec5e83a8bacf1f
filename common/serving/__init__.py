"""The server's side of TLS, as webhook and scheduler use it: certificates that renew themselves.

Reads certificate files; opens no socket.
"""
