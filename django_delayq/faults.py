"""Says what an error of the server means and what to do, for a page of the admin or a terminal."""

import re
from ssl import SSLError
from typing import NamedTuple

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.exceptions import EmbeddedServerError, InvalidSettings
from django_delayq.redaction import redact
from django_delayq.transport.errors import (
    LOST,
    is_of_node,
    is_of_some,
    node_named_by,
    unhidden,
)
from django_delayq.transport.sentinels import (
    PrimaryNotFound,
    PrimaryUnknown,
    SentinelsRefuse,
)
from django_delayq.wording import gettext

#: What redis-py says of a connection that the server closed, in the middle of TLS as well.
_CLOSED = re.compile(r"closed by server|reset by peer|Broken pipe|EOF occurred|\[SSL")

#: What a server says to a connection that gave no password.
_NO_PASSWORD = re.compile(r"Authentication required|HELLO must be called with")

#: What TLS says if we do not accept the server's certificate, or the server not ours.
_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY|ALERT_(?:BAD_CERTIFICATE|CERTIFICATE_|UNKNOWN_CA)"
)


class Fault(NamedTuple):
    """An error as people see it."""

    what: str
    #: The error's own text.
    message: str
    hint: str


def describe_fault(error: Exception) -> Fault:
    """Say what an error of the server, the connection or the settings means."""
    # Half of a surrogate pair can be neither sent nor printed.
    told = _told(error).encode("utf-8", "backslashreplace").decode()
    message = redact(told) or type(error).__name__
    if (node := node_named_by(error)) and node not in message:
        message = f"{node}: {message}"
    what, hint = _meaning(error, message)
    return Fault(what, message, hint)


def fault_line(error: Exception) -> str:
    """Say in one line of a log what an error means, what to do, and its own text."""
    fault = describe_fault(error)
    return f"{fault.what} {fault.hint} ({fault.message})"


def is_misconfigured(error: Exception) -> bool:
    """Return whether only another ``DELAYQ['CONNECTION']``, or another account on the server, helps."""
    return isinstance(
        error,
        AuthenticationError | AuthorizationError | InvalidResponse | PrimaryUnknown,
    ) or _is_database_wrong(error)


def is_refused(error: Exception) -> bool:
    """Return whether a connection is refused, by every node or Sentinel, for a reason that does not pass by itself."""
    is_refusal = is_misconfigured(error) or (
        isinstance(error, RedisConnectionError)
        and _CERTIFICATE.search(_told(error)) is not None
    )
    return is_refusal and not is_of_some(error)


def _told(error: Exception) -> str:
    """Return an error's text, with that of TLS behind it: redis-py 5 leaves it out on the event loop."""
    text, behind = str(error), error.__cause__ or error.__context__
    if isinstance(behind, SSLError) and str(behind) not in text:
        return f"{text} {behind}"
    return text


def is_forbidden(error: Exception) -> bool:
    """Return whether the account lacks a right to a command, a key or a channel, inside or outside a script."""
    # To a script, 6.2 and 7.0 say "The user executing the script can't …", later ones "ACL failure in script".
    told = str(error)
    return (
        isinstance(error, NoPermissionError)
        or "user executing the script can't" in told
        or "ACL failure" in told
    )


def is_to_be_mended(error: Exception) -> bool:
    """Return whether somebody has to give a right, or delete a key of the wrong type, before the server accepts a call."""
    return is_forbidden(error) or "WRONGTYPE" in str(error)


def _is_database_wrong(error: Exception) -> bool:
    return "DB index is out of range" in str(error)


