"""Text for a terminal: what it shows of hostile text, and how wide that is."""

import pytest

from django_delayq.management.terminal import (
    Column,
    fitted,
    table,
    width_of,
    wrapped,
)
from django_delayq.wording import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\x9b5mb", r"a\x9b5mb"),
        ("\u202eoversight", r"\u202eoversight"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\r", r"\r"),
        ("\ud800", r"\ud800"),
        ("\x85\u2028\u2069", r"\x85\u2028\u2069"),
        ("订单 é", "订单 é"),
        ("10\u202f000\xa0€", "10\u202f000\xa0€"),
        ("東京\u3000都", "東京\u3000都"),
        ("نگه\u200cدار", "نگه\u200cدار"),
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("\u200fשלום", "\u200fשלום"),
    ],
)
def test_nothing_steers_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_one_line_has_no_breaks() -> None:
    assert one_line(" a\n\tb  c\n") == "a b c"


@pytest.mark.parametrize(
    ("text", "width"),
    [("abc", 3), ("订单", 4), ("e\u0301", 1), ("é订", 3), ("نگه\u200cدار", 6), ("", 0)],
)
def test_width_counts_columns(text: str, width: int) -> None:
    assert width_of(text) == width


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("订单号码", 6, "订单…"),
        ("订单号码", 5, "订单…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_what_is_too_wide_is_cut(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 10, []),
        ("one two three", 8, ["> one", "  two", "  three"]),
        ("one two three", 9, ["> one two", "  three"]),
        ("a --max-lateness option", 12, ["> a", "  --max-lateness", "  option"]),
        ("double  space\nand line", 18, ["> double  space", "  and line"]),
        ("队列的任务", 8, ["> 队列的", "  任务"]),
        ("队列的，任务", 8, ["> 队列", "  的，任", "  务"]),
        ("默认：DELAYQ['WORKER']，未设置", 10, ["> 默认：", "  DELAYQ['WORKER']，", "  未设置"]),
    ],
)  # fmt: skip
def test_lines_end_between_words_and_between_chinese_characters(
    text: str, width: int, lines: list[str]
) -> None:
    assert wrapped(text, width, "> ", "  ") == lines


def test_columns_line_up_whatever_is_in_them() -> None:
    columns = [Column("NAME"), Column("N", is_number=True), Column("REST")]
    rows = [["订单", "5", "x"], ["order", "12", ""]]

    assert list(table(columns, iter(rows), None)) == [
        "NAME    N  REST",
        "订单    5  x",
        "order  12",
    ]


def test_one_column_is_cut_where_the_table_is_too_wide() -> None:
    columns = [Column("A"), Column("B", is_cut=True), Column("C", is_number=True)]
    rows = [["id", "a long text that is cut", "7"]]

    lines = list(table(columns, iter(rows), 20))

    assert lines == ["A  B               C", "id a long text th… 7"]


def test_table_without_rows_has_its_heading() -> None:
    assert list(table([Column("A")], iter([]), 80, str.lower)) == ["a"]
