"""The handler of every element that comes out of the queue ``delays``."""

import logging
import time
from typing import Any

from django_delayq import queue_handler

from .models import Delay

logger = logging.getLogger(__name__)


@queue_handler("delays")
def receive(element: dict[str, Any]) -> None:
    now_ms = time.time() * 1000
    delay, is_new = Delay.objects.get_or_create(
        element_id=element["id"],
        defaults={
            "data": element["data"],
            "asked_ms": element["asked_ms"],
            "actual_ms": now_ms - element["offered_at_ms"],
        },
    )
    if is_new:
        logger.info("%s", delay)
