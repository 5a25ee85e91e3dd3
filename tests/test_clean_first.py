"""Which value is evicted: one that need not be written before one that has to be, within bounds."""

from __future__ import annotations

from ckpt_spill.spill.host import CleanFirst


def evicted(keys, clean, room, weights=None, awaited=""):
    """Set keys, of which one weighs 1 if nothing else is said; give what is evicted meanwhile, in order."""
    gone = []
    hooks = {"on_evict": [lambda key, value: gone.append(key)]}
    weight = (weights or {}).get
    kept = {"clean": dict.fromkeys(clean), "awaited": awaited}
    memory = CleanFirst(room, {}, weight=lambda key, value: weight(key, 1), **kept, **hooks)
    for key in keys:
        memory[key] = key
    return "".join(gone)


def test_clean_goes_first():
    """Of these, what was not used for longest."""
    assert evicted("aCDeF", "CDF", room=4) == "C"
    assert evicted("aCDeFGHIJ", "CDFGHIJ", room=4) == "CDFGH"


def test_without_clean_ones_what_was_not_used_for_longest():
    assert evicted("abcde", "", room=3) == "ab"


def test_a_small_rest_is_never_written():
    """However long ago it was used."""
    clean = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert evicted("xyz" + clean, clean, room=10, weights=dict.fromkeys("xyz", 0.01)) == clean[:-9]


def test_clean_ones_get_half_of_the_memory():
    """What was not used for longest makes room for values that are used again and again, clean or not."""
    assert evicted("abcdEF", "EF", room=4) == "ab"
    again = "EFEFEFEF"
    assert evicted("abcd" + again, "EF", room=4) == "ab"


def test_the_only_value():
    for kept in ({"clean": {"A": None}, "awaited": ""}, {"clean": {}, "awaited": "A"}, {"clean": {}, "awaited": ""}):
        memory = CleanFirst(10, {}, weight=lambda key, value: 1, **kept)
        memory["A"] = 1
        assert memory.evict() == ("A", 1, 1)


def test_what_may_be_clean_goes_last():
    """What has to be written goes before it, and what is clean, in the way of which it is not."""
    assert evicted("xabc", "", room=3, awaited="x") == "a"
    assert evicted("xyzaBc", "B", room=5, awaited="xyz") == "B"
    assert evicted("xyzabcD", "D", room=6, awaited="xyz") == "D"
    assert evicted("xabcdE", "E", room=5, awaited="x") == "a"


def test_where_all_may_be_clean():
    """It has to go all the same, and in order; what it turns out to be counts from then on."""
    assert evicted("xyzw", "", room=2, awaited="xyzw") == "xy"
    awaited, clean = {"x", "y"}, {}
    memory = CleanFirst(10, {}, weight=lambda key, value: 1, clean=clean, awaited=awaited)
    for key in "xyz":
        memory[key] = key
    awaited.clear()
    clean["y"] = None
    assert [memory.evict()[0] for _ in range(3)] == ["y", "x", "z"]
