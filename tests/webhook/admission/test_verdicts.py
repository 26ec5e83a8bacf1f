from contract.errors import Fault, FieldError
from webhook.admission.verdicts import Verdict, bounded


def test_ten_warnings_are_shown_and_the_eleventh_turns_the_tenth_into_a_count() -> None:
    lines = [f"warning {number}" for number in range(12)]
    assert bounded(lines[:10]) == tuple(lines[:10])
    assert bounded(lines) == (*lines[:9], "and 3 more warnings like these")


def test_a_warning_is_cut_at_120_characters() -> None:
    (line,) = bounded(["x" * 121])
    assert line == "x" * 117 + "..."
    assert bounded(["x" * 120]) == ("x" * 120,)


def test_characters_that_break_a_line_are_replaced() -> None:
    assert bounded(["a\nb\x7fc\u2028d"]) == ("a?b?c?d",)


def test_a_verdict_is_named_by_what_it_does() -> None:
    error = FieldError("spec", Fault.INVALID, "no", "b")
    other = FieldError("spec", Fault.INVALID, "no", "a")
    assert Verdict().label == "allowed"
    assert Verdict(patch=({"op": "add"},)).label == "patched"
    denied = Verdict(errors=(error, other, error))
    assert (denied.label, denied.allowed, denied.rules) == ("denied", False, ("a", "b"))
