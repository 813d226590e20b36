"""The sandbox images, their recipes, the engine's helper, and what a project offers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.support import Layers, running, spec
from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import devcontainer, images
from workbench.vfs.local import LocalStorage

engine = pytest.mark.usefixtures("engine")


def test_names_are_completed_and_nothing_means_the_default() -> None:
    assert images.reference("") == images.DEFAULT == f"workbench/python:{images.VERSION}"
    assert images.reference("workbench/base") == f"workbench/base:{images.VERSION}"
    assert images.reference("workbench/base:9") == "workbench/base:9"
    assert images.reference("example/image") == "example/image"


def test_only_our_own_images_are_built_and_removed() -> None:
    with pytest.raises(OptionsError) as caught:
        images.build("debian", print)
    assert "base, python, node" in str(caught.value.hint)
    with pytest.raises(OptionsError):
        images.remove("workbench/other")


@pytest.mark.engine
@engine
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_default_image_is_built_once_and_has_what_python_projects_need(tmp_path: Path) -> None:
    heard: list[str] = []
    first = images.ensure("", heard.append)
    heard.clear()
    assert images.ensure("workbench/python", heard.append) == first
    assert heard == []
    assert {image.name: image.current for image in images.list()}["python"]
    layers = Layers(tmp_path / "layers")
    async with running(spec("docker", layers.mount, image="workbench/python")) as inside:
        for command in ("git", "rg", "python", "pip", "gcc", "make", "ps"):
            await inside.sh(f"{command} --version")
        await inside.sh(
            "python -m pytest --version && python -m venv --without-pip /tmp/venv && /tmp/venv/bin/python -V"
        )


@pytest.mark.engine
@engine
def test_an_image_of_another_recipe_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images.ensure("", lambda line: None)
    shutil.copytree(images.recipes(), tmp_path / "recipes")
    with (tmp_path / "recipes" / "base" / "packages").open("a") as file:
        file.write("less\n")
    monkeypatch.setattr(images, "recipes", lambda: tmp_path / "recipes")
    images._recipe_hash.cache_clear()
    try:
        assert not any(image.current for image in images.list())
    finally:
        images._recipe_hash.cache_clear()


@pytest.mark.engine
@engine
def test_an_image_that_cannot_be_had_is_named() -> None:
    with pytest.raises(SandboxError, match="workbench-test/no-such-image") as caught:
        images.ensure("workbench-test/no-such-image", lambda line: None)
    assert caught.value.code == "image_unavailable"
    assert caught.value.hint


def test_recipes_name_packages_once_and_no_registry() -> None:
    for name in ("base", "python"):
        recipe = images.recipes() / name
        packages = (recipe / "packages").read_text().split()
        assert packages == sorted(set(packages))
        assert "packages" in (recipe / "Dockerfile").read_text()
    assert (images.recipes() / "base" / "Dockerfile").read_text().count("FROM debian:bookworm-slim") == 1


@pytest.mark.parametrize("name", ["node", "claude"])
def test_what_is_built_over_another_image_is_of_another_recipe_when_that_one_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = images._recipe_hash(name)
    assert before != images._recipe_hash("python")
    shutil.copytree(images.recipes(), tmp_path / "recipes")
    with (tmp_path / "recipes" / "node" / "requirements.txt").open("a") as file:
        file.write("another\n")
    monkeypatch.setattr(images, "recipes", lambda: tmp_path / "recipes")
    images._recipe_hash.cache_clear()
    try:
        assert images._recipe_hash(name) != before
    finally:
        images._recipe_hash.cache_clear()


def _engine_helper(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(images.recipes() / "engine")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.engine
@engine
def test_the_engine_helper_leaves_a_running_engine_alone() -> None:
    result = _engine_helper()
    assert (result.returncode, result.stdout) == (0, "running\n")


def test_the_engine_helper_starts_nothing_in_place_of_the_engine_that_was_named(tmp_path: Path) -> None:
    result = _engine_helper(DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert (result.returncode, result.stdout) == (1, "")
    assert "none.sock" in result.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".devcontainer").mkdir()
    return tmp_path


def _offered(project: Path, settings: str | None) -> str | None:
    if settings is not None:
        (project / ".devcontainer" / "devcontainer.json").write_text(settings)
    with LocalStorage(os.fsencode(project)) as root:
        return devcontainer.offered(root)


def test_a_projects_own_image_is_offered_through_comments_and_trailing_commas(project: Path) -> None:
    text = """
    // the image
    { "name": "a // b /* c */ ,]", /* here: */ "image": "example/dev:1", "features": [1, 2,], }
    """
    assert "--image example/dev:1" in str(_offered(project, text))


def test_a_projects_own_recipe_is_offered_with_the_command_that_builds_it(project: Path) -> None:
    text = '{"build": {"dockerfile": "My Dockerfile", "context": ".."}}'
    assert "-f .devcontainer/'My Dockerfile' .devcontainer/.." in str(_offered(project, text))
    assert "Dockerfile.old" in str(_offered(project, '{"dockerFile": "Dockerfile.old"}'))


@pytest.mark.parametrize(
    "text", [None, "{}", "[]", "nonsense", '{"image": 3}', '{"build": {}}', '{"build": "x"}', "[" * 100000]
)
def test_where_nothing_is_offered_nothing_is_said(project: Path, text: str | None) -> None:
    assert _offered(project, text) is None


def test_what_a_project_says_cannot_reach_the_terminal_raw(project: Path) -> None:
    assert "\x1b" not in str(_offered(project, '{"image": "\\u001b[31mred"}'))


def test_a_link_that_leaves_the_project_offers_nothing(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "devcontainer.json"
    outside.write_text('{"image": "example/secret"}')
    (project / ".devcontainer" / "devcontainer.json").symlink_to(outside)
    assert _offered(project, None) is None


def test_a_pipe_in_place_of_the_file_offers_nothing(project: Path) -> None:
    os.mkfifo(project / ".devcontainer" / "devcontainer.json")
    assert _offered(project, None) is None
