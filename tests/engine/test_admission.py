import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ferrite.engine.admission import MAX_RETRY_AFTER_SECONDS, Admission, arrival_delay
from ferrite.engine.errors import EngineBusy

BLOCKS = 10
GROUPS = st.lists(st.integers(1, BLOCKS), min_size=1, max_size=3).filter(lambda blocks: sum(blocks) <= BLOCKS)


def admission(*, permits: int = 1, wait_seconds: float = 0.0, waiting_limit: int = 8) -> Admission[str]:
    return Admission(permits=permits, n_blocks=BLOCKS, wait_seconds=wait_seconds, waiting_limit=waiting_limit)


def test_without_waiting_time_a_second_request_is_refused_at_once() -> None:
    queue = admission()
    queue.offer({"a": 1}, 0.0)
    assert queue.grant(0.0) == ["a"]
    with pytest.raises(EngineBusy) as caught:
        queue.offer({"b": 1}, 0.0)
    assert caught.value.retry_after_seconds == 1
    queue.release("a", 1.0)
    queue.offer({"b": 1}, 1.0)
    assert queue.grant(1.0) == ["b"]


def test_without_waiting_time_missing_blocks_refuse_too() -> None:
    queue = admission(permits=2)
    queue.offer({"a": BLOCKS}, 0.0)
    queue.grant(0.0)
    with pytest.raises(EngineBusy):
        queue.offer({"b": 1}, 0.0)


def test_line_is_bounded_and_expires_in_order() -> None:
    queue = admission(wait_seconds=5.0, waiting_limit=2)
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    assert queue.offer({"b": 1}, 1.0) == 6.0
    assert queue.offer({"c": 1}, 2.0) == 7.0
    with pytest.raises(EngineBusy, match="2 requests wait"):
        queue.offer({"d": 1}, 3.0)
    assert queue.expire(5.9) == []
    assert queue.expire(6.0) == [["b"]]
    queue.release("a", 6.5)
    assert queue.grant(6.5) == ["c"]


def test_room_is_what_the_smallest_request_would_find() -> None:
    queue = admission(permits=2, wait_seconds=5.0, waiting_limit=1)
    for item, blocks in [("a", 1), ("b", BLOCKS - 2)]:
        queue.check_room()
        queue.offer({item: blocks}, 0.0)
        queue.grant(0.0)
    queue.check_room()
    queue.offer({"c": 1}, 0.0)
    with pytest.raises(EngineBusy, match="1 requests wait"):
        queue.check_room()
    queue.release("a", 1.0)
    with pytest.raises(EngineBusy):
        queue.check_room()
    queue.grant(1.0)
    queue.check_room()


def test_without_waiting_time_there_is_room_only_for_who_can_start() -> None:
    queue = admission()
    queue.check_room()
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    with pytest.raises(EngineBusy):
        queue.check_room()


def test_continuing_items_go_first_in_order_and_are_never_refused_nor_late() -> None:
    queue = admission(wait_seconds=5.0, waiting_limit=1)
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    queue.offer({"new": 1}, 0.0)
    assert queue.offer({"second prompt": 1}, 0.0, continues=True) == float("inf")
    queue.offer({"third prompt": 1}, 0.0, continues=True)
    assert queue.expire(9.0) == [["new"]]
    for last, following in [("a", "second prompt"), ("second prompt", "third prompt")]:
        queue.release(last, 9.0)
        assert queue.grant(9.0) == [following]


def test_continuing_item_waits_even_where_nobody_may() -> None:
    queue = admission()
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    queue.offer({"second prompt": 1}, 0.0, continues=True)
    with pytest.raises(EngineBusy):
        queue.offer({"b": 1}, 0.0)
    queue.release("a", 1.0)
    assert queue.grant(1.0) == ["second prompt"]


@pytest.mark.parametrize(
    ("now", "free_permits", "delay"),
    [(10.0, 1, 0.5), (10.375, 1, 0.125), (10.5, 1, 0.0), (11.0, 1, 0.0), (10.0, 0, 0.0)],
)
def test_arrivals_wait_for_each_other_while_there_are_permits(
    now: float, free_permits: int, delay: float
) -> None:
    assert arrival_delay(now, 10.0, 0.5, free_permits=free_permits) == delay


def test_large_request_is_not_overtaken() -> None:
    queue = admission(permits=4, wait_seconds=5.0)
    queue.offer({"a": 6}, 0.0)
    queue.grant(0.0)
    queue.offer({"large": 8}, 0.0)
    queue.offer({"small": 1}, 0.0)
    assert queue.grant(0.0) == []
    queue.release("a", 1.0)
    assert queue.grant(1.0) == ["large", "small"]


def test_retry_after_follows_the_measured_holding_time() -> None:
    queue = admission(permits=2)
    for hold in (30.0, 30.0):
        queue.offer({"a": 1}, 0.0)
        queue.grant(0.0)
        queue.release("a", hold)
    assert queue.busy("").retry_after_seconds == 15
    for _ in range(40):
        queue.offer({"a": 1}, 0.0)
        queue.grant(0.0)
        queue.release("a", 1e6)
    assert queue.busy("").retry_after_seconds == MAX_RETRY_AFTER_SECONDS


def test_expired_large_request_no_longer_holds_up_the_next() -> None:
    queue = admission(permits=2, wait_seconds=2.0)
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    queue.offer({"large": BLOCKS}, 0.0)
    queue.offer({"small": 1}, 1.0)
    assert queue.grant(1.0) == []
    assert queue.expire(2.0) == [["large"]]
    assert queue.grant(2.0) == ["small"]


