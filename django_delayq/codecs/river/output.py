"""Writes the parts that all values of River share: numbers of objects, sizes, texts and classes."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from django_delayq.codecs.binary import java_utf8
from django_delayq.codecs.java_text import utf16_units
from django_delayq.codecs.river import tags
from django_delayq.codecs.river.classes import ClassLayout
from django_delayq.codecs.values import JavaEnum, JavaObject
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_PACK = {
    "boolean": struct.Struct(">?"),
    "byte": struct.Struct(">b"),
    "short": struct.Struct(">h"),
    "int": struct.Struct(">i"),
    "long": struct.Struct(">q"),
    "char": struct.Struct(">H"),
    "float": struct.Struct(">f"),
    "double": struct.Struct(">d"),
}


def _modified_utf8(text: str) -> bytes:
    return java_utf8(text).replace(b"\0", b"\xc0\x80")


class RiverOutput:
    """The bytes of one payload. ``layouts`` describes the classes of JavaObjects that have no layout."""

    def __init__(self, layouts: Mapping[str, ClassLayout]) -> None:
        self._layouts = layouts
        self._out = bytearray([tags.VERSION])
        #: Number of each object written: texts and enums by value, all else by identity.
        self._objects: dict[object, int] = {}
        self._classes: dict[str, int] = {}
        self._count = 0
        #: Keeps alive what was built on the way, so that no two objects of a value share an ``id()``.
        self._alive: list[object] = []

    def _is_repeated(self, key: object) -> bool:
        """Refer to an object by its number, if it has one; return whether it has."""
        index = self._objects.get(key)
        if index is None:
            return False
        self._back(self._count - index, index, tags.REPEAT_NEAR, tags.REPEAT_FAR)
        return True

    def _back(self, distance: int, index: int, near: int, far: int) -> None:
        """Refer to an earlier object by the distance back to it, from 65537 on by its number, counted from 0.

        Source: RiverMarshaller.java:118 and :1485, jboss-marshalling 2.0.11.
        """
        if distance <= 1 << 8:
            self._out += bytes([near, (1 << 8) - distance & 0xFF])
        elif distance <= 1 << 16:
            self._out += bytes([near + 1]) + ((1 << 16) - distance & 0xFFFF).to_bytes(
                2, "big"
            )
        else:
            self._out += bytes([far]) + index.to_bytes(4, "big")

    def _number(self, key: object) -> None:
        self._objects[key] = self._count
        self._count += 1

    def _keep(self, built: object) -> object:
        self._alive.append(built)
        return built

    def _sized(self, first: int, size: int) -> None:
        """Write a size: one of the four tags from ``first`` on, and after it the size.

        Shape, a tag each: nothing, for 0; u8, 256 as 0; u16, 65536 as 0; u32.
        """
        out = self._out
        if size == 0:
            out.append(first)
        elif size <= 1 << 8:
            out += bytes([first + 1, size & 0xFF])
        elif size <= 1 << 16:
            out += bytes([first + 2]) + (size & 0xFFFF).to_bytes(2, "big")
        else:
            out += bytes([first + 3]) + size.to_bytes(4, "big")

    def _text(self, value: str, depth: int) -> None:
        text = str.__str__(value)
        if not text:
            self._out.append(tags.STRING_EMPTY)
        elif not self._is_repeated(text):
            self._sized(tags.STRING_EMPTY, utf16_units(text))
            self._out += _modified_utf8(text)
            self._number(text)

    def _long_text(self, text: str) -> None:
        self._out += utf16_units(text).to_bytes(4, "big") + _modified_utf8(text)

    def _primitive(self, kind: str, value: Any, what: str = "a value") -> None:
        try:
            self._out += _PACK[kind].pack(ord(value) if kind == "char" else value)
        except (struct.error, TypeError, OverflowError) as error:
            raise EncodeError(
                f"{what} is not of type {kind}: {show(value)} ({error})"
            ) from None

    def _block(self, block: bytes) -> None:
        width = 1 if len(block) < 1 << 8 else 2 if len(block) < 1 << 16 else 4
        tag = tags.BLOCK_SMALL + (1, 2, 4).index(width)
        self._out += bytes([tag]) + len(block).to_bytes(width, "big") + block

    def _is_known_class(self, name: str) -> bool:
        index = self._classes.get(name)
        if index is None:
            return False
        distance = len(self._classes) - index
        self._back(distance, index, tags.CLASS_REPEAT_NEAR, tags.CLASS_REPEAT_FAR)
        return True

    def _layout(self, layout: ClassLayout, depth: int) -> None:
        """Write a Serializable class: its name, its fields, its superclass."""
        # A loop is enough, without recursion: the superclass comes last.
        level: ClassLayout | None = layout
        while level is not None:
            if self._is_known_class(level.class_name):
                return
            self._out.append(
                tags.WRITE_OBJECT if level.writes_object else tags.SERIALIZABLE
            )
            self._text(level.class_name, depth)
            self._primitive(
                "long", level.uid, f"the serialVersionUID of {level.class_name}"
            )
            self._classes[level.class_name] = len(self._classes)
            self._out += len(level.fields).to_bytes(4, "big")
            for name, kind in level.fields:
                self._text(name, depth)
                self._out += bytes([tags.KINDS.get(kind, tags.OBJECT_CLASS), 0])
            level = level.parent
        self._out.append(tags.OBJECT_CLASS)

    def _external_class(self, layout: ClassLayout) -> None:
        if not self._is_known_class(layout.class_name):
            self._out.append(tags.EXTERNALIZABLE)
            self._long_text(layout.class_name)
            self._primitive("long", layout.uid)
            self._classes[layout.class_name] = len(self._classes)

    def _enum_class(self, name: str) -> None:
        if not self._is_known_class(name):
            self._out.append(tags.ENUM_CLASS)
            self._long_text(name)
            self._classes[name] = len(self._classes)

    def _class(self, name: str, items: Iterable[object]) -> None:
        """Write the class of an array's elements, inferred from the elements."""
        if name in tags.TAG_OF_CLASS:
            self._out.append(tags.TAG_OF_CLASS[name])
            return
        if self._is_known_class(name):
            return
        if name.startswith("["):
            self._out.append(tags.ARRAY_CLASS)
            inner = [part for item in items if isinstance(item, list) for part in item]
            self._class(name[1:].removeprefix("L").removesuffix(";"), inner)
            self._classes[name] = len(self._classes)
            return
        layout = self._layouts.get(name)
        for item in items:
            if isinstance(item, JavaEnum) and item.class_name == name:
                self._enum_class(name)
                return
            found = item.layout if isinstance(item, JavaObject) else None
            if isinstance(found, ClassLayout):
                layout = layout or next(
                    (level for level in found.chain() if level.class_name == name), None
                )
        if layout is None:
            raise EncodeError(
                f"no layout of {name} is known, the class of an array's elements"
            )
        self._layout(layout, 0)
