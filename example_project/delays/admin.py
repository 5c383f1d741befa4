from django.contrib import admin

from .models import Delay


@admin.register(Delay)
class DelayAdmin(admin.ModelAdmin):
    list_display = ("data", "asked_ms", "actual_ms", "received_at")
