from django.urls import path

from . import views

urlpatterns = [
    path("", views.index, name="trades"),
    path("gateway/", views.switch_gateway, name="gateway"),
    path("<int:pk>/", views.detail, name="trade"),
    path("<int:pk>/send/", views.send_now, name="trade-send"),
]
