"""Every page of the example project."""

from django.contrib import admin
from django.urls import include, path

from . import views

urlpatterns = [
    path("", views.home, name="index"),
    path("contests/", include("contests.urls")),
    path("orders/", include("orders.urls")),
    path("trades/", include("notifications.urls")),
    path("delays/", include("delays.urls")),
    path("lateness/", include("lateness.urls")),
    path("admin/", admin.site.urls),
]
