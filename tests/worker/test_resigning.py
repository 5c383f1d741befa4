"""A key goes out of use while jobs run that others wait for: those behind them, those that follow, a batch's callback."""

from django.core.management import call_command

from django_delayq import Batch, schedule
from django_delayq.conf import get_settings
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import counts

OLD, NEW = "the key of before", "the key of today"


@every_server
def test_jobs_that_wait_for_others_run_with_the_new_key_alone(
    work, records, client, queue_name, settings, capsys
):
    def keys_are(*keys):
        settings.DELAYQ = {**settings.DELAYQ, "KEYS": list(keys)}

    def on(task, **options):
        return task.using(queue=queue_name, **options)

    keys_are(OLD)
    unique = on(tasks.hold_and_fail, unique=lambda: "k", on_duplicate="replace")
    holder = schedule(unique.using(max_attempts=1), 0)
    holds = on(tasks.hold)
    batch = Batch(on(tasks.note).prepare(0, "callback"))
    batch.schedule([holds.prepare(0), on(tasks.note).prepare(0, "of the batch")])
    before = holds.prepare(0)
    chain = on(tasks.note).prepare(0, "then").then(on(tasks.note).prepare(0, "last"))
    schedule(before.then(chain))
    dies = on(tasks.hold_and_fail, max_attempts=1).prepare(0)
    schedule(dies.on_dead(on(tasks.note).prepare(0, "on_dead")))
    work(threads=5)
    wait_until(lambda: records.count("start") == 4, description="all of them run")
    wait_until(lambda: records.count("run") == 1, description="one of the batch ends")
    behind = schedule(unique.using(max_attempts=1), 0)
    urgent = schedule(on(tasks.note, priority=10), 3_600, "urgent")
    keys = get_settings().queue(queue_name).keys
    wait_until(lambda: client.zcard(keys.returned) == 1, description="it is put back")

    keys_are(NEW, OLD)
    call_command("delayq_resign", queue_name)
    keys_are(NEW)
    records.let_go()
    assert urgent.run_now()

    wait_until(lambda: records.count("end") == 5, description="what was held has run")
    wait_until(lambda: records.count("run") == 6, description="what waited has run")
    wait_until(lambda: counts(queue_name).jobs == 0, description="nothing is left")
    left = counts(queue_name)
    assert (left.dead, left.quarantined) == (3, 0)
    assert "You can remove" in capsys.readouterr().out
    texts = [each["text"] for each in records.all("run")]
    assert sorted(texts) == sorted(
        ["of the batch", "callback", "then", "last", "on_dead", "urgent"]
    )
    assert texts.index("then") < texts.index("last")
    steps = [(each["step"], each["job"]) for each in records.all()]
    assert steps.index(("end", holder.id)) < steps.index(("start", behind.id))
