"""Which of two networks is better at what, and where nothing can be stated."""

from mereo.measure.couplings import CouplingEffect, Replaced
from mereo.measure.side_by_side import Measured, better_at, coupling_line, verdict


def test_clear_and_unclear_differences():
    one = Measured(500, 100, accuracy=0.95, calibration_error=0.10, corruption=0.60, attack=0.50)
    two = Measured(500, 100, accuracy=0.94, calibration_error=0.02, corruption=0.80, attack=0.20)
    cost = {"images/s": (300.0, 100.0), "parameters": (5.0, 9.0), "memory": (100.0, 103.0)}
    better, worse, same = better_at(one, two, cost, ("parameters", "memory"))
    assert [words.partition(" (")[0] for words in better] == ["accuracy under attack", "images/s", "parameters"]
    assert [words.partition(" (")[0] for words in worse] == ["accuracy under corruption", "calibration error"]
    assert [words.partition(" (")[0] for words in same] == ["accuracy", "memory"]
    assert "(95.0 and 94.0 %)" in same[0] and "(300 and 100)" in better[1]


def test_the_two_sides_are_exchanged():
    one = Measured(100, 10, accuracy=0.9, calibration_error=0.1, corruption=0.9, attack=0.0)
    two = Measured(100, 10, accuracy=0.2, calibration_error=0.4, corruption=0.1, attack=1.0)
    here, there = better_at(one, two, {}), better_at(two, one, {})
    names = [[words.partition(" (")[0] for words in part] for part in (*here, *there)]
    assert names[0] == names[4] and names[1] == names[3] and names[2] == names[5] == []


def test_shares_of_all_or_no_images_are_equal():
    one = Measured(10, 10, accuracy=1.0, calibration_error=0.0, corruption=0.0, attack=0.0)
    assert [len(part) for part in better_at(one, one, {"rate": (1.0, 1.0)})] == [0, 0, 5]


GOOD = Measured(500, 100, accuracy=0.95, calibration_error=0.02, corruption=0.8, attack=0.5)
BAD = Measured(500, 100, accuracy=0.85, calibration_error=0.10, corruption=0.6, attack=0.2)


def test_the_verdict_states_when_a_network_has_no_advantage():
    line = verdict(("caps", "resnet20"), BAD, GOOD, {"images/s": (100.0, 300.0)})
    assert line.startswith("caps compared with the plain resnet20: worse at accuracy (85.0 and 95.0 %)")
    assert "use the plain network" in line
    assert "only its cost is an advantage" in verdict(("caps", "resnet20"), BAD, GOOD, {"images/s": (300.0, 100.0)})
    assert verdict(("caps", "resnet20"), GOOD, BAD, {}).endswith("calibration error (2.0 and 10.0 %).")


def test_a_network_that_guesses_is_not_called_robust():
    guess = Measured(500, 100, accuracy=0.1, calibration_error=0.0, corruption=0.1, attack=0.1, chance=0.1)
    line = verdict(("caps", "resnet20"), guess, GOOD, {})
    assert "caps: no better than chance" in line and "attack" not in line and "calibration" not in line
    assert coupling_line("caps", guess) is None


def test_couplings_have_a_line_and_columns():
    effect = CouplingEffect("accuracy", 0.95, Replaced(0.9, 0.8, 0.95, 30, 5), Replaced(0.951, 0.9, 0.97, 2, 3))
    one = Measured(500, 100, 0.95, 0.02, 0.8, 0.5, couplings=effect)
    line = coupling_line("caps", one)
    assert "95.00 % with its own, 90.00 % replaced by uniform, 95.10 % shuffled" in line
    assert "better than uniform" in line and "shuffled)" not in line
    assert one.to_dict()["couplings_uniform"] == 0.9 and GOOD.to_dict()["couplings_shuffled"] is None
    assert coupling_line("plain", GOOD) is None
