"""Write the rules over a TrainingJob's whole spec as a ValidatingAdmissionPolicy.

The API server evaluates every CEL rule of a CRD at each write of an object. A status write never
changes the spec, but evaluates all of its rules again. Each rule copies the schema of all 25 fields
at each access to one of them. This is a quarter to a third of the cost of the write
(docs/benchmarks.md). A policy is evaluated only if an object is created or its spec changes.

The chart therefore installs the CRD without these rules, and this policy. `crds/`, for users who
install only the CRDs, has all rules in the CRD. Both are generated from the models, so they reject
the same objects with the same messages. Rules of smaller parts stay in the CRD, because they are
cheap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from drumline_api.base import GROUP, Rule
from drumline_api.manifest_yaml import BlockText
from drumline_api.trainingjob import TrainingJob, TrainingJobSpec

NAME: Final = f"trainingjobs.{GROUP}"
"""Name of the policy and of its binding. A cluster has one, as with the CRD."""
_API: Final = "admissionregistration.k8s.io/v1"
# Word boundaries keep `oldSelf` from matching as `self`.
_SELF: Final = re.compile(r"\b(self|oldSelf)\b")


def spec_policy() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the policy and its binding, which denies.

    Admission runs after the schema (`rest.BeforeCreate`), so the rules see defaults and bounds. A
    job that was stored before a rule existed can still be labelled and deleted: the policy checks
    only specs that change, like the CRD's ratcheting.
    """
    # Transition rules read oldObject, which is null on creation, so they are kept apart.
    complaints = ",\n  ".join(_complaint(rule, at) for at, rule in _rules() if not _is_change(rule))
    changes = ",\n  ".join(_complaint(rule, at) for at, rule in _rules() if _is_change(rule))
    # A list of texts, so that one answer contains all complaints.
    every = f"([\n  {complaints}\n]\n+ (request.operation == 'CREATE' ? [] : [\n  {changes}\n]))"
    policy = {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            # Fail: a server that cannot evaluate the policy must not admit an unchecked spec.
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        # All versions: the rules name fields that exist in each of them.
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["trainingjobs"],
                    }
                ]
            },
            "matchConditions": [
                {
                    "name": "the-spec-is-new",
                    # Label and finalizer writes leave the spec alone, and so cost one comparison.
                    "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
                }
            ],
            "variables": [
                # A variable is computed once, although two expressions use it.
                {"name": "complaints", "expression": BlockText(f"{every}.filter(text, text != '')")}
            ],
            "validations": [
                {
                    "expression": "variables.complaints.size() == 0",
                    "message": "the spec is not valid",
                    # A validation has one message, so the complaints are joined.
                    "messageExpression": "variables.complaints.join('; ')",
                }
            ],
        },
    }
    binding = {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        # Deny, not Audit or Warn: the operator relies on these rules.
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
    return policy, binding


def _rules() -> Iterator[tuple[str, Rule]]:
    """Return the rules, with the path of the object that `self` is in each."""
    yield from (("", rule) for rule in TrainingJob.rules)
    yield from ((".spec", rule) for rule in TrainingJobSpec.rules)


def _is_change(rule: Rule) -> bool:
    """Return whether the rule compares with the old object. A CRD skips such a rule on creation."""
    return "oldSelf" in rule.rule


def _complaint(rule: Rule, at: str) -> str:
    """Return the CEL of a rule's message: field path and message, or empty if the rule holds."""
    path = f"{at}{rule.field_path or ''}".removeprefix(".")
    # The path in the text, because a policy has no fieldPath.
    prefix = f"{path}: " if path else ""
    text = _text(prefix + rule.message)
    if rule.message_expression is not None:
        text = f"{_text(prefix)} + ({_here(rule.message_expression, at)})"
    return f"({_here(rule.rule, at)}) ? '' : {text}"


def _here(expression: str, at: str) -> str:
    """Convert an expression of a CRD to the variables of a policy."""
    names = {"self": f"object{at}", "oldSelf": f"oldObject{at}"}
    # One pass, so that a replaced name is not replaced again.
    return _SELF.sub(lambda name: names[name[1]], expression)


def _text(text: str) -> str:
    return json.dumps(text)
