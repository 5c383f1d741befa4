from typing import Any

import pytest
from redis import sentinel
from redis.asyncio import sentinel as asentinel

from django_delayq.exceptions import InvalidSettings
from django_delayq.faults import describe_fault, is_misconfigured
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.redaction import Password
from django_delayq.transport.clients import Clients
from django_delayq.transport.primary import led_by
from django_delayq.transport.sentinels import Primary, PrimaryNotFound, Sentinels
from django_delayq.transport.server import Server
from django_delayq.transport.url import is_readable, read_url
from django_delayq.waiting.connection import address_of


def sentinels_of(server: Server) -> Sentinels:
    found = server.arguments["sentinels"]
    assert isinstance(found, Sentinels)
    return found


class TestUrl:
    def test_all_parts_are_read(self) -> None:
        server = Server.at(
            "redis+sentinel://app:p%40ss@h1:1,h2,[::1]:3/my%20master/4"
            "?socket_timeout=7&sentinel_username=watch&sentinel_password=s%26t"
        )
        found = sentinels_of(server)

        assert found.name == "my master"
        assert found.addresses == (("h1", 1), ("h2", 26379), ("::1", 3))
        for address in found.addresses:
            own = found.arguments[address]
            # `str` of it is masked.
            assert isinstance(own["password"], Password)
            assert (own["username"], own["password"] + "") == ("watch", "s&t")
            assert "ssl" not in own
        told = dict(server.arguments)
        assert (told["username"], told["password"]) == ("app", "p@ss")
        assert (told["db"], told["socket_timeout"]) == (4, 7)
        assert not {"host", "port", "sentinel_username"} & set(told)

    def test_tls_holds_for_sentinels_as_well(self) -> None:
        server = Server.at("rediss+sentinel://h/m?ssl_ca_certs=/ca&ssl_cert_reqs=none")

        for arguments in sentinels_of(server).arguments.values():
            assert arguments["ssl"] is True
            assert arguments["ssl_ca_certs"] == "/ca"
        assert server.connection_class.__name__ == "PrimarySSLConnection"

    @pytest.mark.parametrize(
        "url",
        [
            "redis+sentinel://h/m",
            "redis+sentinel://h/m/",
            "redis+sentinel://h/m/3/",
            "redis+sentinel://h/m?db=3",
            "rediss+sentinel://u:p@h:1,i/m",
        ],
    )
    def test_database_is_optional(self, url: str) -> None:
        assert read_url(url) == url

    @pytest.mark.parametrize(
        "url",
        [
            "redis+sentinel://",
            "redis+sentinel:///m",
            "redis+sentinel://h",
            "redis+sentinel://h/",
            "redis+sentinel://h//0",
            "redis+sentinel://h/m/x",
            "redis+sentinel://h/m/0/1",
            "redis+sentinel://h/m/-1",
            "redis+sentinel://h,/m",
            "redis+sentinel://,h/m",
            "redis+sentinel://h:0/m",
            "redis+sentinel://h:70000/m",
            "redis+sentinel://h:x/m",
            "redis+sentinel://:hunter2/x@h/m",
            "redis+sentinel://h/m?pasword=hunter2",
            "redis+sentinel://h/m?sentinel_pasword=hunter2",
            "redis+sentinel://:hun#ter2@h/m",
            "redis+sentinels://h/m",
        ],
    )
    def test_url_that_leaves_something_out_is_refused(self, url: str) -> None:
        assert not is_readable(url)
        with pytest.raises(InvalidSettings, match="sentinel://host1") as told:
            BlockingQueue("q", connection=url)
        assert "ter2" not in str(told.value)

    def test_equal_urls_are_one_place(self) -> None:
        url = "redis+sentinel://h:1/m"
        clients = [Clients.of(each) for each in (url, url, url + "/1")]
        places = [address_of(each.shared()) for each in clients]

        assert places[0] == places[1] != places[2]
        assert led_by(clients[0].shared()) == led_by(clients[2].shared())

    def test_no_repr_shows_a_password(self) -> None:
        server = Server.at("redis+sentinel://:hunter2@h/m?sentinel_password=hunter3")

        for shown in (repr(server), repr(server.pool()), repr(sentinels_of(server))):
            assert "hunter" not in shown


class TestClientsOfRedisPy:
    @pytest.mark.parametrize("module", [sentinel, asentinel])
    def test_settings_of_the_sentinels_are_kept(self, module: Any) -> None:
        manager = module.Sentinel(
            [("h1", 1), ("h2", 2)],
            min_other_sentinels=1,
            sentinel_kwargs={"password": "s"},
        )
        server = Server.of(manager.master_for("m", password="p", db=3))
        found = sentinels_of(server)

        assert (found.name, found.min_others) == ("m", 1)
        assert found.addresses == (("h1", 1), ("h2", 2))
        assert found.arguments["h1", 1]["password"] == "s"
        assert (server.arguments["password"], server.arguments["db"]) == ("p", 3)
        for pool in (server.pool(), server.async_pool()):
            # A twin that cannot be made would raise.
            assert pool.make_connection().sentinels == found

    def test_client_of_replicas_is_refused(self) -> None:
        client = sentinel.Sentinel([("h1", 1)]).slave_for("m")

        with pytest.raises(InvalidSettings, match=r"replicas of 'm'.*master_for"):
            BlockingQueue("q", connection=client)


class TestWithoutSentinels:
    #: Nothing listens there.
    URL = (
        "redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/m?sentinel_password=hunter3"
    )

    def test_error_names_those_that_were_asked(self) -> None:
        with pytest.raises(PrimaryNotFound, match="no Sentinel of 'm' answers") as told:
            Clients.of(self.URL).of_thread()

        fault = describe_fault(told.value)
        assert "127.0.0.1:1 (" in fault.message
        assert "127.0.0.1:2 (" in fault.message
        assert "hunter" not in fault.message
        assert fault.what == "No Sentinel answers."
        assert not is_misconfigured(told.value)

    async def test_error_is_the_same_for_asyncio(self) -> None:
        client = await Clients.of(self.URL).of_loop()

        with pytest.raises(PrimaryNotFound, match="no Sentinel of 'm' answers"):
            await client.ping()


@pytest.mark.parametrize(
    ("later", "replaces"),
    [
        (Primary(2, "h", 2), True),
        (Primary(1, "h", 2), False),
        (Primary(0, "h", 2), False),
        (Primary(2, "h", 1), False),
    ],
)
def test_primary_is_replaced_by_a_later_one_elsewhere(
    later: Primary, replaces: bool
) -> None:
    assert later.replaces(Primary(1, "h", 1)) is replaces
