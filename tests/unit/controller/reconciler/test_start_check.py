"""A start is checked against what the API server stores and would admit. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from drumline.controller.reconciler import start_check
from drumline.controller.reconciler.start_check import StartCheck
from drumline.kube.client import KubeClient
from drumline.kube.views import Key, PodView
from drumline.lifecycle.manifests.children import token_secret, token_secret_name
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.start_check import StartDoubt, StartRefusal
from drumline_api.podprofile import PodProfile
from drumline_contract import pod_name
from tests.builders import a_job, admitted, with_status
from tests.patience import HANG_SECONDS
from tests.texts import missing
from tests.unit.controller.app.fake_api import FakeApi

Json = dict[str, Any]
GPUS = PoolGpus(resource="nvidia.com/gpu")
OWNED = {"drumline.dev/job-uid": "u"}
PULLS = {"image": "any:1", "command": ["true"], "imagePullSecrets": ["registry"]}


def template(**fields: Any) -> Json:
    return {"image": "any:1", "command": ["true"], **fields}


def mounting(**source: Any) -> Json:
    mount = {"name": "v", "mountPath": "/v"}
    return template(volumes=[{"name": "v", **source}], volumeMounts=[mount])


def named(kind: str, name: str, **fields: Any) -> tuple[str, Json]:
    return kind, {"metadata": {"name": name, "namespace": "team"}, **fields}


def quota(*, scopes: list[str] | None = None, **hard: str) -> tuple[str, Json]:
    amounts = {name.replace("__", "/"): value for name, value in hard.items()}
    fields = {"spec": {"hard": amounts, "scopes": scopes}, "status": {"hard": amounts, "used": {}}}
    return named("resourcequotas", "few", **fields)


@asynccontextmanager
async def checking(
    *objects: tuple[str, Json],
    refusals: dict[str, tuple[int, str, str]] | None = None,
    gpus: PoolGpus = GPUS,
    **settings: Any,
) -> AsyncIterator[StartCheck]:
    api = FakeApi()
    api.refusals = refusals or {}
    for plural, document in objects:
        api.put(plural, document)
    async with api.serving() as credentials, KubeClient(credentials) as client:
        yield StartCheck(
            client=client,
            pods=PodSettings(trainer_image="trainer:1", join_image="join:1"),
            gpus_of=lambda _: gpus,
            terminates=lambda _: False,
            **settings,
        )


async def refusal_of(job: Job, *objects: tuple[str, Json], **site: Any) -> str:
    """Why the start would be refused; empty: it would not."""
    async with checking(*objects, **site) as check:
        refusal = await check.refusal(job)
    assert not isinstance(refusal, StartDoubt)
    return "" if refusal is None else refusal.message


def starting(**spec: Any) -> Job:
    return admitted(a_job(**{"template": template(), **spec}))


@pytest.mark.parametrize(
    ("spec", "obj", "words"),
    [
        (mounting(secret={"name": "keys"}), ("secrets", "keys"), 'secret "keys" not found'),
        (
            mounting(configMap={"name": "code"}),
            ("configmaps", "code"),
            'configmap "code" not found',
        ),
        (
            template(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "k", "key": "a"}}}]),
            ("secrets", "k"),
            'secret "k" not found',
        ),
        (
            template(envFrom=[{"prefix": "WANDB_", "configMapRef": {"name": "c"}}]),
            ("configmaps", "c"),
            'configmap "c" not found',
        ),
        (PULLS, ("secrets", "registry"), 'image pull secret "registry" not found'),
    ],
    ids=["secret", "config map", "variable", "variables", "pull secret"],
)
async def test_every_object_that_a_pod_must_have_has_to_exist(
    spec: Json, obj: tuple[str, str], words: str
) -> None:
    job = starting(template=spec)
    assert await refusal_of(job) == words
    there = {"metadata": {"name": obj[1], "namespace": "team"}, "kind": ""}
    assert await refusal_of(job, (obj[0], there)) == ""


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        (None, 'csidriver "b.example.com" not found'),
        (["Persistent"], 'csidriver "b.example.com" has no Ephemeral in volumeLifecycleModes'),
        (["Persistent", "Ephemeral"], ""),
    ],
)
async def test_the_driver_of_an_inline_volume_has_to_serve_it(
    modes: list[str] | None, words: str
) -> None:
    driver = {"metadata": {"name": "b.example.com"}, "spec": {"volumeLifecycleModes": modes}}
    objects = [("csidrivers", driver)] if modes else []
    job = starting(template=mounting(csi={"driver": "b.example.com"}))
    assert await refusal_of(job, *objects) == words


async def test_the_objects_of_roles_and_of_the_pools_profile_count() -> None:
    role = {"name": "eval", "envFrom": [{"prefix": "WANDB_", "secretRef": {"name": "wandb"}}]}
    job = admitted(a_job(template=template(), roles=[role]), nodes=("a", "b", "c"))
    assert not missing(await refusal_of(job), 'secret "wandb"')
    volume = {"name": "net", "configMap": {"name": "nccl"}}
    fields = {"volumes": [volume], "volumeMounts": [{"name": "net", "mountPath": "/net"}]}
    profile = PodProfile.model_validate(fields)
    assert not missing(await refusal_of(starting(), gpus=replace(GPUS, profile=profile)), '"nccl"')


async def test_a_start_with_requests_that_its_places_do_not_count_waits_for_others() -> None:
    job, learned = starting(), list[tuple[int, bool]]()

    def learn(of: Job, *, index: int, requests: Mapping[str, int]) -> bool:
        learned.append((index, of is job and "cpu" in requests))
        return len(learned) == 1

    async with checking(learn=learn) as check:
        assert isinstance(await check.refusal(job), StartDoubt)
        assert await check.refusal(job) is None
    assert learned == [(0, True), (0, True)]


@pytest.mark.parametrize("error", [(403, "Forbidden", "no right"), (422, "Invalid", "a policy")])
async def test_an_object_that_cannot_be_looked_for_refuses_no_start(
    error: tuple[int, str, str],
) -> None:
    job = starting(template=mounting(configMap={"name": "code"}))
    assert await refusal_of(job, refusals={"configmaps": error}) == ""
    failed = job.status.model_copy(
        update={"failed_starts": 1, "incident": 'FailedMount: configmap "code" not found'}
    )
    async with checking(refusals={"configmaps": error}) as check:
        assert isinstance(await check.refusal(with_status(job, failed)), StartDoubt)


async def test_a_webhook_that_does_not_answer_ends_the_checks_of_its_namespace_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cycle waits for a check, and with it the jobs of all namespaces."""
    monkeypatch.setattr(start_check, "CHECK_SECONDS", 0.05)
    answered, now, asked = asyncio.Event(), 100.0, 0

    class Hanging(FakeApi):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            nonlocal asked
            if request.method == "POST" and request.path.endswith("/namespaces/team/pods"):
                asked += 1
                await answered.wait()
            return await super().handle(request)

    async with Hanging().serving() as credentials, KubeClient(credentials) as client:
        check = StartCheck(
            client=client,
            pods=PodSettings(trainer_image="trainer:1", join_image="join:1"),
            gpus_of=lambda _: GPUS,
            terminates=lambda _: False,
            clock=lambda: now,
        )
        for _ in range(3):
            doubt = await check.refusal(starting())
            assert isinstance(doubt, StartDoubt)
            assert not missing(doubt.message, "could not be checked", "needs more than")
        assert asked == 1
        monkeypatch.setattr(start_check, "CHECK_SECONDS", HANG_SECONDS)
        elsewhere = replace(starting(), namespace="other")
        assert await check.refusal(elsewhere) is None
        answered.set()
        now += start_check.UNCHECKED_SECONDS
        assert await check.refusal(starting()) is None


