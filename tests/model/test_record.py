from headgate.model.outcome import Outcome
from headgate.model.record import FIRST_KEPT, LAST_KEPT, Attempt, kept


def test_of_many_failed_attempts_the_first_and_the_last_few_are_kept() -> None:
    failed: tuple[Attempt, ...] = ()
    for number in range(1000):
        failed = kept(failed, Attempt("a", float(number), 0.0, Outcome.REPLICA_FAILED, True, ""))
        assert len(failed) == min(number + 1, FIRST_KEPT + LAST_KEPT)
    assert [int(one.at_s) for one in failed] == [0, 1, 2, 3, 996, 997, 998, 999]
