"""URLs of the test suite: the admin, and what machines read."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("delayq/", include("django_delayq.metrics.urls")),
]
