"""Contexts for ``DELAYQ["CONTEXT"]``, and what your own contexts need to know about the job."""

from django_delayq.context.locale import Locale
from django_delayq.jobs.contexts import Scheduling, being_scheduled

__all__ = ["Locale", "Scheduling", "being_scheduled"]