async def test_a_volume_without_a_class_needs_a_provisioner_in_the_default_class() -> None:
    local = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"}
    waits = ("storageclasses", {**local, "volumeBindingMode": "WaitForFirstConsumer"})
    job = starting(template=scratch())
    refusal = await refusal_of(job, waits, default_class=lambda: "local")
    assert not missing(refusal, "no claim of volume v", "local")
    assert await refusal_of(job, waits) == "", "the default class is not known"


def limit_range(bounds: Json, *, kind: str = "PersistentVolumeClaim") -> tuple[str, Json]:
    return named("limitranges", "small", spec={"limits": [{"type": kind, **bounds}]})


def scratch(storage: str = "10Gi") -> Json:
    spec = {"resources": {"requests": {"storage": storage}}}
    return mounting(ephemeral={"volumeClaimTemplate": {"spec": spec}})


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"max": {"storage": "10Gi"}}, ()),
        ({"max": {"storage": "9Gi"}}, ("LimitRange small", "volume v", "at most 9663676416")),
        ({"min": {"storage": "11Gi"}}, ("LimitRange small", "at least 11811160064")),
        ({"min": {"storage": "10Gi"}, "max": {"storage": "1Ti"}}, ()),
        ({"max": {"cpu": "1"}}, ()),
    ],
)
async def test_a_claim_that_is_made_for_a_pod_must_be_within_the_limits(
    bounds: Json, words: tuple[str, ...]
) -> None:
    refusal = await refusal_of(starting(template=scratch()), limit_range(bounds))
    assert bool(refusal) == bool(words)
    assert not missing(refusal, *words)


