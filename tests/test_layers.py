"""The one-way order of the package's layers, held as data and read off the sources.

Imports in functions count, and so do those for types: of two modules that name each other, neither can be read first.
"""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.size import of_files

ROOT = Path(__file__).parent.parent / "django_delayq"

#: From left to right; each may import from itself and from what stands left of it.
LAYERS = [
    [
        "exceptions",
        "clock",
        "decoder",
        "later",
        "logs",
        "masks",
        "redaction",
        "suggestions",
        "wording",
    ],
    ["transport"],
    ["wire"],
    ["codecs"],
    ["waiting"],
    ["core"],
    ["queues"],
    ["embedded", "faults", "health"],
    [
        "backoff",
        "conf",
        "project_connection",
        "queue_conflicts",
        "setting_fields",
        "setting_values",
    ],
    ["signals"],
    ["jobs"],
    # The modules of a feature, but for those below.
    ["features"],
    ["worker"],
    ["features.worker"],
    ["slices"],
    ["tools"],
    [
        "features.charts",
        "features.schedule_texts",
        "features.pages",
        "features.command",
        "translations",
        "apps",
        "checks",
        "database_checks",
        "schedule_checks",
        "server_checks",
        "task_checks",
        "models",
        "admin",
        "backend",
        "context",
        "management",
        "metrics",
        "display",
        "otel",
        "testing",
        "outbox",
    ],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
#: Left of it nothing imports Django, but for the one name that exceptions takes.
FIRST_WITH_DJANGO = RANK["conf"]
SEAMS = RANK["apps"]
#: What a project with a server of its own never needs.
LATER = {("project_connection", "embedded.embedded_server")}
#: What does no I/O, and so imports nothing that could.
SANS_IO = ("wire.queue_keys", "wire.frame", "codecs", "wire.delay")
IO_MODULES = {"redis", "valkey", "socket", "asyncio", "threading", "subprocess"}


def modules() -> dict[str, Path]:
    """Return each module's name below the package, and its file; the package itself is ''."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


MODULES = modules()
INNER = [name for name in MODULES if name]


class Imports(ast.NodeVisitor):
    """The imports of one module: (full name, line, whether a function makes it)."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: list[tuple[str, int, bool]] = []
        self.depth = 0

    def visit_FunctionDef(self, node: ast.AST) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_Lambda = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.found.append((alias.name, node.lineno, self.depth > 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"{self.module}:{node.lineno}: a relative import"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self.found.append((full, node.lineno, self.depth > 0))


@functools.cache
def imports_of(module: str) -> list[tuple[str, int, bool]]:
    visitor = Imports(module)
    visitor.visit(ast.parse(MODULES[module].read_text("utf-8")))
    return visitor.found


def own_imports(module: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the modules of this package that a module imports; '' for a name of the package itself."""
    for full, line, in_function in imports_of(module):
        first, _, rest = full.partition(".")
        if first == "django_delayq":
            while rest and rest not in MODULES:
                rest = rest.rpartition(".")[0]
            yield rest, line, in_function


def rank_of(module: str) -> int:
    """Return where a module stands. In a feature, each kind of module has a place of its own."""
    first, _, rest = module.partition(".")
    kind = f"{first}.{rest.rpartition('.')[2]}"
    return RANK[kind] if first == "features" and kind in RANK else RANK[first]


def test_module_has_its_place_in_the_order() -> None:
    lost = [module for module in INNER if module.partition(".")[0] not in RANK]

    assert lost == [], "say in LAYERS where they belong"


def test_imports_come_from_the_left_only() -> None:
    wrong = [
        f"{module}, line {line} imports {other or 'the package itself'}"
        for module in INNER
        for other, line, _ in own_imports(module)
        if (rank_of(other) > rank_of(module) if other else rank_of(module) < SEAMS)
    ]

    assert wrong == []


def test_what_features_are_handed_to_knows_none() -> None:
    """The worker, and all that features are built on, have them from `slices` by way of who starts them."""
    wrong = [
        f"{module}, line {line} imports {other}"
        for module in INNER
        if module.partition(".")[0] != "features" and rank_of(module) <= RANK["worker"]
        for other, line, _ in own_imports(module)
        if other.startswith("features")
    ]

    assert wrong == []


def test_no_feature_imports_another() -> None:
    wrong = [
        f"{module}, line {line} imports {other}"
        for module in INNER
        if module.startswith("features.")
        for other, line, _ in own_imports(module)
        if other.startswith("features.") and other.split(".")[1] != module.split(".")[1]
    ]

    assert wrong == []


def test_a_feature_serves_users_without_the_worker() -> None:
    """A view that pauses a queue imports no thread pool."""
    wrong = [
        f"{module}, line {line} imports {other}"
        for module in INNER
        if module.startswith("features.") and rank_of(module) == RANK["features"]
        for other, line, _ in own_imports(module)
        if other.partition(".")[0] == "worker"
    ]

    assert wrong == []


def test_no_function_imports_what_its_module_could() -> None:
    """It would hide a wrong layer. Only what Django has to have loaded first is left to functions."""
    hidden = [
        f"{module}, line {line}"
        for module in INNER
        if rank_of(module) != SEAMS
        for other, line, in_function in own_imports(module)
        if in_function and (module, other) not in LATER
    ]

    assert hidden == []


def test_nothing_left_of_conf_imports_django() -> None:
    allowed = {("exceptions", "django.core.exceptions.ImproperlyConfigured")}
    found = {
        (module, full)
        for module in INNER
        if rank_of(module) < FIRST_WITH_DJANGO
        for full, _, _ in imports_of(module)
        if full.partition(".")[0] in ("django", "django_redis", "asgiref")
    }

    assert found <= allowed


def test_what_does_no_io_imports_nothing_that_could() -> None:
    does_none = [
        name for name in INNER if name in SANS_IO or name.startswith("codecs.")
    ]
    allowed = {"exceptions", "later", "masks", "redaction", *SANS_IO}

    wrong = {
        (module, full)
        for module in does_none
        for full, _, _ in imports_of(module)
        if full.partition(".")[0] in IO_MODULES
    } | {
        (module, other)
        for module in does_none
        for other, _, _ in own_imports(module)
        if other not in allowed and not other.startswith("codecs.")
    }

    assert wrong == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {other for other, _, _ in own_imports(module) if other != module}
        for module in INNER
    }

    TopologicalSorter(graph).prepare()


def test_no_module_is_named_for_nothing() -> None:
    vague = {"utils", "util", "common", "helpers", "base", "misc", "tasks", "task"}
    allowed = {"queues.transfer.task"}  # Redisson's QueueTransferTask
    named = {module for module in INNER if module.rpartition(".")[2] in vague}

    assert named <= allowed


#: Modules whose names may end in -ing: they say what is inside.
NOUNS = {"waiting", "testing", "wording"}
#: Gerunds that pages of the documentation name, so they stay.
PUBLIC = {"backend.running", "queues.reading"}


def test_no_module_is_named_by_a_gerund_alone() -> None:
    found = {
        module
        for module in INNER
        if (name := module.rpartition(".")[2]).endswith("ing")
        and "_" not in name
        and name not in NOUNS
        and module not in PUBLIC
    }

    assert found == set()


#: Names that Django looks for in each app.
OF_APPS = {"apps", "models"}
#: Names of files that each slice may have.
OF_SLICES = {"api", "calls", "command", "pages", "worker"}


def test_no_two_files_have_the_same_name() -> None:
    """Codecs share theirs: each has a reader and a writer."""
    named = defaultdict(set)
    for module, path in MODULES.items():
        folder = module.partition(".")[0]
        is_of_slice = folder == "features" and path.stem in OF_SLICES
        if path.stem not in {"__init__", *OF_APPS} and not is_of_slice:
            named[path.stem].add("codecs" if folder == "codecs" else module)
    found = {name for name, which in named.items() if len(which) > 1}

    assert found == set()


#: Lines of code in the longest file, without comments and docstrings.
LONGEST = 500


def test_no_file_is_too_long() -> None:
    """Codecs are exempt."""
    found = {
        module
        for module, path in MODULES.items()
        if not module.startswith("codecs.") and of_files([path]).longest > LONGEST
    }

    assert found == set()


def test_the_reader_of_imports_sees_those_in_functions_and_those_for_types() -> None:
    source = """
import a.b
from c import d
if TYPE_CHECKING:
    from e import f
else:
    from g import h
def function():
    from i import j
    lambda: __import__
class C:
    import k
    async def method(self):
        if TYPE_CHECKING:
            import l
        import m
try:
    import n
except ImportError:
    pass
"""
    visitor = Imports("sample")

    visitor.visit(ast.parse(source))

    assert [(full, inside) for full, _, inside in visitor.found] == [
        ("a.b", False),
        ("c.d", False),
        ("e.f", False),
        ("g.h", False),
        ("i.j", True),
        ("k", False),
        ("l", True),
        ("m", True),
        ("n", False),
    ]


#: Where the keys of a queue are made of its name. All others ask the settings, which know the prefix.
NAMES_KEYS = {
    "wire.queue_keys",
    "core.keys",
    "core.shards",
    "queues.queue_options",
    "conf",
    "health.problems",
    "health.rights",
    "health.signer_problems",
    "tools.move",
    "tools.survey",
}


def test_keys_are_made_of_names_where_the_prefix_is_known() -> None:
    making = re.compile(r"\b(Delivery|Queue|Registry)Keys\.of\b")

    found = {name for name, path in MODULES.items() if making.search(path.read_text())}

    assert found == NAMES_KEYS
