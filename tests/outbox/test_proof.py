"""The short form of ``python -m tests.outbox.proof``: kills strike a site, its worker and the server."""

from pathlib import Path
from typing import Any

import pytest

from tests.outbox.proof import prove, sqlite_entry


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_committed_order_has_its_job_and_every_effect_happens_once(
    database: str, server_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if server_kind == "external":
        pytest.skip("kills its server; DELAYQ_TEST_URL is somebody's")
    entry: dict[str, Any] = sqlite_entry(tmp_path)
    if database == "postgres":
        entry = request.getfixturevalue("postgres").make_database()

    outcome = prove(
        entry,
        orders=150,
        directory=tmp_path,
        seed=13,
        kind=server_kind,
        least_kills=1,
    )

    assert outcome.is_good, outcome
    assert outcome.orders >= 150
