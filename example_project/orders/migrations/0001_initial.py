from django.db import migrations, models

import orders.models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
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
                ("item", models.CharField(max_length=100)),
                (
                    "pay_by",
                    models.DateTimeField(
                        default=orders.models.payment_deadline, editable=False
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("new", "New"),
                            ("paid", "Paid"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="new",
                        editable=False,
                        max_length=10,
                    ),
                ),
                ("ended_at", models.DateTimeField(editable=False, null=True)),
                ("job_id", models.CharField(editable=False, max_length=100)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
