"""What is reported of answers in rooms, without asking for them."""

from evaluation.made_places import answer
from relograph.evaluation.calibrating import rejudged
from relograph.evaluation.conditions import OTHER_PHOTOS
from relograph.evaluation.place_run import PlaceConfig
from relograph.evaluation.rooms_gather import OWN, Ways
from relograph.evaluation.rooms_report import RoomsAnswers
from relograph.evaluation.rooms_varied import kind_in
from relograph.localization.confidence import SOLVED_SIGNS, UNCALIBRATED


def test_answers_in_other_conditions_are_as_sure_as_the_calibration_makes_them_too():
    ways, turned = Ways.of(PlaceConfig()), kind_in(OWN, OTHER_PHOTOS[0])
    way = ways.main
    said = answer(0.0, 0.1, signs=dict.fromkeys(SOLVED_SIGNS, 3.0))
    answers = RoomsAnswers((), ({OWN: {way.name: [said]}},), ways, ({turned: {way.name: [said]}},))
    judged = answers.judged_by(UNCALIBRATED)
    expected = rejudged(said, way.solver, UNCALIBRATED)
    assert expected.localized
    for (now,) in (judged.answers[0][OWN][way.name], judged.varied[0][turned][way.name]):
        assert (now.confidence, now.localized) == (expected.confidence, True)
