"""Ledgers: what they keep, refuse, merge and replay to."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import random

import dp_accounting
import pytest

from tf_sparse_dp.accounting.dp_events import FailingDpEvent
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.errors import PrivacyStateError

GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
LAPLACE = dp_accounting.LaplaceDpEvent(2.0)
STEP = FailingDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1)),
    2.0**-100,
)
KEY = bytes(range(32))


def header(**changes) -> LedgerHeader:
    facts = {
        "account": {
            "class_name": "PrivacyPlan",
            "config": {"epsilon": 3.0, "delta": 1e-7, "noise_multiplier": 0.8},
        },
        "mechanism": {"class_name": "Gaussian", "config": {}},
        "noise": "gaussian",
        "neighbouring_relation": "add_or_remove_one",
        "clip_norm": 1.0,
    }
    return LedgerHeader(**(facts | changes))


def test_equal_events_in_a_row_are_one_entry():
    ledger = Ledger(header(), [(STEP, 2), (STEP, 3), (LAPLACE, 0)])
    ledger.append(LAPLACE)
    ledger.append(STEP)
    assert ledger.entries == [(STEP, 5), (LAPLACE, 1), (STEP, 1)]
    assert ledger.num_events == 7


@pytest.mark.parametrize("count", [-1, 1.0, True, "1"])
def test_counts_are_whole(count):
    with pytest.raises((TypeError, ValueError), match="count is"):
        Ledger(header()).append(STEP, count)


@pytest.mark.parametrize("key", [None, KEY])
def test_there_and_back(key):
    ledger = Ledger(header(was_seeded=True), [(STEP, 7), (LAPLACE, 1)])
    text = ledger.to_json(key=key)
    back = Ledger.from_json(text, key=key)
    assert back == ledger
    assert back.entries == ledger.entries
    assert back.header == ledger.header
    assert back.was_seeded
    assert back.to_json(key=key) == text
    back.verify()


def test_every_changed_character_is_refused_or_means_the_same():
    ledger = Ledger(header(), [(STEP, 7), (GAUSSIAN, 1), (LAPLACE, 2)])
    text = ledger.to_json()
    source = random.Random(0)
    refused = 0
    for place in range(len(text)):
        other = source.choice(
            '0123456789abcdef{}[],:" e-+AZ'.replace(text[place], "")
        )
        changed = text[:place] + other + text[place + 1 :]
        try:
            found = Ledger.from_json(changed)
        except PrivacyStateError:
            refused += 1
        else:
            assert found.entries == ledger.entries
            assert not found.header.differences(ledger.header)
    assert refused > 0.95 * len(text)


def test_tampering_with_digests_recomputed_needs_the_key():
    ledger = Ledger(header(), [(STEP, 700)])
    forged = Ledger(header(), [(STEP, 7)])
    # Without a key a forger's ledger is as good as any.
    assert Ledger.from_json(forged.to_json()).num_events == 7
    text = ledger.to_json(key=KEY)
    signature = json.loads(text)["mac"]
    for mac in (None, signature, signature[:-1], 1):
        saved = json.loads(forged.to_json()) | {"mac": mac}
        with pytest.raises(PrivacyStateError, match="not made with this key"):
            Ledger.from_json(json.dumps(saved), key=KEY)
    with pytest.raises(PrivacyStateError, match="not made with this key"):
        Ledger.from_json(text, key=KEY[::-1])
    with pytest.raises(ValueError, match="16 secret bytes"):
        ledger.to_json(key=b"short")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda s: s["runs"][0]["entries"].pop(), "digest of the ledger"),
        (lambda s: s["runs"][0]["entries"].pop(0), "Entry 1"),
        (lambda s: s["runs"][0]["entries"].reverse(), "Entry 1"),
        (lambda s: s["runs"][0]["entries"][1].__setitem__(1, 1), "Entry 2"),
        (lambda s: s["runs"][0]["entries"][1].__setitem__(1, 0), "0 times"),
        (lambda s: s["runs"][0].update(id="0" * 32), "Entry 1"),
        (lambda s: s["runs"][0]["header"].update(clip_norm=2.0), "Entry 1"),
        (lambda s: s["runs"][0]["header"].pop("unit"), "header cannot be read"),
        (lambda s: s["runs"].append(s["runs"][0]), "one twice"),
        (lambda s: s["runs"].clear(), "no run"),
        (lambda s: s.update(format="tf_sparse_dp ledger 2"), "format"),
        (lambda s: s.pop("mac"), "no ledger"),
        (lambda s: s.update(runs=None), "no ledger"),
    ],
)
def test_what_was_changed_is_said(change, found):
    saved = json.loads(Ledger(header(), [(STEP, 7), (LAPLACE, 2)]).to_json())
    change(saved)
    with pytest.raises(PrivacyStateError, match=found):
        Ledger.from_json(json.dumps(saved))


def test_entries_changed_in_memory_are_found():
    ledger = Ledger(header(), [(STEP, 7), (LAPLACE, 2)])
    ledger.verify()
    entries = ledger._runs[0].entries
    entries[0] = dataclasses.replace(entries[0], count=6)
    with pytest.raises(PrivacyStateError, match="Entry 1"):
        ledger.verify()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": "laplace"}, "noise is 'laplace' here"),
        ({"unit": "user"}, "unit is 'user' here"),
        ({"spent_before": (0.5, 1e-8)}, "spent_before"),
        (
            {"neighbouring_relation": "zero_out"},
            "neighbouring_relation is 'zero_out' here",
        ),
        (
            {
                "account": {
                    "class_name": "PrivacyPlan",
                    "config": {
                        "epsilon": 3.0,
                        "delta": 1e-6,
                        "noise_multiplier": 0.8,
                    },
                }
            },
            "account.config.delta is 1e-06 here and 1e-07 there",
        ),
    ],
)
def test_a_ledger_of_another_plan_is_refused(changes, said):
    ledger = Ledger.from_json(Ledger(header(), [(STEP, 7)]).to_json())
    ledger.check_belongs(header())
    with pytest.raises(PrivacyStateError, match="belongs to something") as info:
        ledger.check_belongs(header(**changes))
    assert said in str(info.value)
    with pytest.raises(PrivacyStateError, match="belongs to something"):
        ledger.continued(header(**changes))


def test_circumstances_and_a_plans_epsilon_may_differ():
    ledger = Ledger(header(), [(STEP, 7)])
    account = copy.deepcopy(header().account)
    account["config"]["epsilon"] = 3.1
    other = header(
        account=account,
        mechanism={"class_name": "Threshold"},
        clip_norm=2.0,
        was_seeded=True,
        library_version="9",
    )
    ledger.check_belongs(other)
    resumed = ledger.continued(other)
    assert resumed.was_seeded and not ledger.was_seeded
    assert resumed.num_events == 7
    # The epsilon of a filter is its budget.
    budget = {"class_name": "ZcdpFilter", "config": {"epsilon": 3.0}}
    ledger = Ledger(header(account=budget))
    larger = {"class_name": "ZcdpFilter", "config": {"epsilon": 3.1}}
    with pytest.raises(PrivacyStateError, match=r"epsilon is 3\.1 here"):
        ledger.check_belongs(header(account=larger))


def test_merging_neither_doubles_nor_loses():
    ledger = Ledger(header(), [(STEP, 5)])
    earlier = Ledger.from_json(ledger.to_json())
    ledger.append(STEP, 2)
    ledger.append(LAPLACE)
    for merged in (
        ledger.merge(ledger),
        ledger.merge(earlier),
        earlier.merge(ledger),
        earlier.merge(ledger).merge(earlier),
    ):
        assert merged.entries == [(STEP, 7), (LAPLACE, 1)]
    other = Ledger(header(clip_norm=2.0), [(STEP, 5)])
    assert ledger.merge(other).num_events == 8 + 5
    assert ledger.merge(other).merge(ledger).num_events == 8 + 5
    assert ledger.num_events == 8


def test_two_that_go_on_from_one_checkpoint_both_count():
    text = Ledger(header(), [(STEP, 100)]).to_json()
    first, second = Ledger.from_json(text), Ledger.from_json(text)
    first.append(STEP, 50)
    second.append(STEP, 50)  # Alike, yet released anew.
    assert first.num_events == second.num_events == 150
    assert first.merge(second).num_events == 200
    assert first.merge(second).merge(first).num_events == 200


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
)
def test_copies_part_ways(again):
    ledger = Ledger(header(), [(STEP, 3)])
    other = again(ledger)
    assert other == ledger
    ledger.append(STEP, 2)
    other.append(STEP, 2)
    assert (ledger.num_events, other.num_events) == (5, 5)
    assert ledger.merge(other).num_events == 7


def test_forks_part_ways():
    ledger = Ledger(header(), [(STEP, 3)])
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        ledger.append(STEP, 2)
        os.write(writing, ledger.to_json().encode())
        os._exit(0)
    os.waitpid(child, 0)
    ledger.append(STEP, 2)
    other = Ledger.from_json(os.read(reading, 1 << 16).decode())
    os.close(reading)
    os.close(writing)
    assert ledger.merge(other).num_events == 7


def test_any_family_of_ledgers_counts_every_release_once():
    source = random.Random(0)
    for _ in range(40):
        # Ledgers, and the releases that they should hold.
        family = [(Ledger(header()), set()) for _ in range(2)]
        releases = 0
        for _ in range(25):
            ledger, known = source.choice(family)
            act = source.choice(("append", "append", "save", "copy", "merge"))
            if act == "append":
                several = len({run.origin for run in ledger.runs}) > 1
                if several and ledger._open_in is None:
                    continue  # Refused, as tested below.
                count = source.randint(1, 3)
                ledger.append(source.choice((STEP, LAPLACE)), count)
                known |= set(range(releases, releases + count))
                releases += count
            elif act == "save":
                family.append((Ledger.from_json(ledger.to_json()), set(known)))
            elif act == "copy":
                family.append((copy.deepcopy(ledger), set(known)))
            else:
                other, others = source.choice(family)
                family.append((ledger.merge(other), known | others))
            for ledger, known in family:
                assert ledger.num_events == len(known)
        for ledger, _ in family:
            ledger.verify()


def test_a_run_with_two_histories_is_refused():
    ledger = Ledger(header(), [(STEP, 5)])
    saved = json.loads(ledger.to_json())
    (run,) = Ledger(header(), [(GAUSSIAN, 5)]).runs
    run.id, run.origin = saved["runs"][0]["id"], saved["runs"][0]["origin"]
    (event, count), run.entries = (GAUSSIAN, 5), []
    run.append(event, count)
    other = Ledger._of([run])
    other.verify()
    with pytest.raises(PrivacyStateError, match="neither has what"):
        ledger.merge(other)


@pytest.mark.parametrize(
    "changes", [{"unit": "user"}, {"neighbouring_relation": "zero_out"}]
)
def test_ledgers_of_different_guarantees_do_not_merge(changes):
    one, other = Ledger(header()), Ledger(header(**changes))
    with pytest.raises(PrivacyStateError, match="does not add up"):
        one.merge(other)


def test_a_merged_ledger_takes_no_events():
    merged = Ledger(header()).merge(Ledger(header()))
    with pytest.raises(PrivacyStateError, match="of which one"):
        merged.append(STEP)


def test_spent_before_counts_once_for_each_training():
    ledger = Ledger(header(spent_before=(0.5, 1e-8)), [(STEP, 1)])
    resumed = Ledger.from_json(ledger.to_json())
    resumed.append(STEP)
    assert resumed.spent_before == (0.5, 1e-8)
    fresh = Ledger(header(spent_before=(0.5, 1e-8)))
    assert fresh.spent_before == (0.5, 1e-8)
    assert fresh.merge(resumed).spent_before == (0.5, 1e-8)
    another = Ledger(header(spent_before=(0.5, 1e-8), mechanism="another"))
    assert another.merge(resumed).spent_before == pytest.approx((1.0, 2e-8))
    with pytest.raises(PrivacyStateError, match="mechanism is 'another'"):
        resumed.check_belongs(another.header)
    other = Ledger(header(spent_before=(0.5, 1e-8)), [(STEP, 1)])
    assert resumed.merge(other).spent_before == pytest.approx((1.0, 2e-8))


def test_replays_into_accountants():
    ledger = Ledger(header(), [(GAUSSIAN, 5), (LAPLACE, 2)])
    replayed = ledger.replay(dp_accounting.pld.PLDAccountant())
    direct = dp_accounting.pld.PLDAccountant()
    direct.compose(GAUSSIAN, 5).compose(LAPLACE, 2)
    assert replayed.get_epsilon(1e-6) == direct.get_epsilon(1e-6)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    with pytest.raises(PrivacyStateError, match="REPLACE_ONE"):
        ledger.replay(dp_accounting.rdp.RdpAccountant([2.0], relation))
    before = Ledger(header(spent_before=(0.5, 0.0)))
    with pytest.raises(dp_accounting.UnsupportedEventError, match="ApproxDp"):
        before.replay(dp_accounting.rdp.RdpAccountant())


@pytest.mark.parametrize(
    "changes",
    [
        {"neighbouring_relation": "replace"},
        {"spent_before": (-1.0, 0.0)},
        {"spent_before": (1.0,)},
        {"clip_norm": -1.0},
        {"noise": None},
        {"was_seeded": 1},
        {"account": None},
        {"account": {"plan": object()}},
    ],
)
def test_headers_that_say_nothing_are_refused(changes):
    with pytest.raises((TypeError, ValueError), match=next(iter(changes))[:4]):
        header(**changes)
