"""Kryo5Codec: Redisson's default since 3.19.

Kryo writes the name of an object's class, but not the names of its fields. So objects of your own
classes, and constants of enums, are read and written only if their class is declared, in a line or two.
"""

from django_delayq.codecs.kryo.kinds import Classes, Declarations, KryoDialect
from django_delayq.codecs.kryo.read import KryoReader
from django_delayq.codecs.kryo.write import KryoWriter
from django_delayq.exceptions import DecodeError, EncodeError


class Kryo5Codec:
    """Values as Kryo 5 writes them, in the dialect of a Redisson version.

    ``classes`` declares your classes: for an enum its constants in order; for another class its fields
    in any order, those of its superclasses included, with their types as Java writes them::

        Kryo5Codec(
            version="3.20.1",
            classes={
                "demo.Status": ["NEW", "PAID"],
                "demo.Order": [("number", "int"), ("tags", "List<String>"),
                               ("status", "demo.Status")],
            },
        )

    Warning: nothing may notice a wrong declaration; the values are then wrong.
    A peer that sets ``useReferences`` writes another format, which is refused or misread.
    """

    name = "Kryo5Codec"

    def __init__(
        self, *, version: str | None = None, classes: Classes | None = None
    ) -> None:
        self._dialect = KryoDialect.of(version)
        self._declared = Declarations(classes or {})

    def __repr__(self) -> str:
        return f"Kryo5Codec({self._dialect!r}, {self._declared!r})"

    def encode(self, value: object) -> bytes:
        """Write a value; ``values`` says which Python type is which in Java.

        Raises:
            EncodeError: the format cannot hold the value, or one inside it.
        """
        try:
            return KryoWriter(self._dialect, self._declared).write(value)
        except RecursionError:
            raise EncodeError("Kryo5Codec: nested too deep") from None
        except EncodeError:
            raise
        except ValueError as error:  # an int of more digits than Python prints
            raise EncodeError(f"Kryo5Codec: {error}") from None

    def decode(self, payload: bytes) -> object:
        """Read a payload.

        Raises:
            DecodeError: the payload is not Kryo's, is nested too deep, or holds an object of a class that
                is not declared or a map whose keys Python cannot distinguish.
        """
        try:
            return KryoReader(payload, self._dialect, self._declared).read()
        except RecursionError:
            raise DecodeError("Kryo5Codec: nested too deep", payload, 0) from None


def make(name: str, version: str | None) -> Kryo5Codec:
    """Make the codec for a version of Redisson, or for the newest, without declared classes."""
    return Kryo5Codec(version=version)
