"""The tables of the outbox and of the inbox."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from django_delayq.outbox.epoch import EpochMs


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="InboxRow",
            fields=[
                (
                    "job",
                    models.CharField(max_length=255, primary_key=True, serialize=False),
                ),
                (
                    "ran_ms",
                    models.BigIntegerField(db_default=EpochMs(), db_index=True),
                ),
            ],
            options={
                "verbose_name": "job that has run",
                "verbose_name_plural": "jobs that have run",
            },
        ),
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("queue", models.CharField(max_length=1024)),
                ("token", models.CharField(max_length=22)),
                ("start_time", models.CharField(max_length=20)),
                ("payload", models.BinaryField()),
                ("beside", models.BinaryField(default=b"")),
                (
                    "written_ms",
                    models.BigIntegerField(db_default=EpochMs()),
                ),
            ],
            options={
                "verbose_name": "job to be sent",
                "verbose_name_plural": "jobs to be sent",
            },
        ),
        migrations.CreateModel(
            name="RelayClaim",
            fields=[
                (
                    "name",
                    models.CharField(max_length=20, primary_key=True, serialize=False),
                ),
                ("owner", models.CharField(max_length=22)),
                ("until_ms", models.BigIntegerField()),
            ],
        ),
    ]
