"""Every page of the example project."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import TemplateView

urlpatterns = [
    path("", TemplateView.as_view(template_name="example/index.html"), name="index"),
    path("contests/", include("contests.urls")),
    path("orders/", include("orders.urls")),
    path("trades/", include("notifications.urls")),
    path("delays/", include("delays.urls")),
    path("admin/", admin.site.urls),
]
