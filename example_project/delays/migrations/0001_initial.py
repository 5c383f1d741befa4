from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Delay",
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
                ("element_id", models.UUIDField(unique=True)),
                ("data", models.CharField(max_length=200)),
                ("asked_ms", models.PositiveBigIntegerField()),
                ("actual_ms", models.FloatField()),
                ("received_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
