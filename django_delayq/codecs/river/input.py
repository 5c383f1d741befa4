"""Reads the parts that all values of River share, with tables of the objects and classes seen so far."""

from typing import Final, NoReturn, TypeVar

from django_delayq.codecs.binary import ByteReader
from django_delayq.codecs.codec import MAX_CLASS_NAME
from django_delayq.codecs.river import tags
from django_delayq.codecs.river.classes import ClassLayout
from django_delayq.codecs.river.resolve import field_names

#: The most superclasses of a class; Java's own classes have up to six or seven.
MAX_SUPERCLASSES = 32

#: The most dimensions of an array.
MAX_DIMENSIONS = 8

#: The most values that a payload may repeat: in a few bytes, it can name the same objects again and again.
MAX_REPEATED = 1_000_000

#: The most elements of Java's ``nCopies``, beyond one for each byte of the payload.
MAX_COPIES = 10_000

_T = TypeVar("_T")

_UNRESOLVED: Final = object()

#: The name of a primitive type, by its tag.
KIND_OF_TAG = {tag: kind for kind, tag in tags.KINDS.items()}


class Descriptor:
    """A class as the payload describes it."""

    __slots__ = ("_names", "kind", "layout", "levels", "name")

    def __init__(
        self,
        kind: int,
        name: str,
        layout: ClassLayout | None = None,
        levels: int = 1,
    ) -> None:
        self.kind = kind
        self.name = name
        self.layout = layout
        #: Classes in its chain, itself included.
        self.levels = levels
        self._names: list[list[str]] | None = None

    @property
    def names(self) -> list[list[str]]:
        """The names of an object's fields, made for the first object: that has at least a byte for each."""
        if self._names is None:
            self._names = field_names(self.layout) if self.layout else []
        return self._names


