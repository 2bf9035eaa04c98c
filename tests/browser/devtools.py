"""A client of the DevTools protocol: as much of it as the tests of the page need.

https://chromedevtools.github.io/devtools-protocol/. One connection to the browser; each page is a
target in a context (cookies, cache) of its own, spoken to by its session.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tests.patience import HANG_SECONDS

Json = dict[str, Any]
_KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "ArrowRight": (39, "")}


class DevToolsError(Exception):
    """The browser refused a command, or a script threw."""


class Connection:
    """Commands and their answers, and the events of each session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self.pages: dict[str, Page] = {}

    async def send(self, method: str, *, session: str | None = None, **params: Any) -> Json:
        """The result of a command.

        Raises:
            DevToolsError: it was refused.
        """
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message: Json = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(HANG_SECONDS):
            said = await answer
        if "error" in said:
            raise DevToolsError(f"{method}: {said['error']}")
        return said["result"]

    async def listen(self) -> None:
        """Hand out what the browser says, until it ends."""
        async for message in self._socket:
            said: Json = message.json()
            waiting = self._answers.pop(said.get("id", 0), None)
            if waiting is not None:
                waiting.set_result(said)
            elif (page := self.pages.get(said.get("sessionId", ""))) is not None:
                page.on_event(said["method"], said["params"])


@dataclass(slots=True, kw_only=True)
class Page:
    """One page, and what was said about it."""

    connection: Connection
    session: str
    problems: list[str] = field(default_factory=list[str])
    """Errors of scripts and of the policy, dialogs, requests to other hosts."""
    _loads: int = 0
    _loaded: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    origin: str = ""

    async def command(self, method: str, **params: Any) -> Json:
        """A command to this page."""
        return await self.connection.send(method, session=self.session, **params)

    async def open(self, address: str) -> None:
        """Go there, and wait until it is loaded."""
        self.origin = "/".join(address.split("/")[:3])
        seen = self._loads
        answer = await self.command("Page.navigate", url=address)
        if answer.get("errorText"):
            raise DevToolsError(f"{address}: {answer['errorText']}")
        await self.next_load(seen)

    @property
    def loads(self) -> int:
        """How many documents have been loaded."""
        return self._loads

    async def next_load(self, seen: int) -> None:
        """Wait until more documents than `seen` have been loaded."""
        async with asyncio.timeout(HANG_SECONDS), self._loaded:
            await self._loaded.wait_for(lambda: self._loads > seen)

    async def value(self, expression: str) -> Any:
        """What an expression comes to, awaited where it is a promise.

        Raises:
            DevToolsError: it threw.
        """
        answer = await self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise DevToolsError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        code, text = _KEYS[key]
        about: Json = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = about | ({"text": text} if text else {})
        await self.command("Input.dispatchKeyEvent", type="keyDown", **down)
        await self.command("Input.dispatchKeyEvent", type="keyUp", **about)

    async def look(
        self, *, width: int = 1280, height: int = 900, phone: bool = False, dark: bool = False
    ) -> None:
        """A window of this size, and what its owner likes."""
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, *, height: int | None = None) -> bytes:
        """A PNG of the page from its top; None: to its end."""
        size = await self.value("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
        answer = await self.command(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        return base64.b64decode(answer["data"])

    def on_event(self, method: str, params: Json) -> None:
        """Take a note of it."""
        match method:
            case "Page.loadEventFired":
                self._start(self._note_load())
            case "Page.javascriptDialogOpening":
                self.problems.append(f"dialog: {params['message']}")
                self._start(self._dismiss())
            case "Runtime.exceptionThrown":
                self.problems.append(f"thrown: {params['exceptionDetails']}")
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.problems.append(f"console: {params['args']}")
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                entry = params["entry"]
                self.problems.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                address = params["request"]["url"]
                if not address.startswith((self.origin, "data:", "about:")):
                    self.problems.append(f"asked another host: {address}")
            case _:
                pass

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _note_load(self) -> None:
        async with self._loaded:
            self._loads += 1
            self._loaded.notify_all()

    async def _dismiss(self) -> None:
        await self.command("Page.handleJavaScriptDialog", accept=False)


@asynccontextmanager
async def connected(address: str) -> AsyncGenerator[Connection]:
    """A connection to the browser with DevTools at this address."""
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(address, max_msg_size=0) as socket,
    ):
        connection = Connection(socket)
        listening = asyncio.create_task(connection.listen())
        try:
            yield connection
        finally:
            listening.cancel()
            await asyncio.wait([listening])


@asynccontextmanager
async def new_page(
    connection: Connection, *, watched: Sequence[str] = ("Page", "Runtime", "Log", "Network")
) -> AsyncGenerator[Page]:
    """An empty page in a context of its own."""
    context = (await connection.send("Target.createBrowserContext"))["browserContextId"]
    target = await connection.send(
        "Target.createTarget", url="about:blank", browserContextId=context
    )
    attached = await connection.send(
        "Target.attachToTarget", targetId=target["targetId"], flatten=True
    )
    page = Page(connection=connection, session=attached["sessionId"])
    connection.pages[page.session] = page
    try:
        for domain in watched:
            await page.command(f"{domain}.enable")
        yield page
    finally:
        del connection.pages[page.session]
        await connection.send("Target.disposeBrowserContext", browserContextId=context)
