"""A server is replaced behind its address, while a worker and a site keep their connections to it open."""

from collections.abc import Callable
from typing import Any

from tests.faults.ledger import Ledger
from tests.polling import wait_until
from tests.replicas import MovingAddress
from tests.servers import Server
from tests.worker.project import tasks


def test_a_worker_and_a_site_go_on_with_the_server_that_the_address_leads_to(
    private_server: Callable[..., Server],
    use: Any,
    programs: Callable[..., Any],
    ledger: Ledger,
    queue_name: str,
) -> None:
    address = MovingAddress(private_server)
    use(address.url)
    (worker,) = programs(1)
    task = tasks.note.using(queue=queue_name)
    before = ledger.schedule(task, 0)
    wait_until(lambda: ledger.runs(before.id), description="the first job has run")

    address.move()

    jobs = [ledger.schedule(task, 0) for _ in range(5)]
    ledger.wait_for_ends(6)
    assert [len(ledger.runs(job.id)) for job in jobs] == [1] * 5
    worker.stop()
    address.close()
