"""What people are told of a server's error."""

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from django_delayq.faults import describe_fault


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
    assert "may not do this" in describe_fault(error).what
