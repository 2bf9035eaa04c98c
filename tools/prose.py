"""The writing rules that can be counted: docstrings, user pages and commit subjects.

`python -m tools.prose` prints each place that breaks a rule and exits with 1. `make lint` runs it.
`--all` also prints the places that tools/prose_allowed.json tolerates for now. `--shrink` lowers
its numbers to what is left; it never raises one. Each rule below has its reason beside it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("prose_allowed.json")
SOURCES = ("operator", "trainer")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "examples/*.md", "helm/drumline/*.md")
GENERATED = re.compile(r"reference|values\.md|figures\.md|architectures\.md|helm/.*README")
"""Pages that a generator writes: their sentences are docstrings, which have rules of their own."""
DESIGN = re.compile(r"benchmarks|kill-matrix|proof|simulated-week|architecture|decisions/")
"""Pages for developers and reviewers, out of the users' way."""
RECORDS = "docs/decisions/"
"""Design pages that get the checks of user pages. Each is short and read alone."""

MOST_WORDS = 30
"""Of a sentence. A reader of English as a second language reads longer ones twice."""
MOST_PARAGRAPH_WORDS = 80
"""Then a list, a table, an example or a heading: people scan pages for one fact."""
MOST_PLACES = 5
"""Printed of a scope that is above its limit; `--all` prints the others."""
MOST_USER_WORDS = 55_000
"""Of all user pages, without code: who looks for a fact does not read more."""
MOST_SUBJECT_CHARACTERS = 72
"""Of a commit: `git log --oneline` and review tools cut what is longer."""
FRONTED = re.compile(
    r"^[-*\s>|]*(Who|Whoever|Whose|Whom|What|Whatever|Where|Which|Whether|Of|By|As|Beside|Beyond)\b"
)
"""Openers of questions and asides. A statement begins with its subject: who does something."""
FRONTED_FINE = re.compile(
    r"^[-*\s>|]*(By default|As a rule|As soon as|By hand|Of course|Where possible)\b"
)
DOCSTRING_OPENER = re.compile(
    r"^(What|Who|Whose|Whom|Whether|How|Where|Which|Of|As|By|The same|Nothing|Those|That|So"
    r"|Beyond|Beside)\b"
)
"""A function does something (imperative), a class or a value is something (noun)."""
WORDS = {
    "continue, resume": r"\b(?:go|goes|went|going) on\b",
    "the number of, N": r"\bso (?:many|long|much|few)\b(?! as| that)",
    "must be, is not": (
        r"(?<!there )\b(?:is|are|was|were) no (?!longer|more than|less than|one\b)[a-z`]+"
    ),
    "computed": r"\bworked out\b",
    "without further checks": r"\b(?:by|at) (?:its|their|his|her) word\b",
    "used": r"\b(?:has|have|had) had\b",
    "synthetic": r"\bmade-up\b",
    "gradients": r"\bslopes?\b",
    "otherwise": r"\b(?:could|would|might|may) else\b",
    "the remaining N": r"\bwhat is left\b",
    "is notified, is reported": r"\b(?:is|are|was|were) (?:told|said)\b",
    "package": r"\b(?:pure|this|each|every|the|between|of the) rooms?\b",
    "duplicate": r"\btwins?\b",
    "users who, no user": r"\b(?:nobody|whoever|nobody's|theirs)\b",
}
"""Better word -> pattern of ours. These words are calques, or have a name in the field."""
_PATTERNS = {better: re.compile(pattern, re.IGNORECASE) for better, pattern in WORDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place that breaks a rule.

    Attributes:
        scope: what the allow-list counts by: a page, or a package of the code.
    """

    rule: str
    scope: str
    place: str
    text: str

    def line(self) -> str:
        """Return the finding as a compiler would print it."""
        return f"{self.place}: {self.rule}: {self.text[:160]}"


def tracked(*patterns: str) -> list[str]:
    """Return the paths of tracked files, relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--", *patterns]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def listed_words(text: str) -> list[str]:
    """Return `word -> better` for each listed word of a text."""
    return [
        f"{match[0]} -> {better}"
        for better, pattern in _PATTERNS.items()
        for match in pattern.finditer(text)
    ]


# Pages


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Split a page into paragraphs, list items and cells.

    Yields:
        Line, kind (`paragraph` or `cell`) and text. Code, headings and addresses are left out.
    """
    text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*[-*|#>] ?)|\n(?=\s*\d+\. ))", text):
        start, line = line, line + block.count("\n")
        flat = " ".join(re.sub(r"\]\([^)]*\)", "]", block).split())
        if not flat or flat.startswith(("#", "<", "!")):
            continue
        if flat.startswith("|"):
            yield from ((start, "cell", cell.strip()) for cell in flat.strip("|").split("|"))
        else:
            yield start, "paragraph", flat


def words_outside_code(text: str) -> int:
    """Count the words of a page without code blocks and addresses of links."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return len(re.sub(r"\]\([^)]*\)", "]", prose).split())


