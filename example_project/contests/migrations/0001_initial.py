from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Contest",
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
                ("title", models.CharField(max_length=100)),
                ("publish_at", models.DateTimeField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("scheduled", "Scheduled"),
                            ("published", "Published"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        default="scheduled",
                        editable=False,
                        max_length=10,
                    ),
                ),
                ("published_at", models.DateTimeField(editable=False, null=True)),
                ("job_id", models.CharField(editable=False, max_length=100)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
