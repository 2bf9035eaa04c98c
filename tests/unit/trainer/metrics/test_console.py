from __future__ import annotations

import io

from drumline_trainer.metrics.sinks import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_stays_on_one_line_of_a_terminal() -> None:
    terminal = Terminal()
    console = Console(terminal)
    console.progress("step 1")
    console.progress("step 2")
    console.line("restored")
    console.progress("step 3")
    console.close()
    console.close()
    assert terminal.getvalue() == "\rstep 1\x1b[K\rstep 2\x1b[K\nrestored\n\rstep 3\x1b[K\n"


def test_elsewhere_every_line_is_its_own() -> None:
    file = io.StringIO()
    console = Console(file)
    console.progress("step 1")
    console.line("restored")
    assert file.getvalue() == "step 1\nrestored\n"


def test_lines_of_several_ranks_are_tagged_and_never_replaced() -> None:
    terminal = Terminal()
    console = Console(terminal, prefix="[rank 3] ")
    console.progress("step 1")
    console.line("restored")
    assert terminal.getvalue() == "[rank 3] step 1\n[rank 3] restored\n"
