"""Contexts to name in ``DELAYQ["CONTEXT"]``, and what one's own need to know of the job."""

from django_delayq.context.locale import Locale
from django_delayq.jobs.contexts import Scheduling, being_scheduled

__all__ = ["Locale", "Scheduling", "being_scheduled"]