def size_findings(pages: Mapping[str, str]) -> Iterator[Finding]:
    """Check the number of words of all user pages together."""
    words = sum(words_outside_code(text) for text in pages.values())
    if words > MOST_USER_WORDS:
        text = f"{words} words in user pages, at most {MOST_USER_WORDS}: shorten or delete"
        yield Finding(rule="size", scope="docs", place="docs", text=text)


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph at periods, question marks and exclamation marks."""
    parts = re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", paragraph)
    return [part for part in parts if len(part.split()) >= 4]


def page_findings(name: str, text: str) -> Iterator[Finding]:
    """Check one user page."""

    def finding(rule: str, line: int, shown: str) -> Finding:
        return Finding(rule=rule, scope=name, place=f"{name}:{line}", text=shown)

    for line, kind, block in blocks(text):
        for word in listed_words(block):
            yield finding("word", line, word)
        if kind == "cell":
            continue
        words = len(block.split())
        if words > MOST_PARAGRAPH_WORDS:
            yield finding("long-paragraph", line, f"{words} words: {block}")
        if block.count(";") > 1:  # one sentence, one idea
            yield finding("semicolons", line, block)
        for sentence in sentences(block):
            words = len(sentence.split())
            if words > MOST_WORDS:
                yield finding("long-sentence", line, f"{words} words: {sentence}")
            statement = not sentence.rstrip().endswith("?")
            if statement and FRONTED.match(sentence) and not FRONTED_FINE.match(sentence):
                yield finding("fronted", line, sentence)


# Code


def package(name: str) -> str:
    """Return the folder that the allow-list counts by: at most three levels."""
    return "/".join(Path(name).parent.parts[:3])


def code_findings(name: str, source: str) -> Iterator[Finding]:
    """Check docstrings and the messages of exceptions of one module."""

    def finding(rule: str, line: int, shown: str) -> Finding:
        return Finding(rule=rule, scope=package(name), place=f"{name}:{line}", text=shown)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    for word in listed_words(part.value):
                        yield finding("message-word", part.lineno, word)
        statements = getattr(node, "body", None)
        for item in statements if isinstance(statements, list) else ():
            text = _docstring(item)
            if text is None:
                continue
            if DOCSTRING_OPENER.match(text):
                yield finding("docstring-opener", item.lineno, text)
            for word in listed_words(text):
                yield finding("docstring-word", item.lineno, word)


def _docstring(statement: ast.stmt) -> str | None:
    """Return the text of a docstring, also of the one below a field."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return None


def mood_findings() -> Iterator[Finding]:
    """Check by ruff's D401 that docstrings of functions begin with an imperative verb."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    command = [ruff, "check", "--isolated", "--select=D401", "--output-format=json", *SOURCES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for each in json.loads(done.stdout):
        name = str(Path(each["filename"]).relative_to(ROOT))
        shown = each["message"].partition(": ")[2]
        place = f"{name}:{each['location']['row']}"
        yield Finding(rule="docstring-mood", scope=package(name), place=place, text=shown)


# Commits


def subject_findings(base: str = "origin/main") -> Iterator[Finding]:
    """Check the subjects of the commits since `base`; a clone without it has none to check."""
    command = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%h %s", f"{base}..HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        commit, _, subject = line.partition(" ")
        for problem in subject_problems(subject):
            yield Finding(rule="subject", scope="commits", place=commit, text=problem)


def subject_problems(subject: str) -> list[str]:
    """Return what is wrong with a commit's subject."""
    problems: list[str] = []
    if len(subject) > MOST_SUBJECT_CHARACTERS:
        problems.append(f"{len(subject)} characters: {subject}")
    if not subject[:1].isupper():  # "Add ...", as git's own messages
        problems.append(f"begins with a lower-case letter: {subject}")
    if subject.endswith("."):
        problems.append(f"ends with a period: {subject}")
    return problems


