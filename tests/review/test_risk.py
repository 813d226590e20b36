from __future__ import annotations

import os

import pytest

from workbench.review.risk import reason


@pytest.mark.parametrize(
    "path",
    [
        b".github/workflows/ci.yml",
        b"sub/.github/workflows/ci.yml",
        b".github/actions/x/action.yml",
        b".gitlab-ci.yml",
        b".envrc",
        b"sub/.envrc",
        b".env",
        b".vscode/tasks.json",
        b"deep/er/.vscode/settings.json",
        b".idea/workspace.xml",
        b"my.code-workspace",
        b".devcontainer/devcontainer.json",
        b".devcontainer.json",
        b".claude/settings.json",
        b".codex/config.toml",
        b".cursor/mcp.json",
        b".mcp.json",
        b".pre-commit-config.yaml",
        b".husky/pre-commit",
        b".cargo/config.toml",
        b"crates/a/.cargo/config",
        b".gitmodules",
        b"a/.gitattributes",
        b"lib/evil.pth",
        b".bashrc",
        b"home/.zshenv",
        b".profile",
        b".aider.conf.yml",
        b".windsurf/mcp.json",
        b"sub/.opencode/plugin/x.js",
        b"opencode.json",
        b".kiro/settings/mcp.json",
        b"project.sublime-project",
        b"mise/config.toml",
        b".config/mise/config.toml",
        b".config/git/config",
        b".config/autostart/x.desktop",
        b".config/systemd/user/x.service",
        b".ssh/config",
        # Disguises of the same names.
        b".VSCode/tasks.json",
        b".cUrSoR/mcp.json",
        b".GitHub/WorkFlows/x",
        b".MCP.json",
        "\N{ZERO WIDTH NON-JOINER}.vs\N{RIGHT-TO-LEFT MARK}code/tasks.json".encode(),
        ".\N{LATIN SMALL LETTER LONG S}vscode".replace(
            "\N{LATIN SMALL LETTER LONG S}vs", "v\N{LATIN SMALL LETTER LONG S}"
        ).encode()
        + b"/tasks.json",
        b".envrc.",
        b".envrc ",
        b".envrc::$DATA",
    ],
)
def test_a_risky_path_has_a_reason(path) -> None:
    assert reason(path).endswith(".")


@pytest.mark.parametrize(
    "path",
    [
        b"workflows/ci.yml",
        b".github/ISSUE_TEMPLATE.md",
        b"github/workflows/a",
        b".environment",
        b"env",
        b"vscode/a",
        b"a.pth.txt",
        b"config.toml",
        b"cargo/config.toml",
        b".cargo/other",
        b".config/other",
        b"git/config",
        b"ssh/config",
        b"bashrc",
        b"src/main.py",
        b"\xff\xfe",
    ],
)
def test_an_ordinary_path_has_none(path) -> None:
    assert reason(path) == ""


def _risks(layers) -> dict[bytes, str]:
    return {change.path: change.risk for change in layers.changes().risky}


def test_creation_change_and_deletion_are_risky(layers) -> None:
    layers.write("lower", b".envrc", b"1")
    layers.write("lower", b".vscode/settings.json", b"settings")
    layers.write("upper", b".envrc", b"2")
    layers.whiteout(b".vscode")
    layers.write("upper", b".mcp.json", b"{}")
    layers.write("upper", b"src/a.py", b"1")
    assert set(_risks(layers)) == {b".envrc", b".vscode/settings.json", b".mcp.json"}
    assert {change.path for change in layers.changes().shown} == {*_risks(layers), b"src/a.py"}


def test_a_rename_is_risky_from_either_end(layers) -> None:
    layers.write("lower", b".husky/pre-commit", b"hook")
    layers.write("lower", b"plain", b"tasks")
    layers.whiteout(b".husky/pre-commit")
    layers.whiteout(b"plain")
    layers.write("upper", b"moved", b"hook")
    layers.write("upper", b".vscode/tasks.json", b"tasks")
    assert set(_risks(layers)) == {b"moved", b".vscode/tasks.json"}


