"""Old patterns of our prose, and where they stand: in pages, docstrings, messages and texts of templates.

``python -m tests.words``
    prints every sentence that has one, with what to write instead, and how many there are of each.
``python -m tests.words django_delayq/admin docs/errors.md``
    looks only there.

`tests/test_words.py` keeps them out. A pattern is here because readers stumbled over it, and because it is rarely right:
where it is, rewrite the sentence anyway.
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.catalog import messages
from tests.pages import DOCUMENTS, ROOT

PACKAGES = ("django_delayq", "pytest_delayq")
#: Checked as pages are: people copy from it.
EXAMPLE = ROOT / "example_project"
PAGES = [
    *DOCUMENTS,
    EXAMPLE / "README.md",
    ROOT / "benchmarks" / "README.md",
]


class Pattern(NamedTuple):
    name: str
    #: What finds it in a sentence without code.
    regex: str
    #: What to write instead.
    instead: str
    reason: str
    #: A sentence that has it.
    example: str
    #: Sentences of docstrings, messages and templates that still have it; pages have none. Lower it when you mend one.
    left: int = 0

    def find(self, sentence: str) -> bool:
        return re.search(self.regex, sentence) is not None


_RELATIVE = r"\b(?:after|at|before|by|for|from|in|of|on|than|to|under|until|with) wh(?:ich|om)\b"

PATTERNS = (
    Pattern(
        "tell",
        r"\b(?:tells?|telling|told)\b",
        instead="say, show, report, warn, log, return, send",
        reason="one word for many different acts",
        example="Clocks that are further apart than this are told of.",
        left=11,
    ),
    Pattern(
        "anew",
        r"\banew\b",
        instead="again",
        reason="archaic",
        example="The loop begins anew.",
        left=2,
    ),
    Pattern(
        "so many",
        r"\b[Ss]o (?:many|much|few)\b(?!.* that\b)",
        instead="the number, or its name",
        reason="the reader cannot see the number that it points to",
        example="Return the first so many processes.",
        left=5,
    ),
    Pattern(
        "so long",
        r"\b(?:[Ff]or so long|[Ss]o long (?:a|as|after|before|until)|for long enough)\b",
        instead="while, timeout, the time in seconds",
        reason="the reader cannot see the time that it points to",
        example="For so long a node is waited for that is asked.",
    ),
    Pattern(
        "of ours",
        r"\bof (?:ours|theirs)\b",
        instead="our, their",
        reason="one genitive too many",
        example="None of ours has written it.",
        left=3,
    ),
    Pattern(
        "somebody else",
        r"\b(?:[Ss]ome(?:body|one)|[Aa]ny(?:body|one)|[Nn]obody|[Nn]o one) (?:else|of)\b",
        instead="another process, others, none",
        reason="hides who it is: a person, a process or Java",
        example="The lock is somebody else's.",
        left=1,
    ),
    Pattern(
        "whoever",
        r"\b(?:[Ww]ho of|[Ww]ho(?:m)?ever)\b",
        instead="the caller, which process",
        reason="hides who it is",
        example="It is raised for whoever waits.",
    ),
    Pattern(
        "as well as it may",
        r"\bas (?:well|good|far|much) as (?:it|they|he) (?:may|might|can)\b",
        instead="if possible, up to",
        reason="names no bound",
        example="It stores the row as well as it may.",
    ),
    Pattern(
        "which, twice",
        _RELATIVE + ".*" + _RELATIVE,
        instead="two sentences",
        reason="relative clauses within each other have to be read twice",
        example="The queue in which the job from which it came ended keeps it.",
    ),
    Pattern(
        "clause as subject",
        r"^(?:(?:What|Whatever|Who|Whoever|Whose)\b|That (?:an?|it|no|the|we)\b)(?!.*[?:]$)",
        instead="the thing itself: 'Jobs that …', 'The outcome of …'",
        reason="the reader waits for the verb",
        example="What is not used costs nothing.",
        left=11,
    ),
    Pattern(
        "is no",
        r"(?<![Tt]here )\b(?:is|are|was|were) (?:no|none)"
        r" (?!(?:better|less|longer|more|need|other|such|way|worse)\b)[a-z]+",
        instead="is not a",
        reason="a foreign negation",
        example="A member that is no frame stays.",
        left=3,
    ),
    Pattern(
        "is not there",
        r"\b(?:is|are|was|were) not there\b",
        instead="does not exist, is missing",
        reason="names no place",
        example="The key is not there.",
        left=1,
    ),
    Pattern(
        "may not",
        r"(?<!or )\bmay not\b",
        instead="must not, cannot, might not, has no right to",
        reason="forbids or guesses: the reader cannot know which",
        example="The function may not return.",
        left=12,
    ),
    Pattern(
        "but for",
        r"\b(?:but|save) for\b(?! each)",
        instead="except",
        reason="means 'without' in other sentences",
        example="Return all nodes but for the first.",
    ),
    Pattern(
        "go on",
        r"\b(?:go|goes|going|gone|went) on\b(?! (?:to|in)\b)",
        instead="continue",
        reason="an idiom, where one plain verb does",
        example="The worker goes on.",
        left=1,
    ),
    Pattern(
        "some, for about",
        r"\b[Ss]ome (?=\d|(?:two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|a)\b)",
        instead="about",
        reason="reads as 'a few'",
        example="It takes some 30 ms.",
        left=2,
    ),
    Pattern(
        "twin",
        r"\b[Tt]wins?\b",
        instead="async version, second",
        reason="the field has a word",
        example="Each call has a twin that you await.",
    ),
    Pattern(
        "moments",
        r"\b[Mm]oments\b",
        instead="occurrences of a schedule, times",
        reason="one word for one thing",
        example="A schedule has moments.",
    ),
    Pattern(
        "replay",
        r"\b(?:[Rr]eplay(?:s|ed|ing)?|[Ss]tart(?:s|ed|ing)? over)\b",
        instead="retry",
        reason="one word for one thing, Job.retry()",
        example="A replay begins with the first attempt.",
    ),
    Pattern(
        "private verb",
        r"\b(?:put|puts|putting) aside\b|\b(?:take|takes|taken|took|taking) in\b(?! (?:the|an?)\b)"
        r"|\b(?:bring|brings|brought) in\b|\b(?:gone|goes|go|went) astray\b"
        r"|\b(?:hear|hears|heard) of\b",
        instead="quarantine, read, add, lose, receive",
        reason="the field has a word",
        example="The reason why the job was put aside.",
        left=1,
    ),
    Pattern(
        "archaic",
        r"\b(?:afar|beforehand|besides|hence|hereby|hither|in vain|lest|seldom|spoilt|there(?:by|in|of|to|upon|with)"
        r"|thence|thereafter|where(?:by|in|of|to|upon|with))\b",
        instead="remote, before, also, so, invalid, and short sentences",
        reason="archaic",
        example="A command from afar.",
        left=1,
    ),
)


class Text(NamedTuple):
    """A sentence, or a part of one, and the line of its file where it begins."""

    path: str
    line: int
    sentence: str


class Finding(NamedTuple):
    path: str
    line: int
    sentence: str
    pattern: Pattern

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.pattern.name}: {self.sentence}\n"
            f"    write: {self.pattern.instead}"
        )


def sentences_of(text: str) -> list[str]:
    """Part a text into sentences, each in one line and with … for code; headings keep their "#"."""
    text = re.sub(r"``.+?``|`[^`\n]*`", "…", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    text = text.replace("**", "")
    # A blank line, a list or a cell of a table ends a sentence, too.
    parts = re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?:\*|-|\d+\.) | \| ", text)
    words = (" ".join(part.split()).strip("|* ") for part in parts)
    return [part for part in words if part]


def texts_of_page(path: Path, root: Path = ROOT) -> Iterator[Text]:
    """Yield the sentences of a page, without its blocks of code."""
    name = path.relative_to(root).as_posix()
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("<"):
            line = re.sub(r"^\s*(?:\*|\d+\.) ", "", line)
            for sentence in sentences_of(line):
                yield Text(name, number, sentence)


def texts_of_module(path: Path, root: Path = ROOT) -> Iterator[Text]:
    """Yield the sentences of a module's strings of three words or more: docstrings, messages and texts."""
    name = path.relative_to(root).as_posix()
    inner: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        text = ""
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in inner else node.value
        if text.count(" ") > 1:
            for sentence in sentences_of(text):
                yield Text(name, node.lineno, sentence)


