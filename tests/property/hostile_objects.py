"""Objects as nobody means them: from the CRDs' own schemas, then mutated.

Numbers stand at their bounds, texts are long, empty, of odd scripts or steer a terminal, values are
deep, wide or of another type, and overrides set every field of the trainer. CEL rules are not
evaluated: what they forbid arrives too, as it would from an older version of the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

from drumline_api.crds import DEFINITIONS
from drumline_contract.config import TrainerConfig
from drumline_contract.config.decoding import FieldKind, field_kinds
from tools.generate.trainer_reference import sections_of

Json = dict[str, Any]

TEXTS = (
    *("a", "q", "h100", "rack", "team", "any:1", "cpu", "memory", "nvidia.com/gpu", "a.b/c-d_e"),
    *("1", "0", "4", "500m", "1.5Gi", "9" * 32, "-1", "1e999", "99999999Ei", "0.0000000001"),
    *("x" * 63, "x" * 64, "y" * 253, "z" * 9000, "", " ", ".", "..", "/", "a/../b", "**/*", "$(A)"),
    *(
        "Grüße",
        "日本語",
        "a\N{NO-BREAK SPACE}b",
        "a\u2003b",
        "e\u0301",
        "\U0001f600" * 40,
        "\ufeff",
    ),
    *(
        "\x1b[2J",
        "\x00",
        "\x7f",
        "\u202egnp",
        "\u2028",
        "a\nb",
        "\ud800",
        '"',
        "\\",
        "%s{0}",
        "null",
    ),
    *("2026-01-01T00:00:00Z", "2026-13-45T99:99:99Z", "9999-12-31T23:59:59Z", "True", "False"),
)
QUANTITIES = (
    *("0", "1", "8", "-1", "500m", "1n", "0.1", "1e3", "64Gi", "1E", "9223372036854775807", "8E"),
    *("99999999999999999999Ei", "9" * 64, "1" * 65, "x", "", "1e999999999", "-9223372036854775808"),
)
NUMBERS = (
    *(0, 1, 2, 3, 8, -1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.5, 1.0, 1e308, -1e308, 5e-324),
)


def kinds() -> dict[str, Json]:
    """The schema of each kind of ours."""
    return {
        each.kind: each.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in DEFINITIONS
    }


@cache
def texts_for(pattern: str, longest: int) -> tuple[str, ...]:
    """The texts that the schema admits; where there is none, all of them."""
    fitting = tuple(
        text for text in TEXTS if len(text) <= longest and re.search(pattern, text) is not None
    )
    return fitting or TEXTS


def valid(schema: Json, dice: Random, *, fill: float = 0.3) -> Any:
    """A value that the schema admits, optional fields with the probability `fill`."""
    if "enum" in schema:
        return dice.choice(schema["enum"])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return overrides(dice)
    match schema.get("type", "string"):
        case "object" if "properties" in schema:
            required = schema.get("required", [])
            return {
                name: valid(below, dice, fill=fill)
                for name, below in schema["properties"].items()
                if name in required or dice.random() < fill
            }
        case "object":
            below = schema.get("additionalProperties", {})
            return {dice.choice(TEXTS[:10]): valid(below, dice) for _ in range(dice.randint(0, 3))}
        case "array":
            most = min(schema.get("maxItems", 3), 3)
            count = dice.randint(min(schema.get("minItems", 0), most), most)
            return [valid(schema["items"], dice, fill=fill) for _ in range(count)]
        case "integer":
            return number(schema, dice)
        case "number":
            return dice.choice((0.0, 0.5, 1.0, 1e6))
        case "boolean":
            return dice.random() < 0.5
        case _:
            return dice.choice(texts_for(schema.get("pattern", ""), schema.get("maxLength", 64)))


def number(schema: Json, dice: Random) -> int:
    """Small mostly, as the others contradict one another; else at a bound."""
    low, high = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
    if dice.random() < 0.7:
        return max(low, min(high, dice.choice((1, 1, 2, 4, 8, 16))))
    return dice.choice((low, low + 1, high - 1, high))


def options() -> Iterator[tuple[str, FieldKind]]:
    """Every option of the trainer with its path."""
    for path, section in sections_of(TrainerConfig):
        for name, kind in field_kinds(section).items():
            yield f"{path}{name}", kind


OPTIONS = tuple(options())


def overrides(dice: Random) -> Any:
    """Some options of the trainer, at their bounds and beyond; or anything."""
    if dice.random() < 0.1:
        return {"x": hostile(dice)}
    merged: Json = {}
    for _ in range(dice.randint(0, 3)):
        path, kind = dice.choice(OPTIONS)
        limit = kind.limit or 1
        value = dice.choice((limit, limit + 1, 0, 1, 2, 4, -1, -limit, hostile(dice), None, True))
        below = merged
        *sections, name = path.split(".")
        for section in sections:
            inner = below.setdefault(section, {})
            below = inner if isinstance(inner, dict) else {}
        below[name] = value
    return merged


def hostile(dice: Random) -> Any:
    """A value of any type and size."""
    match dice.randint(0, 9):
        case 0 | 1 | 2:
            return dice.choice(NUMBERS)
        case 3 | 4 | 5:
            return dice.choice(TEXTS)
        case 6:
            return dice.choice((None, True, False, [], {}, [None], {"a": None}))
        case 7:
            return nested(dice.choice((2, 17, 60, 300)), dice)
        case 8:
            return [dice.choice(NUMBERS)] * dice.choice((3, 400))
        case _:
            return {f"{text}{index}": 1 for index, text in enumerate(TEXTS)}


def nested(depth: int, dice: Random) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if dice.random() < 0.5 else {"a": value}
    return value


def mutated(value: Any, dice: Random) -> Any:
    """The same with something at a random place replaced, removed or added."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name = dice.choice(list(value))
        below = mutated(value[name], dice)
        return {**value, name: below}
    if isinstance(value, list) and value and dice.random() < 0.7:
        place = dice.randrange(len(value))
        return [*value[:place], mutated(value[place], dice), *value[place + 1 :]]
    return hostile(dice)


