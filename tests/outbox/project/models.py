"""What the proof counts: orders that a site has committed, and what their jobs did. No constraint hides a second effect."""

from django.db import models


class Order(models.Model):
    """One order; its job is scheduled in the same transaction."""

    job = models.CharField(max_length=255, default="")

    class Meta:
        app_label = "project"

    def __str__(self) -> str:
        return str(self.pk)


class Effect(models.Model):
    """What the job of an order did."""

    order = models.BigIntegerField()

    class Meta:
        app_label = "project"

    def __str__(self) -> str:
        return str(self.order)
