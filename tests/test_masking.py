"""Secrets are found in texts however they are written there, and in bounded time."""

import json
from html import escape

import msgspec
import pytest
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.masks import MOST_SECRETS, Masker, mask, texts_of

TOKEN = "tok_4f1e9a7b23c85d60ffee" * 20
KEY = "-----BEGIN KEY-----\nMIIabc\n  def\n-----END KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no secret", "no secret"),
        ("", ""),
        (f"a {TOKEN} b {TOKEN}", "a *** b ***"),
        # Cut at its end, as by `[:200]`, by Sentry, and by a column of a table.
        (f"first {TOKEN[:200]} only", "first *** only"),
        (f"'{TOKEN[:77]}...", "'***..."),
        (f"{TOKEN[:9]}…", "***…"),
        (TOKEN[:-1], "***"),
        (f"{TOKEN[:40]}and so on", "***and so on"),
        # Cut in the middle, as by reprlib and pydantic; and at its beginning.
        (f"input={TOKEN[:12]}...{TOKEN[-13:]}, type", "input=***...***, type"),
        (f"…{TOKEN[-30:]}", "…***"),
        # Too short, or another word.
        (f"{TOKEN[:7]} {TOKEN[-7:]}", f"{TOKEN[:7]} {TOKEN[-7:]}"),
        (f"{TOKEN[:10]}xyz", f"{TOKEN[:10]}xyz"),
        (f"xyz{TOKEN[-10:]}", f"xyz{TOKEN[-10:]}"),
        # Lines with a margin, also where they were cut.
        (f"a\n  | {KEY}\n  | b", "a\n  | ***\n  | b"),
        (
            "a\n  | -----BEGIN KEY-----\n  | MIIabc\n  |   def\n  | -----END KEY-----\n",
            "a\n  | ***\n",
        ),
        ("  | -----BEGIN KEY-----\n  | MIIa", "  | ***"),
        ("...bc\n  def\n -----END KEY-----.", "...***."),
    ],
)
def test_mask_finds_secrets_that_are_whole_or_were_cut(text: str, shown: str) -> None:
    assert mask(text, [TOKEN, KEY]) == shown


def test_mask_of_one_form_leaves_no_rest_of_another() -> None:
    raw, written = "ab\\cdefg\\hijk", "ab\\\\cdefg\\\\hijk"

    assert mask(f"{raw} and {written}", [written, raw]) == "*** and ***"


def test_mask_hides_a_text_as_a_whole_if_there_are_very_many_secrets() -> None:
    secrets = [f"secret {number}" for number in range(MOST_SECRETS + 1)]

    assert mask("innocent", secrets) == "***"
    assert mask("innocent", secrets[1:]) == "innocent"


_PIECES = st.text(alphabet="ab \n|é", max_size=40)


@given(secret=st.text(alphabet="ab \n|é", min_size=8, max_size=40), before=_PIECES)
def test_mask_leaves_no_secret_with_or_without_a_margin(
    secret: str, before: str
) -> None:
    lines = [line.lstrip(" |") for line in secret.split("\n")]
    secret = secret[0] + "xy" + "\n".join(lines)
    quoted = "\n".join(f"  | {line}" for line in secret.split("\n"))

    for text in (secret, quoted):
        masked = mask(f"{before}<{text}>", [secret])
        assert "xy" not in masked
        assert masked.endswith(">")


def test_mask_ends_soon_where_a_search_for_each_place_would_not() -> None:
    # A search that begins anew at each place would compare 10 ** 10 characters.
    secret = "ab" * 50_000 + "c"
    text = "ab" * 100_000

    assert mask(text, [secret]) == "***" * 2


def test_mask_hides_a_text_as_a_whole_where_the_work_would_have_no_end() -> None:
    # Each place could be where the secret begins, and ends with another letter.
    assert mask("a" * 400_000, ["aaaaaaaabc"]) == "***"

    masker = Masker(f"secret {number}" for number in range(900))
    texts = [masker.mask(f"text {number}") for number in range(1_200)]
    assert texts[0] == "text 0"
    assert texts[-1] == "***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pin 7x refused", "pin *** refused"),
        ("7x", "***"),
        ("'7x', [7x] 7x=7x 7x.7x", "'***', [***] ***=*** ***.***"),
        ("a_7x_b", "a_***_b"),
        # Behind what stands for a line, a space or a letter.
        (r"a\n7x b\xa07x c\u20287x a%207x", r"a\n*** b\xa0*** c\u2028*** a%20***"),
        # Within another word.
        ("07x 7xy a7x7x", "07x 7xy a7x7x"),
        ("7X", "7X"),
        ("the 5 of 555 and 5.5", "the *** of 555 and ***.***"),
        ("é and café", "*** and café"),
        # What is neither letter nor digit is not looked for.
        ("a - b", "a - b"),
    ],
)
def test_mask_finds_what_is_short_as_a_word(text: str, shown: str) -> None:
    assert mask(text, ["7x", "5", "é", "-"]) == shown


def test_mask_finds_the_longer_of_two_words() -> None:
    assert mask("a-b a", ["a", "b", "a-b"]) == "*** ***"


def test_work_for_short_secrets_has_an_end() -> None:
    masker = Masker(f"{number:03}" for number in range(900))

    assert masker.mask("line 007 of 9999") == "line *** of 9999"
    assert masker.mask("x" * 1_000_000) == "***"


VALUE = {
    "key-of-it": [1234567.5, -8_675_309, 1e22, True, None, {"k": 'two "q" <&>\nü'}],
}


@pytest.mark.parametrize(
    "text",
    [
        f"{VALUE}",
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        json.dumps(json.dumps(VALUE)),
        msgspec.json.encode(VALUE).decode(),
        repr(json.dumps(VALUE).encode()),
        escape(str(VALUE)),
        escape(VALUE["key-of-it"][5]["k"], quote=False),  # type: ignore[index]
        "8675309 8,675,309 1234567.5 10000000000000000000000",
    ],
)
def test_every_form_of_a_value_is_found(text: str) -> None:
    masked = mask(text, texts_of(VALUE))

    for part in ("key-of-it", "1234567", "8675309", "8,675", "1e", "000", "two", "q"):
        assert part not in masked, masked
    # Not looked for.
    assert ("rue" in masked) == ("rue" in text)


def test_integer_that_python_does_not_write_is_passed_over() -> None:
    assert list(texts_of([10**5_000, 17])) == ["17", "17"]
    assert len(list(texts_of(10**3_600))) == 2


def test_value_of_a_lazy_object_is_not_made() -> None:
    def fail() -> str:
        raise AssertionError("it was made")

    assert list(texts_of([SimpleLazyObject(fail), object(), b"bytes"])) != []


def test_result_is_masked_in_its_keys_numbers_and_depths() -> None:
    deep: object = "s3cret"
    for _ in range(150):
        deep = [deep]
    masker = Masker(["s3cret", "4711"])

    assert masker.mask_value({"a s3cret": [4711, 4712, True, None, 1.5]}) == {
        "a ***": ["***", 4712, True, None, 1.5]
    }
    assert "s3cret" not in repr(masker.mask_value(deep))
