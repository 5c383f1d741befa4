"""Queues and jobs in Django's admin. Loaded by the admin's autodiscovery, so only where the admin is installed.

On an admin site of one's own: ``my_site.register(Job, JobAdmin)``, with `Job` of ``django_delayq.models``.
"""

from django.contrib import admin

from django_delayq.admin.job_admin import JobAdmin
from django_delayq.models import Job

__all__ = ["JobAdmin"]

admin.site.register(Job, JobAdmin)
