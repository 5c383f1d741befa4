import re
from pathlib import Path

import pytest

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import PACKAGES
from django_delayq.transport.bind import bind_in
from django_delayq.transport.script import load_script, preludes_of, variants_of

WIRE = ("django_delayq.wire",)


class TestLoading:
    def test_script_has_before_it_what_it_uses_of_its_preludes(self) -> None:
        source = load_script(WIRE, "offer").source

        text = source.index("-- Store one")
        assert preludes_of(source[text:]) == [
            "clock",
            "count",
            "window",
            "frame",
            "list",
        ]
        places = [
            source.index(definition)
            for definition in (
                "local function read_clock",
                "local function add_to",
                "local function pack_frame",
                "local function next_numbers",
            )
        ]
        assert places == sorted(places)
        assert places[-1] < text
        # A definition that the script uses brings those that it uses itself. No frame leaves the list here.
        assert "local function listed_number" in source
        assert "local function locate_listed" not in source
        assert "locate_listed(" in load_script(PACKAGES, "claim").source

    def test_numbers_and_texts_of_preludes_are_written_where_they_are_used(
        self,
    ) -> None:
        source = load_script(PACKAGES, "claim").source

        assert "local HEADER" not in source
        assert "struct.unpack('<I4I4dc8c8', header)" in source
        # The server has no more room for the locals of a function.
        assert len(re.findall(r"^local ", source, re.MULTILINE)) < 200

    def test_prelude_may_be_in_another_package_than_the_script(self) -> None:
        loaded = load_script(PACKAGES, "schedule")

        assert "local function read_locator" in loaded.source
        assert "local function read_clock" in loaded.source

    def test_text_is_read_once(self) -> None:
        assert load_script(WIRE, "read") is load_script(WIRE, "read")

    def test_missing_script_is_an_error(self) -> None:
        with pytest.raises(FileNotFoundError):
            load_script(WIRE, "nonsense")

    @pytest.mark.parametrize(
        ("text", "preludes"),
        [
            ("-- Does it.\n--\n-- Prelude  clock, frame\nreturn 1", ["clock", "frame"]),
            ("-- Prelude  walk", ["walk"]),
            ("-- Does it.\nreturn 1", []),
            ("return '-- Prelude  no'", []),
        ],
    )
    def test_header_names_the_preludes(self, text: str, preludes: list[str]) -> None:
        assert preludes_of(text) == preludes


def test_keys_that_no_header_names_are_refused() -> None:
    keys = DeliveryKeys.of("q")

    with pytest.raises(TypeError, match=r"leave\.lua has no key 'lease' in its header"):
        bind_in(PACKAGES, "leave", keys, lease="k")
    with pytest.raises(TypeError, match=r"leave\.lua takes no more keys"):
        bind_in(PACKAGES, "leave", keys)(owner=b"o", more_keys=("k",))


def test_arguments_in_the_callers_own_order_have_to_be_in_that_of_the_header() -> None:
    keys, given = DeliveryKeys.of("q"), ("when", "format", "payload")

    assert bind_in(PACKAGES, "store", keys, given).script.name == "store"
    for wrong in (given[:2], ("format", "when", "payload"), (*given, "most")):
        with pytest.raises(
            TypeError, match=r"store\.lua takes when, format, payload, in this order"
        ):
            bind_in(PACKAGES, "store", keys, wrong)


def test_key_that_a_call_leaves_out_is_nil_in_a_script_of_its_own() -> None:
    keys = DeliveryKeys.of("q")

    without, found = bind_in(PACKAGES, "store", keys)
    with_list, more = bind_in(
        PACKAGES, "store", keys, delay_queue=keys.queue.delay_queue
    )

    assert more == (*found, keys.queue.delay_queue)
    assert "(not KEYS[6] or type" in with_list.source
    assert "(not nil or type" in without.source
    assert {with_list, without} < set(variants_of(PACKAGES, "store"))


def test_keys_of_a_group_are_left_out_together_with_what_only_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "scripted" / "lua"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "_do.lua").write_text(
        "-- Prelude: does it.\nlocal function do_it() end\n"
    )
    (folder / "act.lua").write_text(
        "-- Act.\n--\n-- Prelude  do\n-- Keys     leases, held?all, slots?all, ended?, results...\n"
        "if keys.slots then do_it(keys.held) end\n"
        "if keys.ended then return 1 end\nreturn KEYS[#keys + 1]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = DeliveryKeys.of("q")

    bound = bind_in(("scripted",), "act", keys)
    few, found = bound.script, bound(more_keys=["r"]).keys
    bound = bind_in(("scripted",), "act", keys, held=keys.held, slots="s")
    most, more = bound.script, bound(more_keys=["r"]).keys

    assert found == (keys.leases, "r")
    assert more == (keys.leases, keys.held, "s", "r")
    assert few.source.endswith("results...\nreturn KEYS[1 + 1]\n")
    assert "local function do_it() end" in most.source
    assert most.source.endswith("do_it(KEYS[2]) end\nreturn KEYS[3 + 1]\n")
    assert len(set(variants_of(("scripted",), "act"))) == 4
