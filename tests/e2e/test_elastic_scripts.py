"""A script of the user's own goes on with fewer ranks where a node is lost, and grows back.

`make test-all WHAT=scripts` runs it. The script uses the client, so nothing is lost while
it shrinks, as its node's end is announced; and while it grows, what it does until its new record is
there.
"""

from __future__ import annotations

from itertools import groupby, pairwise

from tests.e2e.announcers import ANNOUNCERS, Marker
from tests.e2e.scripts.blows import mortal_node
from tests.e2e.scripts.script_job import PROGRAMS, SAVED_EVERY, STEPS, begin
from tests.e2e.site import SLEEPER, Site
from tests.kube import phase_is


def test_a_script_shrinks_without_loss_and_grows_back(site: Site) -> None:
    job = begin(site, "elastic", program=PROGRAMS["ddp"], level="L1", minNodes=1)
    job.rehearsal.reach(5)
    taken = {pod["spec"]["nodeName"] for pod in job.rehearsal.members().values()}
    (spare,) = (node.name for node in site.cluster.nodes if node.name not in taken)
    host = {"kubernetes.io/hostname": spare}
    site.submit("other", gpusPerNode=2, template=SLEEPER, nodeSelector=host)
    site.wait("other", phase_is("Running"))
    before = job.lines()[-1].life
    with Marker(site.cluster, mortal_node(job).name) as marker:
        ANNOUNCERS["Azure"].play(marker)
        small = job.wait_for_life(before, ranks=1)
    large = job.wait_for_life(small[0].life, ranks=2)
    job.rehearsal.hurry()
    job.rehearsal.finish()
    lives = [[line.step for line in lines] for _, lines in groupby(job.lines(), lambda at: at.life)]
    lost = [max(old) - new[0] + 1 for old, new in pairwise(lives)]
    print(f"steps lost: {lost[0]} by shrinking, {lost[1]} by growing")
    assert [line.ranks for line in (small[0], large[0])] == [1, 2]
    assert {step for steps in lives for step in steps} == set(range(1, STEPS + 1))
    assert lost[0] == 0
    assert 0 <= lost[1] <= SAVED_EVERY + 1