async def test_limits_of_other_types_and_of_other_claims_refuse_no_start() -> None:
    large = {"max": {"storage": "1Gi"}}
    assert await refusal_of(starting(template=scratch()), limit_range(large, kind="Pod")) == ""
    assert await refusal_of(starting(), limit_range(large)) == "", "it makes no claim"


async def test_a_start_that_the_api_server_cannot_answer_is_in_doubt() -> None:
    webhook = 'failed calling webhook "policy": context deadline exceeded'
    async with checking(refusals={"pods": (400, "BadRequest", webhook)}) as check:
        assert isinstance(await check.refusal(starting()), StartRefusal)
    wrong = named("resourcequotas", "few", spec={"hard": {"pods": "many"}})
    async with checking(wrong) as check:
        doubt = await check.refusal(starting())
    assert isinstance(doubt, StartDoubt)
    assert not missing(doubt.message, "could not be checked")


async def test_a_webhook_without_dry_runs_says_nothing_about_a_start() -> None:
    words = 'admission webhook "w" does not support dry run'
    assert await refusal_of(starting(), refusals={"pods": (400, "BadRequest", words)}) == ""


SCRATCH = mounting(
    ephemeral={
        "volumeClaimTemplate": {
            "spec": {"resources": {"requests": {"storage": "10Gi"}}, "storageClassName": "fast"}
        }
    }
)
ANY_CLASS = mounting(
    ephemeral={"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "10Gi"}}}}}
)
FAST = ("storageclasses", {"metadata": {"name": "fast"}, "provisioner": "disks.example.com"})
OF_FAST = "fast.storageclass.storage.k8s.io"


@pytest.mark.parametrize(
    ("spec", "hard", "short"),
    [
        (template(), {"pods": "2"}, ""),
        (template(), {"pods": "1"}, "pods needs 2"),
        (template(), {"count__pods": "1"}, "count/pods needs 2"),
        (template(), {"requests.nvidia.com__gpu": "3"}, "requests.nvidia.com/gpu needs 4"),
        (SCRATCH, {"persistentvolumeclaims": "1"}, "persistentvolumeclaims needs 2"),
        (SCRATCH, {"count__persistentvolumeclaims": "1"}, "needs 2"),
        (SCRATCH, {"requests.storage": "15Gi"}, "requests.storage needs"),
        (SCRATCH, {"requests.storage": "20Gi"}, ""),
        (
            SCRATCH,
            {f"{OF_FAST}__persistentvolumeclaims": "1"},
            f"{OF_FAST}/persistentvolumeclaims needs",
        ),
        (SCRATCH, {f"{OF_FAST}__requests.storage": "15Gi"}, f"{OF_FAST}/requests.storage needs"),
        (ANY_CLASS, {f"{OF_FAST}__requests.storage": "15Gi"}, f"{OF_FAST}/requests.storage"),
        (template(launch="PerGpu"), {"count__secrets": "0"}, "count/secrets needs 1"),
        (template(launch="PerGpu"), {"secrets": "1"}, ""),
    ],
)
async def test_quotas_count_everything_that_a_start_creates(
    spec: Json, hard: dict[str, str], short: str
) -> None:
    job = starting(template=spec)
    message = await refusal_of(job, FAST, quota(**hard), default_class=lambda: "fast")
    assert not missing(message, short) if short else message == ""


@pytest.mark.parametrize(("pods", "in_doubt"), [("4", True), ("5", True), ("6", False)])
async def test_jobs_that_start_before_use_the_quota_first(pods: str, *, in_doubt: bool) -> None:
    """Three jobs of two pods each. Nothing is wrong with the last one, so it does not fail."""
    before = [replace(starting(), uid=uid, name=uid) for uid in ("a", "b")]
    async with checking(quota(pods=pods)) as check:
        assert await check.refusal(starting()) is None
        doubt = await check.refusal(starting(), promised=before)
        assert await check.refusal(starting(), promised=before, replaces=True) is None
    assert isinstance(doubt, StartDoubt) == in_doubt
    if isinstance(doubt, StartDoubt):
        assert not missing(doubt.message, "pods needs 6", "start before it")


async def test_the_pods_of_a_job_that_starts_before_are_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 500 checks in a cycle would make the pods of all jobs before it."""
    made: list[str] = []

    def counted(job: Job, **settings: Any) -> list[Json]:
        made.append(job.name)
        return pod_manifests(job, **settings)

    monkeypatch.setattr(start_check, "pod_manifests", counted)
    before = [replace(starting(), uid=name, name=name) for name in ("a", "b")]
    async with checking(quota(pods="6")) as check:
        for _ in range(3):
            assert await check.refusal(starting(), promised=before) is None
        assert sorted(made) == ["a", "b", "llama", "llama", "llama"]
        await check.refusal(starting(), promised=[replace(before[0], status=before[1].status)])
    assert made.count("a") == 2


async def test_a_start_behind_too_many_others_waits_if_its_namespace_has_a_quota() -> None:
    before = [replace(starting(), uid=str(n)) for n in range(start_check.MAX_PROMISED + 1)]
    async with checking(quota(pods="1000")) as check:
        doubt = await check.refusal(starting(), promised=before)
        assert await check.refusal(starting(), promised=before[1:]) is None
    assert isinstance(doubt, StartDoubt)
    assert not missing(doubt.message, "65 jobs of its namespace")
    async with checking() as check:
        assert await check.refusal(starting(), promised=before) is None


@pytest.mark.parametrize(
    ("scopes", "refused"),
    [(["NotBestEffort"], True), (["BestEffort"], False), (["Terminating"], False)],
)
async def test_a_quota_counts_the_pods_of_its_scopes_alone(
    scopes: list[str], refused: bool
) -> None:
    assert bool(await refusal_of(starting(), quota(pods="1", scopes=scopes))) == refused


async def test_claims_for_devices_count() -> None:
    gpus = replace(GPUS, by_claims=True, device_class="gpu.nvidia.com")
    name = "gpu.nvidia.com.deviceclass.resource.k8s.io__devices"
    assert not missing(await refusal_of(starting(), quota(**{name: "3"}), gpus=gpus), "needs 4")
    name = "count__resourceclaims.resource.k8s.io"
    assert not missing(await refusal_of(starting(), quota(**{name: "1"}), gpus=gpus), "needs 2")


@pytest.mark.parametrize(
    "name",
    [
        "count__resourceclaims.resource.k8s.io",
        "compute-domain-default-channel.nvidia.com.deviceclass.resource.k8s.io__devices",
    ],
)
async def test_the_claims_of_channels_count(name: str) -> None:
    job = starting(computeDomain={})
    assert not missing(await refusal_of(job, quota(**{name: "1"})), "needs 2")
    assert not await refusal_of(job, quota(**{name: "2"}))


async def test_the_jobs_of_a_group_count_together() -> None:
    first, second = starting(), replace(starting(), uid="2" * 36, name="second")
    async with checking(quota(pods="3")) as check:
        assert await check.refusal(first) is None
        refusal = await check.refusal(first, beside=[second])
        assert isinstance(refusal, StartRefusal)
        assert not missing(refusal.message, "pods needs 4")
    async with checking(quota(pods="1")) as check:
        assert await check.refusal(first, leaving=[second]) is None


@pytest.mark.parametrize("kind", ["poddisruptionbudgets", "secrets", "networkpolicies"])
async def test_an_object_beside_the_pods_that_would_be_rejected_refuses_the_start(
    kind: str,
) -> None:
    job = starting(template=template(launch="PerGpu"))
    full = (403, "Forbidden", "exceeded quota: few, requested: count=1")
    assert not missing(await refusal_of(job, refusals={kind: full}), "beside its pods", "quota")


FULL = (403, "Forbidden", "exceeded quota: few, requested: count=1")


async def test_a_full_quota_refuses_no_start_whose_objects_exist() -> None:
    """The API server refuses a create before it looks for the name."""
    first = starting(template=template(launch="PerGpu"))
    again = with_status(first, first.status.model_copy(update={"generation": 2}))
    assert await refusal_of(again, refusals={"secrets": FULL}) == ""
    # The last start failed because it could not be created.
    incident = f'secrets "{token_secret_name(again)}" is forbidden: exceeded quota'
    failed = with_status(again, again.status.model_copy(update={"incident": incident}))
    assert not missing(await refusal_of(failed, refusals={"secrets": FULL}), "Secret", "quota")
    # Not a quota, but a policy.
    denied = (403, "Forbidden", "denied by a policy")
    assert not missing(await refusal_of(again, refusals={"secrets": denied}), "policy")


@pytest.mark.parametrize("kind", ["poddisruptionbudgets", "networkpolicies"])
async def test_a_full_quota_refuses_no_start_where_the_namespace_has_the_shared_objects(
    kind: str,
) -> None:
    job = starting(template=template(launch="PerGpu"))
    assert await refusal_of(job, named(kind, SHARED_NAME), refusals={kind: FULL}) == ""


async def test_a_token_secret_that_exists_is_no_obstacle() -> None:
    job = starting(template=template(launch="PerGpu"))
    secret = {**token_secret(job, b"t"), "kind": ""}
    assert await refusal_of(job, ("secrets", secret)) == ""


async def test_the_claims_of_the_pools_profile_have_to_exist() -> None:
    volume = {"name": "net", "persistentVolumeClaim": {"claimName": "plugins"}}
    profile = PodProfile.model_validate({"volumes": [volume]})
    gpus = replace(GPUS, profile=profile)
    assert not missing(await refusal_of(starting(), gpus=gpus), '"plugins" not found')
    claim = named("persistentvolumeclaims", "plugins", spec={"volumeName": "pv"})
    assert await refusal_of(starting(), claim, gpus=gpus) == ""


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [({}, True), ({"terminating": True}, False), ({"labels": OWNED, "owner_uid": "u"}, False)],
)
async def test_a_pod_of_another_owner_with_a_members_name_refuses_the_start(
    fields: Json, is_taken: bool
) -> None:
    job = starting()
    name = pod_name(job.name, 1, 1)
    other = PodView(namespace="team", name=name, uid="p", resource_version="1", **fields)
    pods = {Key("team", name): other}
    message = await refusal_of(job, pod_of=pods.get)
    assert not missing(message, name, "already exists") if is_taken else message == ""


async def test_a_job_without_agents_needs_no_secret() -> None:
    alone = admitted(a_job(template=template(), nodes=1), nodes=("a",))
    assert await refusal_of(alone, quota(count__secrets="0")) == ""


async def test_the_pods_of_roles_are_counted_and_tried() -> None:
    roles = [{"name": "eval", "nodes": 2}, {"name": "log"}]
    job = admitted(a_job(template=template(), roles=roles), nodes=("a", "b", "c", "d", "e"))
    assert not missing(await refusal_of(job, quota(pods="4")), "pods needs 5")
    api = FakeApi()
    async with api.serving() as credentials, KubeClient(credentials) as client:
        settings = PodSettings(trainer_image="trainer:1", join_image="join:1")
        check = StartCheck(
            client=client, pods=settings, gpus_of=lambda _: GPUS, terminates=lambda _: False
        )
        assert await check.refusal(job) is None
    assert api.requests.count("POST /api/v1/namespaces/team/pods") == 3
    assert not any(map(api.objects, ("pods", "secrets", "networkpolicies")))
