"""A table that is polled: how late a job is, what it costs to be less late, and how it runs twice.

``python -m benchmarks.why.polling [jobs]``

SQLite, because it is there; the lateness is that of the interval, whatever the database.
"""

import random
import sqlite3
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None)


def make_table(path: Path, due: list[float]) -> None:
    connection = connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("DROP TABLE IF EXISTS job")
    connection.execute(
        "CREATE TABLE job (id INTEGER PRIMARY KEY, due REAL, done INTEGER DEFAULT 0)"
    )
    connection.execute("CREATE INDEX job_due ON job (done, due)")
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO job (due) VALUES (?)", [(moment,) for moment in due]
    )
    connection.execute("COMMIT")
    connection.close()


def poll(
    path: Path, interval_s: float, count: int, span_s: float
) -> tuple[list[float], float]:
    """Poll until every job has run; returns how late each was, s, and the queries of an idle day."""
    begun = time.time()
    make_table(path, [begun + 0.5 + random.random() * span_s for _ in range(count)])
    connection = connect(path)
    late: list[float] = []
    while len(late) < count:
        now = time.time()
        for job, due in connection.execute(
            "SELECT id, due FROM job WHERE done = 0 AND due <= ?", (now,)
        ).fetchall():
            late.append(time.time() - due)
            connection.execute("UPDATE job SET done = 1 WHERE id = ?", (job,))
        time.sleep(interval_s)
    connection.close()
    return sorted(late), 86_400 / interval_s


def race(path: Path, count: int) -> int:
    """Two pollers that read first and mark then; returns how many jobs both of them ran."""
    make_table(path, [0.0] * count)
    ran: list[list[int]] = [[], []]
    start = threading.Barrier(2)

    def work(mine: list[int]) -> None:
        connection = connect(path)
        start.wait()
        while rows := connection.execute(
            "SELECT id FROM job WHERE done = 0 LIMIT 10"
        ).fetchall():
            for (job,) in rows:
                mine.append(job)
                time.sleep(0.001)
                connection.execute("UPDATE job SET done = 1 WHERE id = ?", (job,))
        connection.close()

    threads = [threading.Thread(target=work, args=(mine,)) for mine in ran]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(set(ran[0]) & set(ran[1]))


def main(count: int = 500) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.sqlite3"
        for interval_s in (5.0, 1.0, 0.1):
            late, queries = poll(path, interval_s, count, span_s=10)
            print(
                f"every {interval_s:g} s: {late[count // 2] * 1000:,.0f} ms late at p50, {late[-1] * 1000:,.0f} ms at worst;"
                f" {queries:,.0f} queries a day from each idle poller"
            )
        print(
            f"two pollers without a lock on the row: {race(path, count):,} of {count:,} jobs ran twice"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
