"""A site: ``python -m tests.outbox.project.site ORDERS`` commits orders until there are so many, or until it is killed.

Each order and its job are one transaction. Every seventh is taken back after its job was scheduled.
"""

import sys

import django
from django.db import OperationalError, transaction


def main(orders: int) -> None:
    django.setup()
    from tests.outbox.project.models import Order
    from tests.outbox.project.tasks import confirm

    made = 0
    while made % 20 or Order.objects.count() < orders:
        made += 1
        try:
            with transaction.atomic():
                order = Order.objects.create()
                job = confirm.schedule(0, order.pk)
                order.job = job.id
                order.save()
                if made % 7 == 0:
                    transaction.set_rollback(True)
        except OperationalError as error:
            # SQLite has one writer at a time, and a killed one may leave its journal to be recovered.
            if "locked" not in str(error):
                raise


if __name__ == "__main__":
    main(int(sys.argv[1]))
