"""JSON that every parser reads."""

import json
import math

import pytest

from django_delayq.display.json_output import json_response, json_text


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, True]}, [], "Größe", {"7": {"b": -0.0}}],
)
def test_what_json_has_is_written_as_it_is(value: object) -> None:
    assert json.loads(json_text(value)) == value
    assert json_text(value) == json.dumps(value)


def test_numbers_that_json_has_not_are_texts() -> None:
    value = {"a": math.nan, "b": [math.inf, (1, -math.inf)], math.nan: 1.5}

    for text in (json_text(value), json_response(value).content):
        assert json.loads(text, parse_constant=pytest.fail) == {
            "a": "NaN",
            "b": ["Infinity", [1, "-Infinity"]],
            "NaN": 1.5,
        }
