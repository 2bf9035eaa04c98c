from __future__ import annotations

from drumline_agent.rank_protocol.messages import NoticeSaved
from drumline_agent.rank_protocol.orders import RankOrder, SaveNotice, Withdraw
from drumline_agent.state.notices import POD_NOTICE_PREFIX, SaveNotices
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import Notice, NoticeAnswer
from tests.unit.agent.settings_builder import agent_settings


class Pod:
    """Notices of a pod, and the orders to its ranks."""

    def __init__(self) -> None:
        self.board = RankStatusStore(agent_settings())
        self.notices = SaveNotices(self.board)
        self.sent: list[str] = []
        self.notices.send_to_ranks = self._tell

    def _tell(self, order: RankOrder) -> None:
        match order:
            case SaveNotice():
                self.sent.append(f"save {order.id}" + (" and leave" if order.leave else ""))
            case Withdraw():
                self.sent.append(f"forget {order.id}")
            case other:
                raise AssertionError(other)

    def take(self, name: str, *, leave: bool = False, withdraw: bool = False) -> bool:
        notice = Notice(job_uid="job", id=name, deadline=2e9, leave=leave, withdraw=withdraw)
        return self.notices.accept(notice)

    def saved(self, name: str) -> None:
        self.notices.record_answer(NoticeSaved(notice=name, step=7, digest="d"))


def test_ranks_have_a_single_notice_and_a_single_save_answers_all() -> None:
    pod = Pod()
    assert (pod.take("a"), pod.take("a"), pod.take("b")) == (True, False, True)
    assert pod.sent == ["save a"]
    assert pod.board.notice == NoticeAnswer(id="b")
    pod.saved("a")
    assert pod.board.notice == NoticeAnswer(id="b", step=7, digest="d")
    pod.saved("a")
    pod.take("c")
    assert pod.sent == ["save a", "save c"]


def test_a_notice_to_leave_asks_for_more() -> None:
    pod = Pod()
    pod.take("drain")
    pod.take("preempted", leave=True)
    pod.take("again")
    assert pod.sent == ["save drain", "save preempted and leave"]
    pod.saved("drain")
    assert pod.board.notice == NoticeAnswer(id="again"), "that one is not what they do now"
    pod.saved("preempted")
    assert pod.board.notice == NoticeAnswer(id="again", step=7, digest="d")


async def test_a_save_for_an_earlier_notice_is_an_answer_to_that_one() -> None:
    pod = Pod()
    pod.take("drain")
    pod.take("preempted", leave=True)
    pod.saved("drain")
    assert await pod.notices.wait_for_answer("drain") == NoticeAnswer(
        id="drain", step=7, digest="d"
    )
    assert [notice.id for notice in pod.notices.unanswered] == ["preempted"]
    pod.take("preempted", withdraw=True)
    assert pod.sent[-1] == "forget preempted"


def test_what_a_pod_asks_for_itself_is_not_shown() -> None:
    pod = Pod()
    pod.take(f"{POD_NOTICE_PREFIX}uid")
    assert (pod.sent, pod.board.notice) == ([f"save {POD_NOTICE_PREFIX}uid"], None)


def test_a_withdrawn_notice_makes_room_for_another_that_waits() -> None:
    pod = Pod()
    pod.take("a")
    pod.take("b")
    assert pod.take("a", withdraw=True)
    assert pod.sent == ["save a", "forget a", "save b"]
    assert pod.board.notice == NoticeAnswer(id="b")
    pod.take("b", withdraw=True)
    assert pod.board.notice is None


def test_a_withdrawal_that_comes_first_wins() -> None:
    pod = Pod()
    pod.take("a", withdraw=True)
    assert pod.take("a") is False
    assert (pod.sent, pod.board.notice) == ([], None)


def test_new_ranks_get_the_unanswered_notice() -> None:
    pod = Pod()
    pod.notices.resend(present=set())
    pod.take("a")
    pod.notices.resend(present=set())
    pod.saved("a")
    pod.notices.resend(present=set())
    assert pod.sent == ["save a", "save a"]
    assert pod.notices.unanswered == []


def test_what_a_pod_asked_for_that_is_gone_is_forgotten() -> None:
    pod = Pod()
    pod.take(f"{POD_NOTICE_PREFIX}a")
    pod.take("b")
    pod.notices.resend(present={"a"})
    pod.notices.resend(present={"c"})
    asked = f"save {POD_NOTICE_PREFIX}a"
    assert pod.sent == [asked, asked, f"forget {POD_NOTICE_PREFIX}a", "save b", "save b"]
    assert [notice.id for notice in pod.notices.unanswered] == ["b"]


def test_the_ranks_of_a_pod_that_ends_stop_where_they_saved() -> None:
    pod = Pod()
    notice = Notice(job_uid="job", id=f"{POD_NOTICE_PREFIX}a", deadline=2e9, leave=False)
    pod.notices.accept(notice, own=True)
    assert pod.sent == [f"save {POD_NOTICE_PREFIX}a and leave"]
