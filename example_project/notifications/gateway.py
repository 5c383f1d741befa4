"""Send a message, or say that it cannot be sent."""

from django.core.mail import send_mail

from .models import Gateway

#: No mailbox has such an address: RFC 2606 keeps this domain free.
NOBODY = ".invalid"


class GatewayDown(Exception):
    """Raised when the gateway accepts no messages."""


class AddressUnknown(Exception):
    """Raised when no mailbox has the address."""


def send(email: str, text: str) -> None:
    """Send one message.

    Raises:
        GatewayDown: somebody switched it off.
        AddressUnknown: nobody has this address.
    """
    if not Gateway.get().is_up:
        raise GatewayDown("the message gateway is down")
    if email.endswith(NOBODY):
        raise AddressUnknown(f"no mailbox has the address {email}")
    send_mail("Your trade", text, None, [email])
