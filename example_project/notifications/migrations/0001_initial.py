from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Gateway",
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
                ("is_up", models.BooleanField(default=True)),
            ],
        ),
        migrations.CreateModel(
            name="Trade",
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
                ("symbol", models.CharField(max_length=10)),
                ("quantity", models.PositiveIntegerField()),
                (
                    "email",
                    models.EmailField(default="trader@example.com", max_length=254),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("job_id", models.CharField(editable=False, max_length=100)),
                ("message_sent_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
