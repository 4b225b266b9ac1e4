"""The settings for people: complete, true, and the same names as in the environment."""

from __future__ import annotations

from relevo.ops.settings_text import DESCRIPTIONS, destination_settings, named_consumer_settings, settings_tree
from relevo.settings import load


def _all() -> list[str]:
    settings = [setting for section in settings_tree() for setting in section.settings]
    return [setting.path for setting in (*settings, *destination_settings(), *named_consumer_settings())]


def test_every_setting_has_its_sentence_and_no_sentence_is_left_over() -> None:
    assert sorted(_all()) == sorted(DESCRIPTIONS)


def test_the_variables_that_are_named_exist() -> None:
    """Each is accepted with its own default, and gives that default."""
    for section in settings_tree():
        for setting in section.settings:
            if setting.variable and setting.default is not None:
                value: object = load(environ={setting.variable: str(setting.default).lower()})
                for step in setting.path.split("."):
                    value = getattr(value, step)
                assert value == setting.default