class RiverInput:
    """A position in one payload."""

    def __init__(self, data: bytes) -> None:
        self.source = ByteReader(data, "MarshallingCodec")
        self._objects: list[object] = []
        #: The number of values in each object, itself and repeated ones included.
        self._weights: list[int] = []
        self._classes: list[Descriptor | None] = []
        self._arrays: dict[str, str] = {}
        self._read = 0
        self._copied = 0

    def value(self, depth: int) -> object:
        """Read one object with its tag."""
        raise NotImplementedError

    def _fail(self, message: str, offset: int | None = None) -> NoReturn:
        self.source.fail(
            message, max(self.source.position - 1, 0) if offset is None else offset
        )

    def _reserve(self) -> int:
        self._objects.append(_UNRESOLVED)
        self._weights.append(self._read)
        return len(self._objects) - 1

    def _resolved(self, slot: int, value: _T) -> _T:
        self._objects[slot] = value
        self._weights[slot] = self._read - self._weights[slot] + 1
        return value

    def _added(self, value: _T, weight: int = 1) -> _T:
        self._objects.append(value)
        self._weights.append(weight)
        return value

    def _repeat(self, tag: int, depth: int) -> object:
        start = self.source.position - 1
        if tag == tags.REPEAT_FAR:
            index = self.source.integer(4)
        else:
            index = self._relative(
                len(self._objects), 1 if tag == tags.REPEAT_NEAR else 2
            )
        if not 0 <= index < len(self._objects):
            self._fail(f"no object {index} to repeat, of {len(self._objects)}", start)
        if self._objects[index] is _UNRESOLVED:
            self._fail("an object inside of itself", start)
        self._read += self._weights[index]
        if self._read > len(self.source.data) + MAX_REPEATED:
            self._fail(f"more than {MAX_REPEATED} repeated values", start)
        return self._objects[index]

    def _relative(self, size: int, width: int) -> int:
        return size - (1 << 8 * width) + self.source.integer(width)

    def _long_string(self) -> str:
        return self.source.java_text(self.source.integer(4))

    def _descriptor(self, tag: int, depth: int, above: int = 0) -> Descriptor:
        if tag in tags.CLASS_TAGS:
            kind = tags.CLASS_CLASS if tag == tags.CLASS_CLASS else tags.OBJECT_CLASS
            return Descriptor(kind, tags.CLASS_TAGS[tag])
        if tag in (
            tags.CLASS_REPEAT_NEAR,
            tags.CLASS_REPEAT_NEARISH,
            tags.CLASS_REPEAT_FAR,
        ):
            return self._known_class(tag)
        if tag in (tags.SERIALIZABLE, tags.WRITE_OBJECT):
            return self._serializable_class(tag, depth, above)
        if tag in (tags.EXTERNALIZABLE, tags.ENUM_CLASS, tags.PLAIN_CLASS):
            descriptor = Descriptor(tag, self._class_name(self._long_string()))
            if tag == tags.EXTERNALIZABLE:
                uid = self.source.integer(8, signed=True)
                descriptor.layout = ClassLayout(descriptor.name, uid, is_external=True)
        elif tag == tags.ARRAY_CLASS:
            if above > MAX_SUPERCLASSES:
                self._fail(f"an array of more than {MAX_DIMENSIONS} dimensions")
            component = self._descriptor(self.source.byte(), depth, above + 1)
            descriptor = Descriptor(tag, self._array_name(component.name))
        else:
            self._fail(f"unknown class tag {tag:#04x}")
        self._classes.append(descriptor)
        return descriptor

    def _class_name(self, name: str) -> str:
        if not 0 < len(name) <= MAX_CLASS_NAME:
            self._fail(f"a class name of {len(name)} characters")
        return name

    def _array_name(self, component: str) -> str:
        """Return the class name of an array, each time as the same string object."""
        if component not in self._arrays:
            if component.startswith("[" * MAX_DIMENSIONS):
                self._fail(f"an array of more than {MAX_DIMENSIONS} dimensions")
            plain = component.startswith("[")
            self._arrays[component] = f"[{component}" if plain else f"[L{component};"
        return self._arrays[component]

    def _known_class(self, tag: int) -> Descriptor:
        start = self.source.position - 1
        if tag == tags.CLASS_REPEAT_FAR:
            index = self.source.integer(4)
        else:
            index = self._relative(
                len(self._classes), 1 if tag == tags.CLASS_REPEAT_NEAR else 2
            )
        if not 0 <= index < len(self._classes):
            self._fail(f"no class {index} to repeat, of {len(self._classes)}", start)
        descriptor = self._classes[index]
        if descriptor is None:
            self._fail("a class described inside of itself", start)
        return descriptor

    def _serializable_class(self, tag: int, depth: int, above: int) -> Descriptor:
        slot = len(self._classes)
        self._classes.append(None)
        name = self._class_name(self._class_text(depth))
        uid = self.source.integer(8, signed=True)
        count = self.source.count(self.source.integer(4), 3)
        if above > MAX_SUPERCLASSES:
            self._fail(f"a class with more than {MAX_SUPERCLASSES} superclasses")
        fields: dict[str, str] = {}
        for _ in range(count):
            field = self._class_text(depth)
            if "#" in field or field in fields:
                self._fail(
                    f"field {field!r:.80}, a second one of this name or one that Java cannot have"
                )
            kind = self.source.byte()
            if kind in tags.PRIMITIVES:
                fields[field] = KIND_OF_TAG[kind]
            else:
                self._descriptor(kind, depth, above + 1)
                fields[field] = "object"
            if self.source.byte():
                self._fail("an unshared field")
        start = self.source.position
        parent = self._descriptor(self.source.byte(), depth, above + 1)
        if parent.layout is None and parent.name != "java.lang.Object":
            # Before JBoss Marshalling 2.0.10, a subclass of ArrayList names that by a tag, but still writes its data.
            self._fail(
                f"{name} has the superclass {parent.name}, which is not described",
                start,
            )
        if parent.layout is not None and parent.levels >= MAX_SUPERCLASSES:
            self._fail(f"a class with more than {MAX_SUPERCLASSES} superclasses", start)
        layout = ClassLayout(
            name,
            uid,
            tuple(fields.items()),
            parent.layout,
            tag == tags.WRITE_OBJECT,
        )
        levels = parent.levels + 1 if parent.layout is not None else 1
        descriptor = Descriptor(tag, name, layout, levels)
        self._classes[slot] = descriptor
        return descriptor

    def _class_text(self, depth: int) -> str:
        start = self.source.position
        text = self.value(depth + 1)
        if not isinstance(text, str) or not text:
            self._fail(f"a {type(text).__name__} where a name must be", start)
        return text