def test_group_starts_together_or_waits_together() -> None:
    queue = admission(permits=3, wait_seconds=5.0)
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    queue.offer({"b1": 2, "b2": 3, "b3": 1}, 0.0)
    queue.offer({"c": 1}, 0.0)
    assert queue.grant(0.0) == []
    assert queue.n_waiting == 2
    queue.release("a", 1.0)
    assert queue.grant(1.0) == ["b1", "b2", "b3"]
    assert (queue.n_waiting, queue.n_holding, queue.reserved_blocks) == (1, 3, 6)
    queue.release("b2", 2.0)
    assert queue.grant(2.0) == ["c"]
    assert (queue.n_holding, queue.reserved_blocks) == (3, 4)


def test_group_needs_blocks_for_all() -> None:
    queue = admission(permits=8, wait_seconds=5.0)
    queue.offer({"a": 4}, 0.0)
    queue.grant(0.0)
    queue.offer({"b1": 4, "b2": 4}, 0.0)
    assert queue.grant(0.0) == []
    queue.release("a", 1.0)
    assert queue.grant(1.0) == ["b1", "b2"]


def test_group_without_waiting_time_is_refused_where_one_would_start() -> None:
    queue = admission(permits=2)
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    with pytest.raises(EngineBusy):
        queue.offer({"b1": 1, "b2": 1}, 0.0)
    queue.offer({"c": 1}, 0.0)
    assert queue.grant(0.0) == ["c"]


def test_group_shrinks_when_one_of_it_leaves_the_line() -> None:
    queue = admission(permits=2, wait_seconds=5.0)
    queue.offer({"a1": 1, "a2": 1}, 0.0)
    queue.grant(0.0)
    queue.offer({"b1": 1, "b2": 1}, 0.0)
    assert queue.withdraw("b1")
    queue.release("a1", 1.0)
    assert queue.grant(1.0) == ["b2"]


def test_group_expires_together() -> None:
    queue = admission(permits=2, wait_seconds=5.0)
    queue.offer({"a": 1}, 0.0)
    queue.grant(0.0)
    queue.offer({"b1": 1, "b2": 1}, 0.0)
    queue.offer({"c": 1}, 1.0)
    assert queue.expire(9.0) == [["b1", "b2"], ["c"]]
    assert queue.n_waiting == 0


class AdmissionMachine(RuleBasedStateMachine):
    """Random arrivals, departures and time against a plain model of the line."""

    @initialize(
        permits=st.integers(1, 3), wait=st.sampled_from([0.0, 2.0, float("inf")]), limit=st.integers(0, 3)
    )
    def build(self, permits: int, wait: float, limit: int) -> None:
        self.queue: Admission[int] = Admission(
            permits=permits, n_blocks=BLOCKS, wait_seconds=wait, waiting_limit=limit
        )
        self.permits, self.wait, self.limit = permits, wait, limit
        self.now = 0.0
        self.serial = 0
        self.line: list[tuple[dict[int, int], float]] = []
        self.ahead: set[int] = set()
        self.holding: dict[int, int] = {}

    def settle(self) -> None:
        late = [list(group) for group, deadline in self.line if deadline <= self.now]
        assert self.queue.expire(self.now) == late
        self.line = [waiting for waiting in self.line if list(waiting[0]) not in late]
        self.grant()

    def grant(self) -> None:
        granted = self.queue.grant(self.now)
        while granted:
            group, _ = self.line.pop(0)
            assert granted[: len(group)] == list(group)
            del granted[: len(group)]
            self.holding |= group

    def fits(self, group: dict[int, int]) -> bool:
        held = sum(self.holding.values())
        return len(self.holding) + len(group) <= self.permits and held + sum(group.values()) <= BLOCKS

    def group_of(self, blocks: list[int]) -> dict[int, int]:
        group = {self.serial + n: count for n, count in enumerate(blocks[: self.permits])}
        self.serial += len(group)
        return group

    @rule(blocks=GROUPS)
    def offer(self, blocks: list[int]) -> None:
        group = self.group_of(blocks)
        must_wait = bool(self.line) or not self.fits(group)
        if must_wait and (self.wait == 0 or len(self.line) >= self.limit):
            if list(group.values()) == [1]:
                with pytest.raises(EngineBusy):
                    self.queue.check_room()
            with pytest.raises(EngineBusy) as caught:
                self.queue.offer(group, self.now)
            assert 1 <= caught.value.retry_after_seconds <= MAX_RETRY_AFTER_SECONDS
            return
        self.line.append((group, self.queue.offer(group, self.now)))
        self.grant()

    @rule(blocks=GROUPS)
    def offer_what_continues(self, blocks: list[int]) -> None:
        group = self.group_of(blocks)
        place = sum(not self.ahead.isdisjoint(waiting) for waiting, _ in self.line)
        self.ahead |= set(group)
        deadline = self.queue.offer(group, self.now, continues=True)
        self.line.insert(place, (group, deadline))
        self.grant()

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.holding)))
        del self.holding[item]
        self.queue.release(item, self.now)
        self.settle()

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.line) - 1))
        group, _ = self.line[index]
        item = data.draw(st.sampled_from(sorted(group)))
        del group[item]
        if not group:
            del self.line[index]
        assert self.queue.withdraw(item)
        assert not self.queue.withdraw(item)
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    @invariant()
    def limits_hold(self) -> None:
        assert self.queue.n_holding == len(self.holding) <= self.permits
        assert self.queue.free_permits == self.permits - len(self.holding)
        assert self.queue.n_waiting == len(self.line)
        assert sum(self.ahead.isdisjoint(group) for group, _ in self.line) <= self.limit
        assert self.queue.reserved_blocks == sum(self.holding.values()) <= BLOCKS

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.line:
            group, deadline = self.line[0]
            assert deadline > self.now
            assert not self.fits(group)


TestAdmission = AdmissionMachine.TestCase
