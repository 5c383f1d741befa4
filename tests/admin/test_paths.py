"""Names of any characters as parts of a URL."""

import posixpath

import pytest
from django.contrib.admin.utils import quote
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.admin.paths import from_path_part, to_path_part

NAMES = ["default", "a:b", "ünï", "app{orders}", "a/b", "a_b", "_5F", ".", "..", "a b"]


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
