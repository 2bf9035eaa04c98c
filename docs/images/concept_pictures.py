"""Pictures of the concept pages, one each.

`.venv/bin/python docs/images/concept_pictures.py` writes them again.
"""

from __future__ import annotations

from rank_cards import Picture


def jobs() -> None:
    """Draw a job of two Pods with an agent and four ranks each."""
    picture = Picture()
    picture.box("card", 250, 14, 260, 34)
    picture.text("s m", 380, 36, "operator: places all Pods in one decision")
    for pod in range(2):
        left = 60 + 340 * pod
        picture.shapes.append(f'<path class="line" fill="none" d="M380 48 L{left + 150} 84"/>')
        picture.box("card", left, 84, 300, 108)
        picture.text("t", left + 10, 104, f"Pod llama-{pod}")
        picture.box("O", left + 10, 114, 280, 22)
        picture.text("s m", left + 150, 130, "agent")
        for rank in range(4):
            picture.box("W", left + 10 + 71 * rank, 146, 66, 34)
            picture.text("s m", left + 43 + 71 * rank, 168, f"rank {4 * pod + rank}")
    picture.y = 200
    picture.write(
        "jobs",
        group="concept",
        title="A job of two Pods",
        told="The operator places both Pods; the agent of each Pod starts four ranks.",
    )


def queues() -> None:
    """Draw two queues of 64 GPUs, one of which borrows 16."""
    picture = Picture()
    for name, used, borrowed, note in (
        ("vision", 64, 16, "uses 80: 64 of its own and 16 borrowed"),
        ("nlp", 48, 0, "uses 48 of 64 and lends 16"),
    ):
        picture.text("t", 14, picture.y + 18, name)
        picture.box("hull", 110, picture.y, 64 * 6, 26)
        picture.box("W", 110, picture.y, used * 6, 26)
        picture.box("G", 110 + 64 * 6, picture.y, borrowed * 6, 26)
        picture.text("d", 110, picture.y + 44, note)
        picture.y += 62
    picture.text(
        "d", 110, picture.y + 4, "blue: own quota, orange: borrowed, white: lent to the cohort"
    )
    picture.y += 12
    picture.write(
        "queues",
        group="concept",
        title="Two queues of a cohort",
        told="vision borrows 16 of the 64 GPUs of nlp, which uses 48.",
    )


def pools() -> None:
    """Draw two racks of four nodes with eight GPUs, and a gang in one of them."""
    picture = Picture()
    used = {0: (8, 8, 0, 0), 1: (8, 8, 8, 0)}
    for rack, nodes in used.items():
        top = picture.y
        picture.box("card", 14, top, 732, 66)
        picture.text("t", 24, top + 20, f"rack-{rack}")
        for node, filled in enumerate(nodes):
            left = 110 + 158 * node
            picture.text("d", left, top + 20, f"node-{4 * rack + node}")
            for gpu in range(8):
                kind = ("G" if rack else "W") if gpu < filled else "none"
                picture.box(kind, left + 18 * gpu, top + 30, 15, 22)
        picture.y += 76
    picture.text(
        "d", 14, picture.y + 6, "orange: a gang of three Pods that requires one rack; blue: others"
    )
    picture.y += 14
    picture.write(
        "pools",
        group="concept",
        title="A pool with two racks",
        told="A gang of three Pods is in rack-1; another job uses two nodes of rack-0.",
    )


def preemption() -> None:
    """Draw the time lines of a preempted job and of its preemptor."""
    picture = Picture()
    lines = {
        "bert": (("W", 0, 200, "runs"), ("A", 200, 270, "saves"), ("none", 270, 490, "waits"),
                 ("W", 490, 620, "resumes")),
        "sam": (("none", 160, 280, "waits"), ("G", 280, 480, "runs on the freed nodes")),
    }  # fmt: skip
    for name, spans in lines.items():
        picture.text("t", 14, picture.y + 18, name)
        for kind, begin, end, words in spans:
            picture.box(kind, 110 + begin, picture.y, end - begin, 26)
            picture.text("s m", 110 + (begin + end) / 2, picture.y + 18, words)
        picture.y += 40
    picture.text(
        "d", 110, picture.y + 6, "time: the notice arrives when sam is queued; no step is lost"
    )
    picture.y += 14
    picture.write(
        "preemption",
        group="concept",
        title="A preemption over time",
        told="bert saves and leaves; sam runs on its nodes; bert resumes later.",
    )


if __name__ == "__main__":
    jobs()
    queues()
    pools()
    preemption()
