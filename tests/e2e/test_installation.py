"""Saying which image to install; runs with the unit tests."""

import pytest

from tests.e2e.installation import image_parts


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("registry.example/a/b:1", {"newName": "registry.example/a/b", "newTag": "1"}),
        ("registry.example:5000/b", {"newName": "registry.example:5000/b"}),
        ("registry.example:5000/b:2", {"newName": "registry.example:5000/b", "newTag": "2"}),
        ("b@sha256:00ff", {"newName": "b", "digest": "sha256:00ff"}),
        ("b", {"newName": "b"}),
    ],
)
def test_an_image_is_said_in_the_parts_that_kustomize_knows(
    image: str, expected: dict[str, str]
) -> None:
    assert image_parts(image) == expected