def _meaning(error: Exception, message: str) -> tuple[str, str]:
    if isinstance(error, InvalidSettings):
        return (
            gettext("The settings are wrong."),
            gettext(
                "Correct DELAYQ; manage.py check lists everything that is wrong with it."
            ),
        )
    if isinstance(error, EmbeddedServerError):
        return (
            gettext("The embedded server does not run."),
            gettext("Install what it needs, or name a server in DELAYQ['CONNECTION']."),
        )
    if isinstance(error, SentinelsRefuse):
        return (
            gettext("The Sentinels do not accept the account."),
            gettext(
                "Check sentinel_username and sentinel_password in DELAYQ['CONNECTION'], or SENTINEL_KWARGS of its cache."
                " The Sentinels have an account of their own."
            ),
        )
    if isinstance(error, PrimaryUnknown):
        return (
            gettext("The Sentinels know no primary of this name."),
            gettext(
                "Correct the name in DELAYQ['CONNECTION']: it is the one that the Sentinels monitor."
            ),
        )
    if isinstance(error, RedisConnectionError) and "CERTIFICATE_VERIFY" in message:
        return (
            gettext("The Sentinels' certificate is not accepted.")
            if isinstance(error, PrimaryNotFound)
            else gettext("The server's certificate is not accepted."),
            gettext(
                "Set ssl_ca_certs in DELAYQ['CONNECTION'] to the authority that signed it, and write the host as in"
                " the certificate. Behind Sentinels and in a cluster, the certificate has to be valid for the"
                " address that they announce."
            ),
        )
    if isinstance(error, PrimaryNotFound):
        return (
            gettext("No Sentinel answers."),
            gettext(
                "Are the Sentinels of DELAYQ['CONNECTION'] up, and can this process reach them? Do they require TLS"
                " (rediss+sentinel://), or a client certificate (ssl_certfile and ssl_keyfile)?"
            ),
        )
    if isinstance(error, AuthenticationError) and _NO_PASSWORD.search(message):
        return (
            gettext("The server requires a password, and got none."),
            gettext("Add user and password to DELAYQ['CONNECTION']."),
        )
    if isinstance(error, AuthenticationError | AuthorizationError):
        return (
            gettext("The server does not accept the account."),
            gettext("Check user and password in DELAYQ['CONNECTION']."),
        )
    if _is_database_wrong(error):
        return (
            gettext("The server has no such database."),
            gettext(
                "Correct its number in DELAYQ['CONNECTION'], or raise databases in the server's configuration."
            ),
        )
    if isinstance(error, InvalidResponse):
        return (
            gettext("The server that answers is neither a Redis nor a Valkey."),
            gettext("Check host and port in DELAYQ['CONNECTION']."),
        )
    if isinstance(error, BusyLoadingError):
        return (
            gettext("The server is starting and loads its data."),
            gettext("Try again in a moment; nothing is lost."),
        )
    if isinstance(error, LOST) and is_of_node(error):
        return (
            gettext("A node of the cluster does not answer."),
            gettext(
                "Is the node up, and can this process reach it at the address that it announces? Its jobs stay on"
                " it, and the queues of the other nodes are served."
            ),
        )
    if isinstance(error, RedisConnectionError) and _CLOSED.search(message):
        # Before AUTH, the server rejects long commands as protocol errors.
        return (
            gettext("The server closed the connection."),
            gettext(
                "Was it restarted? Does it require a password, TLS (rediss://), or a client certificate"
                " (ssl_certfile and ssl_keyfile) that DELAYQ['CONNECTION'] does not have?"
            ),
        )
    if isinstance(error, RedisConnectionError) and "was forked" in message:
        return (
            gettext("The connection belongs to the parent process."),
            gettext("Fork before the first job is sent, or after the last."),
        )
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return (
            gettext("The server does not answer."),
            gettext(
                "Is the server of DELAYQ['CONNECTION'] up, and can this process reach it? If the URL begins with"
                " rediss://, does the server speak TLS? Scheduled jobs stay on it; workers continue as soon as it is"
                " back."
            ),
        )
    if isinstance(error, TryAgainError):
        return (
            gettext("The slot of this queue is being moved to another node."),
            gettext("Try again in a moment; nothing is lost."),
        )
    if isinstance(unhidden(error), ReadOnlyError) or "READONLY" in message:
        return (
            gettext("The server is a replica and takes no writes."),
            gettext("Name the primary in DELAYQ['CONNECTION']."),
        )
    if isinstance(error, ClusterDownError):
        return (
            gettext("The cluster does not serve the slot of this queue."),
            gettext(
                "Is a node down that has no replica? With cluster-require-full-coverage no, the other nodes continue"
                " to serve their queues."
            ),
        )
    if isinstance(error, MovedError):
        return (
            gettext("The server is a node of a cluster."),
            gettext(
                "Write DELAYQ['CONNECTION'] as redis+cluster://host1:port,host2:port."
            ),
        )
    if is_forbidden(error):
        return (
            gettext("The account has no right to do this."),
            gettext(
                "Give the user of DELAYQ['CONNECTION'] the rights to the queue's keys, channels and commands; the"
                " worker's start-up check lists what is missing."
            ),
        )
    if isinstance(error, OutOfMemoryError):
        return (
            gettext("The server is at its maxmemory."),
            gettext(
                "Raise maxmemory, and keep maxmemory-policy at noeviction; due jobs still run and make room."
            ),
        )
    if "WRONGTYPE" in message:
        return (
            gettext("Something else uses a key of this queue."),
            gettext("Give the queue another name, or move the other data."),
        )
    return (
        gettext("The server refused the call."),
        gettext("The server's own message above says why."),
    )
