"""Send a message, or say that it cannot be sent."""

from django.core.mail import send_mail

from .models import Gateway


class GatewayDown(Exception):
    """Raised when the gateway accepts no messages."""


def send(email: str, text: str) -> None:
    """Send one message.

    Raises:
        GatewayDown: somebody switched it off.
    """
    if not Gateway.get().is_up:
        raise GatewayDown("the message gateway is down")
    send_mail("Your trade", text, None, [email])
