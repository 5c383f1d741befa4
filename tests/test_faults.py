"""What people are told of a server's error."""

from ssl import SSLCertVerificationError

import pytest
from redis.exceptions import (
    AuthenticationError,
    MasterDownError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.faults import describe_fault, is_refused


@pytest.mark.parametrize(
    "error",
    [
        NoPermissionError("this user has no permissions to run the 'evalsha' command"),
        ResponseError("The user executing the script can't run this command"),
        ResponseError(
            "The user executing the script can't access at least one of the keys"
            " mentioned in the command arguments"
        ),
        ResponseError(
            "The user executing the script can't publish to the channel mentioned in"
            " the command"
        ),
        ResponseError("ACL failure in script: User web has no permissions"),
    ],
)
def test_missing_right_is_told_as_such_in_the_words_of_every_server(
    error: ResponseError,
) -> None:
    assert "no right to do this" in describe_fault(error).what


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("Authentication required.", "requires a password, and got none"),
        (
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass>"
            " option can be used",
            "requires a password, and got none",
        ),
        ("invalid username-password pair or user is disabled.", "accept the account"),
    ],
)
def test_missing_password_is_told_apart_from_a_wrong_one(
    message: str, what: str
) -> None:
    assert what in describe_fault(AuthenticationError(message)).what


def test_refused_certificate_is_told_though_redis_py_leaves_it_out() -> None:
    """redis-py 5 does on the event loop."""
    why = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate is not valid for '10.0.0.7'"

    error = RedisConnectionError("Error 1 connecting to 10.0.0.7:6379. 1.")
    error.__context__ = SSLCertVerificationError(1, why)

    fault = describe_fault(error)

    assert is_refused(error)
    assert "certificate is not accepted" in fault.what
    assert why in fault.message


def test_replica_that_has_lost_its_primary_is_told_as_a_replica() -> None:
    """For redis-py, its error is one of clusters."""
    fault = describe_fault(MasterDownError("Link with MASTER is down"))

    assert fault.what == "The server is a replica and takes no writes."
