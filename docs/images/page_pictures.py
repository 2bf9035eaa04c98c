"""Pictures of the page in Chromium, of the cluster of tests/browser/scene.py.

`PYTHONPATH=operator:trainer:. .venv/bin/python docs/images/page_pictures.py` writes them again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from drumline_console.ui.server import serve
from tests.browser import chromium
from tests.browser.devtools import connected, new_page
from tests.browser.scene import events, objects
from tests.unit.console.ui.shown import Shown

HERE = Path(__file__).parent
WIDE, NARROW = 1100, 390
QUESTION = "what-if?ask=queue&queue=research&pool=h100&gpus=64"
PICTURES = {
    "ui-overview": {"path": "", "height": 1250},
    "ui-overview-dark": {"path": "", "height": 1250, "dark": True},
    "ui-overview-phone": {"path": "", "height": 1250, "phone": True},
    "ui-job": {"path": "job/team/llama-70b", "height": 3400},
    "ui-job-phone": {"path": "job/team/llama-70b", "height": 1250, "phone": True},
    "ui-what-if": {"path": QUESTION, "height": 900},
    "ui-clone": {"path": "job/team/llama-70b/clone?name=llama-70b-again&changes=nodes=4"},
}
"""By file."""


async def draw(browser: str, folder: Path) -> None:
    """All of them."""
    shown = Shown(*objects(), events=events())
    async with serve(shown, port=0, secret="s" * 43) as address:
        for name, picture in PICTURES.items():
            async with connected(browser) as connection, new_page(connection) as page:
                phone, dark = bool(picture.get("phone")), bool(picture.get("dark"))
                await page.look(width=NARROW if phone else WIDE, phone=phone, dark=dark)
                await page.open(address + str(picture["path"]))
                height = picture.get("height")
                drawn = await page.picture(height=None if height is None else int(height))
                (folder / f"{name}.png").write_bytes(drawn)


if __name__ == "__main__":
    chromium.ensure()
    with chromium.running() as browser_address:
        asyncio.run(draw(browser_address, HERE))