def metadata(dice: Random, name: str, **rest: Any) -> Json:
    """What the API server writes, and nobody else can."""
    return {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(dice.randint(1, 10**9)),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **rest,
    }


def some_pod(dice: Random, name: str, *, job: str, node: str) -> Json:
    """A pod as a tenant may write it: of ours by its labels, or not, bound past every scheduler."""
    labels = {
        "drumline.dev/job": job,
        "drumline.dev/job-uid": f"uid-{job}",
        "drumline.dev/index": dice.choice(("0", "1", "-1", "99999999999999999999", "1_0", "x")),
        "drumline.dev/generation": dice.choice(("1", "0", "007", "9" * 60)),
        "drumline.dev/queue": dice.choice(("q", "none")),
    }
    owner = {"uid": dice.choice((f"uid-{job}", "other")), "controller": dice.random() < 0.8}
    requests = {key: dice.choice(QUANTITIES) for key in ("cpu", "memory", "nvidia.com/gpu", "a/b")}
    deletion = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if dice.random() < 0.3 else {}
    state = {"terminated": {"exitCode": dice.choice((0, 1, 2**31)), "message": dice.choice(TEXTS)}}
    return {
        "metadata": metadata(
            dice, name, namespace="team", labels=labels, ownerReferences=[owner], **deletion
        ),
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": requests}}]},
        "status": {
            "phase": dice.choice(("Pending", "Running", "Succeeded", "Failed", "Odd")),
            "message": dice.choice(TEXTS),
            "containerStatuses": [{"name": "trainer", "state": state}],
        },
    }


def some_node(dice: Random, name: str) -> Json:
    """A node of pool h100, with what its kubelet or an administrator may write."""
    amounts = {key: dice.choice(QUANTITIES) for key in ("cpu", "memory", "pods", "nvidia.com/gpu")}
    taint = {"key": "a", "effect": dice.choice(("NoSchedule", "NoExecute", "Odd"))}
    condition = {"type": dice.choice(("Ready", "Odd")), "status": "True", "message": "m"}
    return {
        "metadata": metadata(dice, name, labels={"gpu": "h100", "rack": dice.choice(("r", ""))}),
        "spec": {"taints": [taint] if dice.random() < 0.2 else []},
        "status": {"allocatable": amounts, "conditions": [condition]},
    }