def test_a_new_executable_is_not_risky(layers) -> None:
    layers.write("upper", b"run.sh", b"#!/bin/sh", 0o755)
    assert _risks(layers) == {}


@pytest.mark.parametrize("target", [b"/etc/passwd", b"..", b"../x", b"d/../../x", b"/", b"up/../../x"])
def test_a_symlink_that_leaves_the_workspace_is_risky(layers, target) -> None:
    layers.symlink("upper", b"link", target)
    layers.symlink("upper", b"up", b"d")
    layers.mkdir("upper", b"d")
    assert "leads out" in _risks(layers)[b"link"]


def test_a_symlink_that_leaves_through_another_of_the_lower_is_risky(layers) -> None:
    layers.symlink("lower", b"out", b"/tmp")
    layers.symlink("upper", b"link", b"out/x")
    assert set(_risks(layers)) == {b"link"}


def test_a_symlink_that_leaves_through_another_of_the_upper_is_risky(layers) -> None:
    layers.mkdir("lower", b"d")
    layers.mkdir("upper", b"a/b")
    layers.symlink("upper", b"d/one", b"../a/b")
    layers.symlink("upper", b"two", b"d/one/../../..")
    assert set(_risks(layers)) == {b"two"}


def test_a_symlink_inside_the_workspace_is_ordinary(layers) -> None:
    layers.write("lower", b"d/a", b"1")
    layers.symlink("upper", b"one", b"d/a")
    layers.symlink("upper", b"d/two", b"../one")
    layers.symlink("upper", b"dangling", b"nowhere/at/all")
    layers.symlink("upper", b"three", os.path.join(layers.lower_path, b"d"))
    layers.symlink("upper", b"loop", b"loop")
    assert _risks(layers) == {}


def test_an_absolute_symlink_to_a_sibling_with_the_same_beginning_is_risky(layers) -> None:
    layers.symlink("upper", b"link", layers.lower_path + b"-evil/x")
    assert set(_risks(layers)) == {b"link"}


@pytest.mark.parametrize(
    "target", [b".vscode", b".vscode/tasks.json", b"./d/../.VSCODE/x", b".git/hooks", b".git", b"via"]
)
def test_a_symlink_to_a_risky_place_is_risky(layers, target) -> None:
    layers.mkdir("lower", b"d")
    layers.symlink("lower", b"via", b".claude")
    layers.symlink("upper", b"link", target)
    assert set(_risks(layers)) == {b"link"}


def test_a_symlink_that_was_there_before_is_not_risky_for_a_touch(layers) -> None:
    layers.symlink("lower", b"link", b"/etc")
    layers.symlink("upper", b"link", b"/etc")
    assert layers.changes().changes == ()


def test_deleting_a_symlink_that_leaves_is_not_risky(layers) -> None:
    layers.symlink("lower", b"link", b"/etc")
    layers.whiteout(b"link")
    assert _risks(layers) == {}


def test_what_a_risky_place_of_the_lower_leads_to_is_risky(layers) -> None:
    layers.mkdir("lower", b"config/editor")
    layers.write("lower", b"scripts/hook", b"1")
    layers.mkdir("lower", b"ci/workflows")
    layers.mkdir("lower", b".husky")
    layers.symlink("lower", b".vscode", b"config/editor")
    layers.symlink("lower", b".husky/pre-commit", b"../scripts/hook")
    layers.symlink("lower", b".github", b"ci")
    layers.write("upper", b"config/editor/tasks.json", b"1")
    layers.write("upper", b"config/other", b"1")
    layers.write("upper", b"scripts/hook", b"2")
    layers.write("upper", b"ci/workflows/x.yml", b"2")
    assert set(_risks(layers)) == {b"config/editor/tasks.json", b"scripts/hook", b"ci/workflows/x.yml"}
