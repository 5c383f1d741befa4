from django.urls import path

from . import views

urlpatterns = [
    path("", views.index, name="orders"),
    path("<int:pk>/", views.detail, name="order"),
    path("<int:pk>/pay/", views.pay, name="order-pay"),
]
