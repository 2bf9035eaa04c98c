"""The rules over a TrainingJob's whole spec as a ValidatingAdmissionPolicy, beside its CRD.

The API server works out every CEL rule of a CRD at each write of an object. A status write never
changes the spec, but costs all of its rules again, each of which copies the schema of all 25 fields
at each look at one of them: a quarter to a third of what the write costs (docs/benchmarks.md). A
policy is asked where an object is created and where its spec changes, and for nothing else.

So the chart installs the CRD without those rules and this policy. `crds/`, for whoever installs the
CRDs alone, has all rules in the CRD. Both come from the models: what is refused, and in which
sentences, is the same. Rules of smaller parts stay in the CRD: they are cheap.
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
"""Of the policy and of its binding: like the CRD's, there is one in a cluster."""
_API: Final = "admissionregistration.k8s.io/v1"
_SELF: Final = re.compile(r"\b(self|oldSelf)\b")


def spec_policy() -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy and its binding, which denies.

    Admission comes after the schema (`rest.BeforeCreate`), so the rules see defaults and bounds. A
    job that was stored before a rule existed can still be labelled and deleted: only a spec that
    changes is asked about, as the CRD's ratcheting does.
    """
    complaints = ",\n  ".join(_complaint(rule, at) for at, rule in _rules() if not _is_change(rule))
    changes = ",\n  ".join(_complaint(rule, at) for at, rule in _rules() if _is_change(rule))
    every = f"([\n  {complaints}\n]\n+ (request.operation == 'CREATE' ? [] : [\n  {changes}\n]))"
    policy = {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["trainingjobs"],
                    }
                ]
            },
            "matchConditions": [
                {
                    "name": "the-spec-is-new",
                    "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
                }
            ],
            "variables": [
                {"name": "complaints", "expression": BlockText(f"{every}.filter(text, text != '')")}
            ],
            "validations": [
                {
                    "expression": "variables.complaints.size() == 0",
                    "message": "the spec is not valid",
                    "messageExpression": "variables.complaints.join('; ')",
                }
            ],
        },
    }
    binding = {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
    return policy, binding


def _rules() -> Iterator[tuple[str, Rule]]:
    """The rules, and the path of the object that `self` is in each."""
    yield from (("", rule) for rule in TrainingJob.rules)
    yield from ((".spec", rule) for rule in TrainingJobSpec.rules)


def _is_change(rule: Rule) -> bool:
    """Whether it compares with the object before: the CRD skips such a rule on creation."""
    return "oldSelf" in rule.rule


def _complaint(rule: Rule, at: str) -> str:
    """CEL of what a rule says: the field's path and the message, or empty where it holds."""
    path = f"{at}{rule.field_path or ''}".removeprefix(".")
    prefix = f"{path}: " if path else ""
    text = _text(prefix + rule.message)
    if rule.message_expression is not None:
        text = f"{_text(prefix)} + ({_here(rule.message_expression, at)})"
    return f"({_here(rule.rule, at)}) ? '' : {text}"


def _here(expression: str, at: str) -> str:
    """The expression of a CRD in the words of a policy."""
    names = {"self": f"object{at}", "oldSelf": f"oldObject{at}"}
    return _SELF.sub(lambda name: names[name[1]], expression)


def _text(text: str) -> str:
    """A CEL string."""
    return json.dumps(text)
