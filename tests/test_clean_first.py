"""Which value is evicted: one that need not be written before one that has to be, but not what was used last."""

from __future__ import annotations

from ckpt_spill.spill.host import CleanFirst


def evicted(keys, clean, room, used=()):
    """Set keys, then use some; give what is evicted meanwhile, in order."""
    gone = []
    hooks = {"on_evict": [lambda key, value: gone.append(key)]}
    memory = CleanFirst(room, {}, weight=lambda key, value: 1, clean=dict.fromkeys(clean), **hooks)
    for key in keys:
        memory[key] = key
        for other in used:
            if other in memory:
                assert memory[other] == other
    return "".join(gone)


def test_clean_goes_first():
    """Of these, what was not used for longest."""
    assert evicted("abCDe", "CD", room=3) == "CD"
    assert evicted("CDab", "CD", room=3, used="C") == "D"


def test_without_clean_ones_what_was_not_used_for_longest():
    assert evicted("abcde", "", room=3) == "ab"


def test_what_was_used_last_stays():
    """A single clean value among others is not read again for each use."""
    assert evicted("abcD", "D", room=3) == "a"
    assert evicted("abDc", "D", room=3) == "D"


def test_the_only_value():
    memory = CleanFirst(10, {}, weight=lambda key, value: 1, clean={"A": None})
    memory["A"] = 1
    assert memory.evict() == ("A", 1, 1)
