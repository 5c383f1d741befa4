"""The lines in which a queue moves: a file of ``delayq_export``, one JSON object a line, or what one server gives another.

They say which server's run it belongs to, and have the pages of that run in their order. The last line of a file has a code,
by which the source knows that all of the file was imported.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import BinaryIO

import msgspec

from django_delayq.decoder import Count, Decoder
from django_delayq.exceptions import DecodeError
from django_delayq.tools.move import Settings
from django_delayq.tools.page_calls import Kind, Moved, MovedSchedule, Run

#: The version of the file's format.
VERSION = 1


class Begin(msgspec.Struct, frozen=True, tag="begin", tag_field="is"):
    """The first line."""

    version: Count
    #: Whether the jobs also stay where they are, and run there.
    copy: bool


class OfQueue(
    msgspec.Struct, frozen=True, tag="queue", tag_field="is", omit_defaults=True
):
    """A queue, before its pages."""

    name: str
    run: str
    #: The format that its jobs are in, at most.
    format: Count
    settings: Settings
    #: What somebody has changed of schedules in code.
    changed: dict[str, MovedSchedule]
    #: The number of shards of the queue that it is a part of; 0: it is a queue without shards.
    shards: Count = 0
    #: Pages that the source has taken so far, if it deletes each page that is stored; None in a file, which has them all.
    pages: Count | None = None
    #: The name of another server that the run goes to; empty if it goes to this one, and in a file.
    elsewhere: str = ""


class OfSchedule(msgspec.Struct, frozen=True, tag="schedule", tag_field="is"):
    """A stored schedule of the queue before it."""

    name: str
    schedule: MovedSchedule


class Page(msgspec.Struct, frozen=True, tag="page", tag_field="is"):
    """A page of jobs of the queue before it."""

    number: Count
    jobs: list[Moved]
    #: Of these jobs, in a file: a page that lacks some must not be stored, as the whole one would be taken for stored then.
    digest: str = ""


class End(msgspec.Struct, frozen=True, tag="end", tag_field="is"):
    """The last line."""

    code: str


#: How files of gzip, zstd, xz and bzip2 begin.
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh")

Line = Begin | OfQueue | OfSchedule | Page | End
_encoder = msgspec.json.Encoder()
_decoder = Decoder[Line](Line, holds_any=True)


def write(line: Line) -> bytes:
    """Write one line of a file."""
    if isinstance(line, Page):
        line = Page(line.number, line.jobs, digest_of(line.jobs))
    return _encoder.encode(line) + b"\n"


def read(file: BinaryIO | Iterable[bytes]) -> Iterator[Line]:
    """Read a file line by line, to its end line.

    Raises:
        DecodeError: another program or a later version wrote it, or a part of it is missing.
    """
    number, name, runs = 0, "", dict[str, Run]()
    for number, text in enumerate(file, 1):
        line = _decoded(number, text)
        is_misplaced = isinstance(line, Begin) is not (number == 1)
        match line:
            case OfQueue():
                name, runs[line.name] = line.name, Run(line.run, Kind.FILE, 0)
            case OfSchedule() | Page() if not name:
                is_misplaced = True
            case Page():
                its_run = runs[name]
                if line.number != its_run.pages + 1:
                    raise _missing(f"pages of queue {name!r} are")
                if digest_of(line.jobs) != line.digest:
                    raise _missing(f"jobs of page {line.number} of queue {name!r} are")
                runs[name] = its_run._replace(pages=line.number)
            case End() if code_of(runs) != line.code:
                raise _missing("a queue, or the last pages of one, are")
        if is_misplaced:
            raise DecodeError(f"line {number} is at the wrong place", text[:100])
        yield line
        if isinstance(line, End):
            return
    raise DecodeError(
        f"the file ends after line {number}, before its end: the export was interrupted, or a part of the file is lost. Run"
        " delayq_export again: its file has everything. Jobs that are imported already are not imported twice."
    )


def _decoded(number: int, text: bytes) -> Line:
    try:
        line = _decoder.decode(text)
    except DecodeError as error:
        if text.startswith(_COMPRESSED):
            raise DecodeError(
                "the file is compressed: unpack it first, as gunzip and unzstd do, or pipe what they write into"
                " delayq_import -",
                text[:4],
            ) from error
        raise DecodeError(
            f"line {number} is not of a file of delayq_export: {error}. Perhaps the export was interrupted: run it again;"
            " then import its file from the beginning.",
            text[:100],
        ) from error
    if isinstance(line, Begin) and line.version > VERSION:
        raise DecodeError(
            f"the file is of version {line.version}, and this reads {VERSION}; import it with the version that wrote it",
            text[:100],
        )
    return line


def _missing(what: str) -> DecodeError:
    return DecodeError(
        f"{what} missing in the file: a part of it is lost. Copy it again, or run delayq_export again, into another file."
        " Then import the new file: jobs that are here already are not stored twice.",
        b"",
    )


def digest_of(jobs: list[Moved]) -> str:
    """Return a digest of the jobs of a page."""
    return blake2b(_encoder.encode(jobs), digest_size=5).hexdigest()


def mark_of(before: str, jobs: list[Moved]) -> str:
    """Return a mark of a page and those before it, whose mark is given: other pages of the same numbers have another."""
    names = [before, *sorted(job.token for job in jobs)]
    return blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


def code_of(runs: dict[str, Run]) -> str:
    """Return the code that says that these runs, by queue, were imported whole."""
    text = "\n".join(
        f"{name} {each.id} {each.pages}" for name, each in sorted(runs.items())
    )
    return blake2b(text.encode(), digest_size=5).hexdigest()
