"""Checks of an installation, from facts that were read of the cluster. No I/O.

:mod:`view.model.doctor.facts` has the facts, :mod:`view.model.doctor.objects` makes them of raw
objects, and each other module has checks of one part: functions from facts to findings. A fact that
could not be read is :class:`facts.UnreadSource`. It is never taken for absent: its check is
*unknown*.
"""
