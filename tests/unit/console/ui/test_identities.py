"""Who calls: one review for a token, remembered for seconds, in turns by the sender's address."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from hashlib import sha256

import pytest

from drumline.kube import errors
from drumline.kube.credentials import Credentials, Token
from drumline_cli.errors import Busy, NotAnswered, NotLoggedIn
from drumline_console.ui.identities import (
    KNOWN_SECONDS,
    MOST_REMEMBERED,
    REFUSED_SECONDS,
    Identities,
    Sender,
)

HERE = Sender(address="10.0.0.1")
NAMES = {
    "ada": "ada@example.com",
    "bot": "system:serviceaccount:team:bot",
    "bot-2": "system:serviceaccount:team:bot-2",
}


class Reviews:
    """An API server that counts reviews, and answers once it is let."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.begun = defaultdict[str, asyncio.Event](asyncio.Event)
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.failure: errors.KubeError | None = None
        self.identities = Identities(review=self.review, clock=lambda: self.now)

    async def review(self, credentials: Credentials) -> str:
        token = await credentials.token.current() or ""
        self.asked.append(token)
        self.begun[token].set()
        await self.goes_on.wait()
        if self.failure is not None:
            raise self.failure
        if token not in NAMES:
            raise errors.from_answer(code=401, body=b"")
        return NAMES[token]

    async def share(self, token: str, sender: Sender = HERE) -> str:
        credentials = Credentials(server="http://h", token=Token(lambda: token))
        digest = sha256(token.encode()).digest()
        return await self.identities.share(credentials, digest=digest, sender=sender)


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


async def test_a_user_is_asked_about_once_a_while(reviews: Reviews) -> None:
    for _ in range(3):
        assert await reviews.share("ada") == "ada@example.com"
    reviews.now = KNOWN_SECONDS
    await reviews.share("ada")
    assert reviews.asked == ["ada", "ada"]


async def test_service_accounts_of_a_namespace_share(reviews: Reviews) -> None:
    assert await reviews.share("bot") == await reviews.share("bot-2")
    assert await reviews.share("bot") != await reviews.share("ada")


async def test_a_refused_token_is_refused_for_seconds_without_a_request(reviews: Reviews) -> None:
    for _ in range(3):
        with pytest.raises(NotLoggedIn):
            await reviews.share("invented")
        reviews.now += REFUSED_SECONDS / 2 - 1  # refusals do not make the time longer
    assert reviews.asked == ["invented"]
    reviews.now = REFUSED_SECONDS
    with pytest.raises(NotLoggedIn):
        await reviews.share("invented")
    assert reviews.asked == ["invented"] * 2


async def test_a_known_token_that_is_refused_later_is_not_known(reviews: Reviews) -> None:
    await reviews.share("ada")
    reviews.identities.refuse(sha256(b"ada").digest())
    with pytest.raises(NotLoggedIn):
        await reviews.share("ada")


@pytest.mark.parametrize("code", [403, 404])
async def test_without_the_right_to_a_review_each_token_is_a_caller(
    reviews: Reviews, code: int
) -> None:
    reviews.failure = errors.from_answer(code=code, body=b"")
    assert await reviews.share("bot") != await reviews.share("bot-2")


async def test_an_api_server_that_does_not_answer_is_said(reviews: Reviews) -> None:
    reviews.failure = errors.from_answer(code=500, body=b"")
    with pytest.raises(NotAnswered, match="your token"):
        await reviews.share("ada")


async def test_a_flood_of_one_address_delays_neither_the_known_nor_other_addresses(
    reviews: Reviews,
) -> None:
    await reviews.share("ada")
    reviews.goes_on.clear()
    flood = [asyncio.create_task(reviews.share(f"invented-{n}")) for n in range(300)]
    await asyncio.sleep(0)
    assert await reviews.share("ada") == "ada@example.com"
    bot = asyncio.create_task(reviews.share("bot", Sender(address="10.0.0.2")))
    await reviews.begun["bot"].wait()
    assert len(reviews.asked) <= 1 + 4 + 1
    reviews.goes_on.set()
    assert await bot
    said = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(each) for each in said} == {Busy, NotLoggedIn}
    assert len(reviews.asked) < 30


async def test_invented_senders_behind_one_address_share_its_turns(reviews: Reviews) -> None:
    reviews.goes_on.clear()
    flood = [
        asyncio.create_task(
            reviews.share(f"invented-{n}", Sender(address="10.0.0.1", forwarded=str(n)))
        )
        for n in range(300)
    ]
    bot = asyncio.create_task(reviews.share("bot", Sender(address="10.0.0.2")))
    await reviews.begun["bot"].wait()
    assert len(reviews.asked) <= 4 + 1
    reviews.goes_on.set()
    assert await bot
    await asyncio.gather(*flood, return_exceptions=True)


async def test_windows_that_ask_together_are_reviewed_once(reviews: Reviews) -> None:
    reviews.goes_on.clear()
    asked = [asyncio.create_task(reviews.share("ada")) for _ in range(6)]
    await reviews.begun["ada"].wait()
    reviews.goes_on.set()
    assert set(await asyncio.gather(*asked)) == {"ada@example.com"}
    assert len(reviews.asked) <= 2


async def test_so_many_tokens_are_remembered_and_the_oldest_go(reviews: Reviews) -> None:
    for number in range(MOST_REMEMBERED + 2):
        reviews.identities.refuse(number.to_bytes(4))
    assert len(reviews.identities._refused._values) == MOST_REMEMBERED
