"""Every page of the example project."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from . import views

urlpatterns = [
    path("", views.home, name="index"),
    path("contests/", include("contests.urls")),
    path("orders/", include("orders.urls")),
    path("trades/", include("notifications.urls")),
    path("delays/", include("delays.urls")),
    path("lateness/", include("lateness.urls")),
    path("admin/", admin.site.urls),
    # Django's admin names no icon, and a browser asks for this one then.
    path("favicon.ico", RedirectView.as_view(url=static("example/icon.svg"))),
]
