"""A trade, the message about it, and the gateway that messages go through."""

from django.db import models


class Trade(models.Model):
    symbol = models.CharField(max_length=10)
    quantity = models.PositiveIntegerField()
    email = models.EmailField(default="trader@example.com")
    created_at = models.DateTimeField(auto_now_add=True)
    #: The job that sends the message.
    job_id = models.CharField(max_length=100, editable=False)
    message_sent_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.quantity} {self.symbol}"


class Gateway(models.Model):
    """The way out for messages; the site has a switch that breaks it, to show what jobs do then."""

    is_up = models.BooleanField(default=True)

    def __str__(self) -> str:
        return "up" if self.is_up else "down"

    @classmethod
    def get(cls) -> "Gateway":
        """Return the only gateway."""
        return cls.objects.get_or_create(pk=1)[0]
