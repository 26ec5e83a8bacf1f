"""What may be wrong with an installation, decided of what could be read of the cluster. No I/O.

:mod:`view.model.doctor.facts` is what was read; each of the other modules has checks of one part,
functions from facts to findings. What could not be read is :class:`facts.Unread`, and never taken
for absent: its check is *unknown*.
"""
