"""How the elements of a queue are written: codec, frame format, and whether Redisson's list is kept."""

from collections.abc import Callable
from dataclasses import dataclass

from django_delayq.codecs import Codec, get_codec
from django_delayq.core.keys import DeliveryKeys
from django_delayq.exceptions import EncodeError, InvalidSettings
from django_delayq.redaction import show
from django_delayq.wire.frame import FrameFormat, redisson_version


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options that all writers and readers of a queue must share."""

    #: What turns values into payloads.
    codec: Codec
    #: What goes before the queue's name on the server.
    prefix: str = ""
    #: The format of written frames. Both formats are read.
    frame_format: FrameFormat = FrameFormat.BC0LC0
    #: Keep Redisson's list of all offered elements, and read it as Redisson does.
    insertion_list: bool = True


#: Returns a queue's options by its name; None if the settings do not have the queue.
DefaultOptions = Callable[[str], QueueOptions | None]

_default: DefaultOptions | None = None

_FORMATS = {format.value: format for format in FrameFormat}


def set_default_options(provider: DefaultOptions | None) -> None:
    """Set the source of the options that a caller does not name."""
    global _default
    _default = provider


def keys_of(name: str) -> DeliveryKeys:
    """Return the keys of a queue by its name: with the prefix of a configured one, else the name is that on the server."""
    configured = _default and _default(name)
    return DeliveryKeys.of(name, configured.prefix if configured else "")


#: Signs a job for another queue, given the payload and both names. It returns any other payload as it is.
Signer = Callable[[bytes, str, str], bytes]

_signer: Signer | None = None


def set_signer(signer: Signer | None) -> None:
    """Set what signs a job that moves to another queue."""
    global _signer
    _signer = signer


def signed_for(payload: bytes, source: str, target: str) -> bytes:
    """Return the payload, signed for the other queue. Without Django there are no keys, and it stays as it is."""
    return payload if _signer is None else _signer(payload, source, target)


def check_limit(limit: object) -> None:
    """Raise ValueError unless this is a number of elements to take."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ValueError(
            f"limit is how many elements to take at most, a whole number, 0 or more; got {show(limit)}"
        )


def options_of(
    name: str,
    *,
    codec: str | Codec | None,
    frame_format: FrameFormat | str | None = None,
    insertion_list: bool | None = None,
) -> QueueOptions:
    """Complete the options that a caller names: from the default options, else JSON in the newer format with a list.

    ``frame_format`` may be a name, ``"Bc0Lc0"`` or ``"dLc0"``, or the version of the Redisson on the other side,
    ``"3.16.6"``.

    Raises:
        EncodeError: no codec has this name, or ``frame_format`` is neither a format nor a version of Redisson.
        InvalidSettings: the settings of the queue disagree about its list.
    """
    version = None
    if isinstance(frame_format, str) and frame_format in _FORMATS:
        frame_format = _FORMATS[frame_format]
    elif not isinstance(frame_format, FrameFormat | None):
        version = frame_format
        frame_format = _format_for(version)
    configured = _default and _default(name)
    if configured and insertion_list not in (None, configured.insertion_list):
        raise InvalidSettings(
            f"insertion_list={insertion_list} for queue {name!r}, whose settings say {configured.insertion_list}:"
            " a list that only some writers keep is wrong. Leave it out, or change INSERTION_LIST in the settings"
        )
    default = configured or QueueOptions(codec=get_codec("json"))
    return QueueOptions(
        prefix=default.prefix,
        codec=default.codec if codec is None else get_codec(codec, version=version),
        frame_format=default.frame_format if frame_format is None else frame_format,
        insertion_list=(
            default.insertion_list if insertion_list is None else insertion_list
        ),
    )


def _format_for(version: str) -> FrameFormat:
    try:
        redisson_version(version)
    except EncodeError:
        raise EncodeError(
            f"frame_format={show(version)}: give {' or '.join(map(repr, _FORMATS))}, or the version of the Redisson on"
            " the other side, such as '3.16.6'"
        ) from None
    return FrameFormat.for_redisson(version)
