from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.codecs import get_codec
from django_delayq.exceptions import EncodeError, InvalidSettings
from django_delayq.queues import queue_options
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.queue_options import (
    QueueOptions,
    options_of,
    set_default_options,
)
from django_delayq.wire.frame import FrameFormat


@pytest.fixture(autouse=True)
def _no_defaults() -> Iterator[None]:
    """Forget what the application has registered, and bring it back."""
    defaults = queue_options._default
    set_default_options(None)
    yield
    set_default_options(defaults)


class TestOptions:
    def test_without_settings_it_is_json_in_the_newer_format_with_a_list(self) -> None:
        found = options_of("q", codec=None)

        assert found == QueueOptions(
            codec=get_codec("json"),
            frame_format=FrameFormat.BC0LC0,
            insertion_list=True,
        )

    def test_what_is_named_wins_over_the_settings(self) -> None:
        set_default_options(
            lambda name: QueueOptions(
                codec=get_codec("StringCodec"),
                frame_format=FrameFormat.DLC0,
                insertion_list=False,
            )
        )

        assert options_of("q", codec=None).codec.name == "StringCodec"
        assert options_of("q", codec="LongCodec").codec.name == "LongCodec"
        found = options_of("q", codec=None, frame_format="4.7.0", insertion_list=False)
        assert (found.frame_format, found.insertion_list) == (FrameFormat.BC0LC0, False)
        left = options_of("q", codec="LongCodec")
        assert (left.frame_format, left.insertion_list) == (FrameFormat.DLC0, False)

    @pytest.mark.parametrize("listed", [True, False])
    def test_all_writers_of_a_queue_agree_on_its_list(self, listed: bool) -> None:
        set_default_options(
            lambda name: QueueOptions(codec=get_codec("json"), insertion_list=listed)
        )

        assert (
            options_of("q", codec=None, insertion_list=listed).insertion_list is listed
        )
        with pytest.raises(InvalidSettings, match=f"'q', whose settings say {listed}"):
            options_of("q", codec=None, insertion_list=not listed)

    def test_queue_that_the_settings_do_not_know_has_the_defaults(self) -> None:
        set_default_options(lambda name: None)

        assert options_of("q", codec=None).codec.name == get_codec("json").name

    @pytest.mark.parametrize(
        "given", [{"codec": "NoCodec"}, {"codec": None, "frame_format": "1.0"}]
    )
    def test_what_does_not_exist_is_refused(self, given: Any) -> None:
        with pytest.raises(EncodeError):
            options_of("q", **given)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), "5", True, None])
def test_lease_that_is_no_time_is_refused(lease: Any) -> None:
    with pytest.raises(InvalidSettings, match="seconds above 0"):
        BlockingQueue("q", connection="redis://h", lease=lease)
