import pytest

from django_delayq.exceptions import EncodeError
from django_delayq.wire.queue_keys import QueueKeys, hash_tag
from tests.wire.slots import key_slot


def test_keys_of_a_plain_name_carry_it_as_hash_tag():
    keys = QueueKeys.of("orders")

    assert keys.name == "orders"
    assert keys.tag == "{orders}"
    assert keys.destination == "orders"
    assert keys.timeout_set == "redisson_delay_queue_timeout:{orders}"
    assert keys.delay_queue == "redisson_delay_queue:{orders}"
    assert keys.channel == "redisson_delay_queue_channel:{orders}"
    assert keys.own("lease") == "delayq_lease:{orders}"


def test_name_with_a_hash_tag_is_not_wrapped_again():
    keys = QueueKeys.of("app{orders}")

    assert keys.tag == "app{orders}"
    assert keys.destination == "app{orders}"
    assert keys.timeout_set == "redisson_delay_queue_timeout:app{orders}"
    assert keys.delay_queue == "redisson_delay_queue:app{orders}"
    assert keys.channel == "redisson_delay_queue_channel:app{orders}"
    assert keys.own("lease") == "delayq_lease:app{orders}"


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "app:orders",
        "Größe 😀",
        " ",
        "\x00",
        "app{orders}",
        "{orders}",
        "{orders}:0",
        "a{b}c{d}",
        "a{b}c}",
        "a{{b}",
        "a{b}{",
        "x}y{z}",
    ],
)
def test_all_keys_of_a_name_share_one_slot(name):
    keys = QueueKeys.of(name)

    every = [keys.timeout_set, keys.delay_queue, keys.channel, keys.own("lease")]
    assert {key_slot(key) for key in every} == {key_slot(keys.destination)}
    assert {hash_tag(key) for key in every} == {hash_tag(keys.destination)}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("a{b", "a_b"),
        ("x}y", "x_y"),
        ("{}", "default"),
        ("{}a", "a"),
        ("a{}", "a"),
        ("{}{a}", "a"),
        ("}", "default"),
        ("}a", "a"),
        ("{", "default"),
        ("x}y{", "x_y"),
    ],
)
def test_name_whose_keys_would_part_is_refused_with_another_name(name, instead):
    with pytest.raises(EncodeError, match="different slots") as caught:
        QueueKeys.of(name)

    message = str(caught.value)
    assert repr(name) in message
    assert "redisson_delay_queue_timeout:" in message
    assert f"such as {instead!r}" in message
    QueueKeys.of(instead)
    QueueKeys.of(f"{{{instead}}}")


@pytest.mark.parametrize(
    ("name", "shown"), [("", "''"), (None, "None"), (b"orders", "<bytes>"), (5, "5")]
)
def test_name_that_is_no_text_is_refused(name, shown):
    with pytest.raises(EncodeError, match=rf"non-empty string; got {shown}$"):
        QueueKeys.of(name)


def test_name_that_utf8_cannot_hold_is_refused():
    with pytest.raises(EncodeError, match="UTF-8"):
        QueueKeys.of("a\ud83d")


def test_keys_are_built_once():
    assert QueueKeys.of("orders") is QueueKeys.of("orders")


@pytest.mark.parametrize(
    ("key", "tag", "slot"),
    [
        # Slots as CLUSTER KEYSLOT of Redis 7.0.15 says.
        ("foo", "foo", 12182),
        ("{foo}", "foo", 12182),
        ("a{foo}b{c}", "foo", 12182),
        ("{}foo", "{}foo", 9500),
        ("foo{", "foo{", 7673),
        ("foo{{bar}}zap", "{bar", 4015),
        ("x}y", "x}y", 8210),
        ("Größe", "Größe", 2599),
        ("123456789", "123456789", 12739),
    ],
)
def test_hash_tag_and_slot_follow_the_cluster_specification(key, tag, slot):
    assert hash_tag(key) == tag
    assert key_slot(key) == slot
