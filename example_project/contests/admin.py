from django.contrib import admin

from .models import Contest


@admin.register(Contest)
class ContestAdmin(admin.ModelAdmin):
    list_display = ("title", "status", "publish_at", "published_at")
    list_filter = ("status",)
