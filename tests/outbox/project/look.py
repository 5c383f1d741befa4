"""Says what is in the proof's database: ``counts``, or ``all`` keys, as JSON."""

import json
import sys

import django


def main(what: str) -> None:
    django.setup()
    from django_delayq.outbox.models import OutboxRow
    from tests.outbox.project.models import Effect, Order

    orders, effects = Order.objects.all(), Effect.objects.all()
    if what == "all":
        told = {
            "orders": list(orders.values_list("pk", flat=True)),
            "effects": list(effects.values_list("order", flat=True)),
        }
    else:
        told = {"orders": orders.count(), "effects": effects.count()}
    print(json.dumps({**told, "rows": OutboxRow.objects.count()}))


if __name__ == "__main__":
    main(sys.argv[1])
