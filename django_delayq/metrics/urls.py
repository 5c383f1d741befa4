"""What a project includes: ``path("delayq/", include("django_delayq.metrics.urls"))``."""

from django.urls import path

from django_delayq.metrics import views

app_name = "delayq_metrics"
urlpatterns = [
    path("metrics", views.metrics, name="metrics"),
    path("overview.json", views.overview, name="overview"),
]
