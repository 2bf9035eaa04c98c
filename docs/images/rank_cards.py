"""Cards for ranks, with bars for what each holds, as SVG.

A bar is as long as on a rank that is alone. Filled is what this rank holds, and where in the whole
it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
STYLE = """
    .page { fill: #ffffff; } .card { fill: #f6f8fa; stroke: #8c959f; }
    .hull { fill: #ffffff; stroke: #d0d7de; }
    .W { fill: #54aeff; } .G { fill: #fb8f44; } .O { fill: #4ac26b; } .A { fill: #c297ff; }
    .F { fill: #54aeff; } .B { fill: #4ac26b; } .I { fill: #aceebb; } .Q { fill: #4ac26b; }
    .none { fill: #ffffff; stroke: #d0d7de; } .line { stroke: #57606a; stroke-width: 1.4; }
    .t { fill: #1f2328; font-size: 14px; font-weight: 600; }
    .s { fill: #1f2328; font-size: 12px; } .d { fill: #57606a; font-size: 12px; }
    .n { fill: #1f2328; font-size: 10px; text-anchor: middle; } .m { text-anchor: middle; }
"""
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
KINDS = {"W": "weights", "G": "gradients", "O": "optimizer", "A": "activations"}
BAR, CARD, GAP, LEFT = 132, 148, 14, 104
WHOLE = ((0.0, 1.0),)
Parts = Sequence[tuple[float, float]]


class Picture:
    """Shapes from top to bottom, and the file they go to."""

    def __init__(self, *, width: int = 760) -> None:
        self.width, self.y, self.shapes = width, 14, list[str]()

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """A rectangle of a class of the style."""
        self.shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'
        )

    def text(self, kind: str, x: float, y: float, words: str) -> None:
        """A line of text; y is its base line."""
        self.shapes.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{words}</text>')

    def heading(self, words: str, more: str = "") -> None:
        """What the rows below show."""
        self.text("t", 14, self.y + 12, words)
        if more:
            self.text("d", 14 + 9 * len(words) + 12, self.y + 12, more)
        self.y += 22

    def cards(
        self, ranks: Sequence[dict[str, Parts]], *, names: Sequence[str], notes: Sequence[str] = ()
    ) -> None:
        """A card for each rank, with the bars that `ranks` has."""
        kinds = list(ranks[0])
        height = 24 + 18 * len(kinds) + (18 if notes else 0)
        for row, kind in enumerate(kinds):
            self.text("d", 14, self.y + 34 + 18 * row, KINDS[kind])
        for number, held in enumerate(ranks):
            x = LEFT + number * (CARD + GAP)
            self.box("card", x, self.y, CARD, height)
            self.text("s", x + 8, self.y + 16, names[number])
            for row, (kind, parts) in enumerate(held.items()):
                top = self.y + 24 + 18 * row
                self.box("hull", x + 8, top, BAR, 12)
                for start, end in parts:
                    self.box(kind, x + 8 + BAR * start, top, BAR * (end - start), 12)
            if notes:
                self.text("d", x + 8, self.y + height - 8, notes[number])
        self.y += height + 8

    def link(self, first: int, last: int, words: str) -> None:
        """A line below cards that talk to each other, and about what."""
        left = LEFT + first * (CARD + GAP) + 8
        right = LEFT + last * (CARD + GAP) + CARD - 8
        self.shapes.append(f'<path class="line" fill="none" d="M{left} {self.y} v6 H{right} v-6"/>')
        self.text("d m", (left + right) / 2, self.y + 20, words)

    def write(self, name: str, *, title: str, told: str, group: str = "training") -> None:
        """Write GROUP-NAME.svg."""
        shapes = "\n  ".join(self.shapes)
        (HERE / f"{group}-{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.y + 8}"'
            f' role="img" aria-labelledby="title desc" font-family="{FONT}">\n'
            f'  <title id="title">{title}</title>\n  <desc id="desc">{told}</desc>\n'
            f"  <style>{STYLE}  </style>\n"
            f'  <rect class="page" width="{self.width}" height="{self.y + 8}"/>\n'
            f"  {shapes}\n</svg>\n"
        )


def piece(index: int, parts: int) -> Parts:
    """One of equal parts."""
    return ((index / parts, (index + 1) / parts),)


def numbered(count: int) -> list[str]:
    """Names of ranks."""
    return [f"rank {number}" for number in range(count)]
