"""Which of two networks is better at what, and where nothing can be stated."""

from mereo.measure.side_by_side import Measured, better_at


def test_clear_and_unclear_differences():
    one = Measured(500, 100, accuracy=0.95, calibration_error=0.10, noise=0.60, attack=0.50)
    two = Measured(500, 100, accuracy=0.94, calibration_error=0.02, noise=0.80, attack=0.20)
    cost = {"images/s": (300.0, 100.0), "parameters": (5.0, 9.0), "memory": (100.0, 103.0)}
    better, worse, same = better_at(one, two, cost, ("parameters", "memory"))
    assert [words.partition(" (")[0] for words in better] == ["accuracy under attack", "images/s", "parameters"]
    assert [words.partition(" (")[0] for words in worse] == ["accuracy under noise", "calibration error"]
    assert [words.partition(" (")[0] for words in same] == ["accuracy", "memory"]
    assert "(95.0 and 94.0 %)" in same[0] and "(300 and 100)" in better[1]


def test_the_two_sides_are_exchanged():
    one = Measured(100, 10, accuracy=0.9, calibration_error=0.1, noise=0.9, attack=0.0)
    two = Measured(100, 10, accuracy=0.2, calibration_error=0.4, noise=0.1, attack=1.0)
    here, there = better_at(one, two, {}), better_at(two, one, {})
    names = [[words.partition(" (")[0] for words in part] for part in (*here, *there)]
    assert names[0] == names[4] and names[1] == names[3] and names[2] == names[5] == []


def test_shares_of_all_or_no_images_are_equal():
    one = Measured(10, 10, accuracy=1.0, calibration_error=0.0, noise=0.0, attack=0.0)
    assert [len(part) for part in better_at(one, one, {"rate": (1.0, 1.0)})] == [0, 0, 5]