# The allow-list


def findings() -> list[Finding]:
    """Check everything."""
    results = [*mood_findings(), *subject_findings()]
    names = [name for name in tracked(*PAGES) if not GENERATED.search(name)]
    pages = {name: (ROOT / name).read_text() for name in names if not DESIGN.search(name)}
    results += size_findings(pages)
    pages |= {name: (ROOT / name).read_text() for name in names if name.startswith(RECORDS)}
    for name, text in pages.items():
        results += page_findings(name, text)
    for name in tracked(*(f"{folder}/*.py" for folder in SOURCES)):
        results += code_findings(name, (ROOT / name).read_text())
    return results


def allowed() -> dict[str, dict[str, int]]:
    """Return by rule and scope how many findings are tolerated for now."""
    return json.loads(ALLOWED.read_text())


def counts(results: Sequence[Finding]) -> dict[str, Counter[str]]:
    """Count findings by rule and scope."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for each in results:
        counted[each.rule][each.scope] += 1
    return counted


def above(
    results: Sequence[Finding], limits: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield rule, scope, count and limit where there are more findings than tolerated."""
    for rule, scopes in counts(results).items():
        for scope, count in scopes.items():
            limit = limits.get(rule, {}).get(scope, 0)
            if count > limit:
                yield rule, scope, count, limit


def not_needed(
    results: Sequence[Finding], limits: Mapping[str, Mapping[str, int]]
) -> list[tuple[str, str]]:
    """Return entries whose scope has at most half of what they tolerate."""
    counted = counts(results)
    return [
        (rule, scope)
        for rule, scopes in limits.items()
        for scope, limit in scopes.items()
        if counted.get(rule, Counter())[scope] * 2 <= limit
    ]


def shrunk(
    results: Sequence[Finding], limits: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the limits lowered to what is there; an entry without findings is left out."""
    counted = counts(results)
    new: dict[str, dict[str, int]] = {}
    for rule, scopes in sorted(limits.items()):
        lowered = {
            scope: min(limit, counted.get(rule, Counter())[scope])
            for scope, limit in sorted(scopes.items())
        }
        new[rule] = {scope: limit for scope, limit in lowered.items() if limit}
    return new


def print_places(
    results: Sequence[Finding], over: Collection[tuple[str, str]], *, all_: bool
) -> None:
    """Print places that break a rule: all of them, or the first few of each scope above its limit.

    Args:
        results: what was found.
        over: rules and scopes above their limits.
        all_: also tolerated places, without a bound.
    """
    printed: Counter[tuple[str, str]] = Counter()
    for each in results:
        key = (each.rule, each.scope)
        if all_ or (key in over and printed[key] < MOST_PLACES):
            printed[key] += 1
            print(each.line())


def main(argv: Sequence[str] | None = None) -> int:
    """Print what breaks the rules; 1 if more does than is tolerated, or half as much."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also print tolerated places")
    parser.add_argument("--shrink", action="store_true", help="lower the allow-list's numbers")
    arguments = parser.parse_args(argv)
    results, limits = findings(), allowed()
    over = list(above(results, limits))
    unneeded = [] if arguments.shrink else not_needed(results, limits)
    for rule, scope, count, limit in over:
        print(f"{scope}: {rule}: {count} places, {limit} tolerated")
    for rule, scope in unneeded:
        print(f"{scope}: {rule}: twice as many tolerated as there are; run with --shrink")
    if arguments.all or over:
        print_places(results, {(rule, scope) for rule, scope, _, _ in over}, all_=arguments.all)
    if arguments.shrink:
        ALLOWED.write_text(json.dumps(shrunk(results, limits), indent=2) + "\n")
    return 1 if over or unneeded else 0


if __name__ == "__main__":
    sys.exit(main())
