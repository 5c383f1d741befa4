from django.contrib import admin

from .models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("item", "status", "pay_by", "ended_at")
    list_filter = ("status",)