def texts_of_templates() -> Iterator[Text]:
    """Yield the sentences of the translated texts in templates."""
    for (_, *texts), where in messages():
        if where.endswith(".html"):
            for sentence in (each for text in texts for each in sentences_of(text)):
                yield Text(where, 0, sentence)


def texts_of_packages() -> Iterator[Text]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from texts_of_module(path)
    yield from texts_of_templates()


def texts_of_pages() -> Iterator[Text]:
    for path in PAGES:
        yield from texts_of_page(path)
    for path in sorted(EXAMPLE.rglob("*.py")):
        yield from texts_of_module(path)


def findings(
    texts: Iterator[Text], patterns: tuple[Pattern, ...] = PATTERNS
) -> list[Finding]:
    """Return the sentences that have a pattern."""
    return [
        Finding(*text, pattern)
        for text in texts
        for pattern in patterns
        if pattern.find(text.sentence)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.words")
    parser.add_argument("path", nargs="*", default=[""], help="a page or a folder")
    places = tuple(parser.parse_args().path)
    found = [
        each
        for texts in (texts_of_pages(), texts_of_packages())
        for each in findings(texts)
        if each.path.startswith(places)
    ]
    for each in found:
        print(each)
    print()
    for name, count in Counter(each.pattern.name for each in found).most_common():
        print(f"{count:5} {name}")


if __name__ == "__main__":
    main()
