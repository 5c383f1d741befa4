"""Ids of jobs, and names of any characters, as parts of a URL."""

import posixpath
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.admin.utils import quote
from django.urls import resolve, reverse
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.admin.paths import from_path_part, job_path, to_path_part
from tests.admin.conftest import url

NAMES = [
    "default", "a:b", "ünï", "app{orders}", "a/b", "a_b", "_5F", ".", "..", "a b", "_find",
    "a%2Fb", "100%", "a?b#c", "/jms/mail", "a//b", "a/../b", "a/pause", "mail:0",
]  # fmt: skip
TOKEN = "LCIT8rizfiPuESCl8C0w_Q"
ROOT = "/admin/django_delayq/job/"


@pytest.fixture
def odd(delayq: None, settings: Any) -> None:
    queues = {name: {} for name in NAMES if name != "mail:0"}
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {**queues, "mail": {"SHARDS": 2}},
    }


@pytest.mark.parametrize("name", NAMES)
def test_name_comes_back_from_its_part_of_a_path(name: str) -> None:
    part = to_path_part(name)

    assert from_path_part(part) == name
    assert "/" not in part
    assert posixpath.normpath(f"/x/{part}") == f"/x/{part}"


@given(st.text(min_size=1))
def test_any_text_comes_back(name: str) -> None:
    assert from_path_part(to_path_part(name)) == name
    assert from_path_part(quote(name)) == name


@pytest.mark.parametrize(
    ("job_id", "path"),
    [
        (f"mail:{TOKEN}", f"mail:{TOKEN}"),
        (f"mail:0:{TOKEN}", f"mail:0:{TOKEN}"),
        (f"my_queue:{TOKEN}", f"my_queue:{TOKEN}"),
        (f"a/b:{TOKEN}", f"a/b:{TOKEN}"),
        (f"app{{orders}}:{TOKEN}", f"app%7Borders%7D:{TOKEN}"),
        (f"a b:{TOKEN}", f"a%20b:{TOKEN}"),
        (f"100%:{TOKEN}", f"100%25:{TOKEN}"),
        (f"ünï:{TOKEN}", f"%C3%BCn%C3%AF:{TOKEN}"),
        # Browsers and servers would shorten these.
        (f"a/../b:{TOKEN}", f"a%2F..%2Fb:{TOKEN}"),
        (f"/jms:{TOKEN}", f"%2Fjms:{TOKEN}"),
    ],
)
def test_id_stands_in_a_url_as_it_is_where_a_url_can_have_it(
    job_id: str, path: str
) -> None:
    assert job_path(job_id) == path


@pytest.mark.parametrize(
    "view", ["job", "run_now", "retry", "schedule_again", "cancel", "discard"]
)
@pytest.mark.parametrize("name", NAMES)
def test_address_of_a_job_leads_to_it(odd: None, name: str, view: str) -> None:
    address = url(view, name, TOKEN)

    # Servers decode the path before Django sees it.
    match = resolve(unquote(address))

    assert match.url_name == f"django_delayq_job_{view}"
    assert match.kwargs == {"job_id": f"{name}:{TOKEN}"}
    assert posixpath.normpath(address) + "/" == address


@pytest.mark.parametrize("view", ["queue", "pause", "resume", "schedules", "limits"])
@pytest.mark.parametrize("name", NAMES)
def test_address_of_a_queue_leads_to_it(odd: None, name: str, view: str) -> None:
    match = resolve(unquote(url(view, name)))

    assert match.url_name == f"django_delayq_job_{view}"
    assert from_path_part(match.kwargs["queue"]) == name


@pytest.mark.parametrize("name", ["my_queue", "mail:0", "app{orders}", "a b"])
def test_address_of_a_queue_has_its_plain_name(odd: None, name: str) -> None:
    assert unquote(url("queue", name)) == f"{ROOT}{name}/"


def test_address_that_somebody_has_built_by_hand_leads_to_the_job(odd: None) -> None:
    for address in (
        reverse("admin:django_delayq_job_job", args=[f"a/b:{TOKEN}"]),
        f"{ROOT}a/b:{TOKEN}/",
        # As JavaScript's encodeURIComponent has it.
        unquote(f"{ROOT}a%2Fb%3A{TOKEN}/"),
    ):
        assert resolve(address).kwargs == {"job_id": f"a/b:{TOKEN}"}
