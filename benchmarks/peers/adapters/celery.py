"""Celery on its Redis broker: jobs with ``eta=``, no result backend."""

from datetime import UTC, datetime

from celery import Celery

from benchmarks.peers.adapters.adapter import (
    IS_TUNED,
    URL,
    About,
    Adapter,
    run,
    tool,
    versions,
)

app = Celery("peers", broker=URL)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    task_default_queue="q0",
    worker_hijack_root_logger=False,
)
if IS_TUNED:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        # With the default throttle the sweep comes every 100 s.
        broker_transport_options={
            "visibility_timeout": 15,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
        },
    )


@app.task(name="job")
def job(payload):
    run(payload)


class CeleryAdapter(Adapter):
    about = About(
        documentation=(
            "https://docs.celeryq.dev/en/stable/userguide/calling.html#eta-and-countdown",
            "https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html",
        ),
        layouts={
            "1": "prefork -c 1 (a parent and a child), prefetch multiplier 4 (default)",
            "2": "prefork -c 2 (the default on two cores), prefetch multiplier 4",
            "1t": "prefork -c 1, prefetch multiplier 128, --without-gossip, -mingle and -heartbeat",
            "2t": "prefork -c 2, prefetch multiplier 128, --without-gossip, -mingle and -heartbeat",
        },
        crash={
            "default": "acknowledged before it runs (default), visibility_timeout 3,600 s (default)",
            "tuned": "acks_late and reject_on_worker_lost, visibility_timeout 15 s, swept every 5 s",
        },
        redelivered_s={"default": None, "tuned": 20},
        redelivery=(
            "none by default (acks early); with acks_late after visibility_timeout, an hour"
        ),
        notes=(
            "no bulk call; a worker takes every ETA message out of Redis into its memory"
        ),
    )

    def version(self):
        return versions("celery", "kombu", "redis", "hiredis")

    def enqueue(self, due, queue, payload):
        eta = None if due is None else datetime.fromtimestamp(due, UTC)
        job.apply_async((payload,), eta=eta, queue=f"q{queue}")

    def workers(self, layout, queues):
        command = [
            tool("celery"),
            "-A",
            __name__,
            "worker",
            "-l",
            "WARNING",
            "-c",
            layout[0],
        ]
        command += ["-Q", ",".join(f"q{i}" for i in range(queues))]
        if layout.endswith("t"):
            command += ["--prefetch-multiplier", "128"]
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return [command]


ADAPTER = CeleryAdapter()
