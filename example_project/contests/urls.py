from django.urls import path

from . import views

urlpatterns = [
    path("", views.index, name="contests"),
    path("<int:pk>/", views.detail, name="contest"),
    path("<int:pk>/move/", views.move, name="contest-move"),
    path("<int:pk>/withdraw/", views.withdraw, name="contest-withdraw"),
]
