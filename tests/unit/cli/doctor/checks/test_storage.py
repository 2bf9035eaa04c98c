from __future__ import annotations

from drumline_cli.doctor.checks.storage import shared_storage
from drumline_cli.doctor.facts import ClaimFact, ClassFact, JobFact
from drumline_cli.doctor.results import CheckFailed, Passed, Warned
from tests.texts import missing


def a_claim(name: str, *modes: str) -> ClaimFact:
    return ClaimFact(namespace="team", name=name, phase="Bound", access_modes=frozenset(modes))


def a_job(*, nodes: int, claim: str | None) -> JobFact:
    return JobFact(namespace="team", name="gpt", nodes=nodes, claim=claim)


def test_a_gang_whose_claim_mounts_on_a_single_node_fails_and_a_single_pod_does_not() -> None:
    claims = (a_claim("shared", "ReadWriteMany"), a_claim("block", "ReadWriteOnce"))
    (result,) = shared_storage(claims, (), (a_job(nodes=4, claim="block"),))
    assert isinstance(result, CheckFailed)
    assert not missing(result.message, "4 nodes", "ReadWriteOnce")
    for job in (a_job(nodes=1, claim="block"), a_job(nodes=4, claim="shared")):
        (well,) = shared_storage(claims, (), (job,))
        assert well == Passed(message="1 ReadWriteMany claim bound")


def test_a_claim_that_does_not_exist_fails() -> None:
    claims = (a_claim("shared", "ReadWriteMany"),)
    (result,) = shared_storage(claims, (), (a_job(nodes=1, claim="shraed"),))
    assert isinstance(result, CheckFailed)
    assert not missing(result.message, "claim shraed")


def test_without_claims_a_class_decides() -> None:
    shared = ClassFact(name="fast", provisioner="filestore.csi.storage.gke.io")
    block = ClassFact(name="standard", provisioner="pd.csi.storage.gke.io")
    (able,) = shared_storage((), (block, shared), ())
    assert isinstance(able, Passed)
    assert not missing(able.message, "StorageClass fast", "ReadWriteMany")
    (none,) = shared_storage((a_claim("block", "ReadWriteOnce"),), (block,), ())
    assert isinstance(none, Warned)
