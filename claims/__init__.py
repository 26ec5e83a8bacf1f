"""The claims program: makes the ResourceClaimTemplates that pods name, and sweeps unused ones.

A template is worked out of its pod's own limits (:mod:`contract.claims`), and made only if its name
is the hash of that. Several replicas need no lease: a template that is there already is no error.
"""
