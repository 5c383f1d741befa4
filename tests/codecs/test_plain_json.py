import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import Long
from django_delayq.exceptions import DecodeError, EncodeError

JSON = get_codec("json")


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (None, b"null"),
        ({"a": [1, 2.5, True, None, "订"]}, '{"a":[1,2.5,true,null,"订"]}'.encode()),
        ("a\ud800", b'"a\\ud800"'),
        (1e300, b"1e+300"),
    ],
)
def test_value_is_written_and_read(value, payload):
    assert JSON.encode(value) == payload
    assert JSON.decode(payload) == value


def test_wrapped_numbers_are_written_as_numbers():
    assert JSON.encode([Long(5), (1, 2)]) == b"[5,[1,2]]"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, {"b": b"x"}]}, r"\$\.a\[1\]\.b: <bytes> is of type bytes"),
        ([1, math.nan], r"\$\[1\]: nan is not a JSON number"),
        ([math.inf], r"\$\[0\]: inf"),
        ({"a": {(1, 2): 3}}, r"\$\.a: the key \(1, 2\) is of type tuple"),
        ({1, 2}, r"\$: \{1, 2\} is of type set"),
    ],
)
def test_what_json_has_not_is_refused_with_its_path(value, message):
    with pytest.raises(EncodeError, match=message):
        JSON.encode(value)


def test_value_that_contains_itself_is_refused():
    value = []
    value += [value, value]

    with pytest.raises(EncodeError, match="Circular"):
        JSON.encode(value)


@pytest.mark.parametrize(
    ("payload", "offset"),
    [
        (b"", 0),
        (b"{", 1),
        ('["订",}'.encode(), 7),
        (b'"\xff"', 1),
        (b"NaN", None),
        (b"[Infinity]", None),
        (b"[" * 100_000, None),
        (b"9" * 5000, None),
    ],
)
def test_what_is_no_json_is_refused_with_its_offset(payload, offset):
    with pytest.raises(DecodeError) as caught:
        JSON.decode(payload)

    assert caught.value.offset == offset
    assert caught.value.data == payload


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda items: st.lists(items) | st.dictionaries(st.text(), items),
        max_leaves=10,
    )
)  # fmt: skip
def test_every_json_value_comes_back(value):
    assert JSON.decode(JSON.encode(value)) == value
