"""The tags of River, the first byte of everything in it. Source: jboss-marshalling's Protocol.java."""

VERSION = 4

NULL, REPEAT_FAR, NEW_OBJECT = 0x01, 0x02, 0x04
CLASS_REPEAT_FAR, PLAIN_CLASS, SERIALIZABLE, EXTERNALIZABLE, ENUM_CLASS, ARRAY_CLASS = (
    0x06, 0x07, 0x09, 0x0A, 0x0C, 0x0D,
)  # fmt: skip
STRING_CLASS, CLASS_CLASS, OBJECT_CLASS = 0x14, 0x15, 0x16
BLOCK_SMALL, BLOCK_MEDIUM, BLOCK_LARGE, END_BLOCK, WRITE_OBJECT = (
    0x32, 0x33, 0x34, 0x35, 0x38,
)  # fmt: skip
REPEAT_NEAR, REPEAT_NEARISH, CLASS_REPEAT_NEAR, CLASS_REPEAT_NEARISH = range(0x39, 0x3D)
STRING_EMPTY, STRING_SMALL, STRING_MEDIUM, STRING_LARGE = 0x3D, 0x3E, 0x3F, 0x40
ARRAY_EMPTY, COLLECTION_EMPTY = 0x41, 0x52
BYTE, SHORT, INTEGER, LONG, CHARACTER, FLOAT, DOUBLE, TRUE, FALSE = range(0x49, 0x52)
ARRAY_LIST, LINKED_LIST, SINGLETON_LIST, EMPTY_LIST = range(0x5A, 0x5E)
HASH_SET, LINKED_HASH_SET, TREE_SET, SINGLETON_SET, EMPTY_SET = range(0x5E, 0x63)
(
    IDENTITY_HASH_MAP, HASH_MAP, HASHTABLE, LINKED_HASH_MAP, TREE_MAP, SINGLETON_MAP, EMPTY_MAP,
) = range(0x63, 0x6A)  # fmt: skip
ENUM_SET_PROXY, ENUM_MAP, VECTOR, STACK, PAIR, ARRAY_DEQUE, N_COPIES = (
    0x6A, 0x6C, 0x75, 0x76, 0x77, 0x78, 0x7B,
)  # fmt: skip
UNMODIFIABLE_COLLECTION, UNMODIFIABLE_LIST, UNMODIFIABLE_MAP, UNMODIFIABLE_SET = range(
    0x7C, 0x80
)
UNMODIFIABLE_SORTED_SET, UNMODIFIABLE_SORTED_MAP = 0x80, 0x81

#: The primitive types of fields and array elements, by tag, as Java's letters.
PRIMITIVES = dict(zip(range(0x20, 0x28), "ZBSIJCFD", strict=True))
#: Their tags, by the names of the types.
KINDS = dict(
    zip(
        ("boolean", "byte", "short", "int", "long", "char", "float", "double"),
        range(0x20, 0x28),
        strict=True,
    )
)

#: Classes that have a tag of their own, wherever a class may stand.
CLASS_TAGS = {
    STRING_CLASS: "java.lang.String",
    CLASS_CLASS: "java.lang.Class",
    OBJECT_CLASS: "java.lang.Object",
    0x17: "java.lang.Enum",
    **{0x18 + i: f"[{letter}" for i, letter in enumerate("ZBSIJCFD")},
    **{0x20 + i: kind for i, kind in enumerate(KINDS)},
    0x28: "void",
    **{
        0x29 + i: f"java.lang.{name}"
        for i, name in enumerate(
            [
                "Boolean",
                "Byte",
                "Short",
                "Integer",
                "Long",
                "Character",
                "Float",
                "Double",
                "Void",
            ]
        )
    },
    ARRAY_LIST: "java.util.ArrayList",
    LINKED_LIST: "java.util.LinkedList",
    HASH_SET: "java.util.HashSet",
    LINKED_HASH_SET: "java.util.LinkedHashSet",
    TREE_SET: "java.util.TreeSet",
    IDENTITY_HASH_MAP: "java.util.IdentityHashMap",
    HASH_MAP: "java.util.HashMap",
    HASHTABLE: "java.util.Hashtable",
    LINKED_HASH_MAP: "java.util.LinkedHashMap",
    TREE_MAP: "java.util.TreeMap",
    0x6B: "java.util.EnumSet",
    ENUM_MAP: "java.util.EnumMap",
    0x6D: "java.util.AbstractCollection",
    0x6E: "java.util.AbstractSet",
    0x6F: "java.util.AbstractList",
    0x70: "java.util.AbstractQueue",
    0x71: "java.util.AbstractSequentialList",
    0x72: "java.util.concurrent.ConcurrentHashMap",
    0x73: "java.util.concurrent.CopyOnWriteArrayList",
    0x74: "java.util.concurrent.CopyOnWriteArraySet",
    VECTOR: "java.util.Vector",
    STACK: "java.util.Stack",
    ARRAY_DEQUE: "java.util.ArrayDeque",
}
TAG_OF_CLASS = {name: tag for tag, name in CLASS_TAGS.items()}

#: Collections that are written as a count, a tag and their elements.
LIST_TAGS = {
    ARRAY_LIST: "java.util.ArrayList",
    LINKED_LIST: "java.util.LinkedList",
    VECTOR: "java.util.Vector",
    STACK: "java.util.Stack",
    ARRAY_DEQUE: "java.util.ArrayDeque",
}
SET_TAGS = {HASH_SET: "java.util.HashSet", LINKED_HASH_SET: "java.util.LinkedHashSet"}
MAP_TAGS = {
    HASH_MAP: "java.util.HashMap",
    HASHTABLE: "java.util.Hashtable",
    IDENTITY_HASH_MAP: "java.util.IdentityHashMap",
    LINKED_HASH_MAP: "java.util.LinkedHashMap",
}
