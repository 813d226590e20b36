"""The page, in a real browser: what it shows, that it's used by keyboard, and that nothing of a session can run in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.served import TOKEN, Served, serving
from tests.transcripts.homes import ASKED, T0, T1, T2, claude_code, codex, lines
from tests.waiting import wait_until
from workbench.transcripts import LocalPlatform
from workbench.transcripts.platform import SessionStat

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = (
    "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    "[click](javascript:document.title='taken') <a href=\"javascript:document.title='taken'\">here</a>"
)
SEPARATED = "one\u2028two\u2029three\x85four"
DECEIVING = "\x1b[31mred\x1b[0m \x00\x07 \u202egnp.exe \u2066x\u2069"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    with sync_api.sync_playwright() as playwright:
        # Its own sandbox doesn't work for root, or in a container.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server over a user with two honest sessions, one of many lanes and edits, and a hostile one."""
    home = tmp_path_factory.mktemp("home")
    claude_code(home / ".claude")
    codex(home / ".codex")
    edited(home / ".claude" / "projects" / "edited" / "edited.jsonl")
    hostile(home / ".claude" / "projects" / "hostile" / "hostile.jsonl")
    with serving(LocalPlatform(env={}, home=str(home))) as served:
        yield served


def edited(path: Path) -> None:
    chain = {"sessionId": "edited", "cwd": "/work/edits", "isSidechain": False}
    edit = {"file_path": "/work/edits/a.py", "old_string": "one\nold\n", "new_string": "one\nnew\n"}
    call = {"type": "tool_use", "id": "t1", "name": "Edit", "input": edit}
    used = {"input_tokens": 1000, "output_tokens": 20}
    reply = {"id": "m1", "role": "assistant", "model": "claude-opus-4-8", "usage": used, "content": [call]}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "changed"}
    lines(
        path,
        {"type": "user", "timestamp": T0, "message": {"role": "user", "content": "edit the file"}, **chain},
        {"type": "assistant", "timestamp": T1, "message": reply, "costUSD": 0.25, **chain},
        {
            "type": "user",
            "timestamp": T1,
            "message": {"role": "user", "content": [result]},
            "toolUseResult": {"filePath": "/work/edits/a.py"},
            **chain,
        },
        *(
            {
                "type": "assistant",
                "timestamp": T2,
                "message": {
                    "id": f"n{number}",
                    "role": "assistant",
                    "content": [{"type": "text", "text": f"step {number}"}],
                },
                **chain,
            }
            for number in range(450)
        ),
    )


def hostile(path: Path) -> None:
    chain = {"sessionId": "hostile", "cwd": f"/{HOSTILE}", "gitBranch": HOSTILE}
    call = {"type": "tool_use", "id": "x", "name": HOSTILE, "input": {"file_path": HOSTILE, "content": HOSTILE}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": HOSTILE + DECEIVING}
    reply = {"id": "m", "model": HOSTILE, "content": [call], "usage": {"input_tokens": 1, "output_tokens": 1}}
    texts = [HOSTILE + DECEIVING, "x" * 10_000_000, "\u202e" * 100_000]
    lines(
        path,
        {"type": "user", "timestamp": T0, "message": {"role": "user", "content": HOSTILE + SEPARATED}, **chain},
        {"type": "assistant", "timestamp": T1, "message": reply, **chain},
        {
            "type": "user",
            "timestamp": T1,
            "message": {"role": "user", "content": [result]},
            "toolUseResult": {"type": "create", "filePath": HOSTILE},
            **chain,
        },
        *(
            {"type": "assistant", "timestamp": T2, "message": {"content": [{"type": "text", "text": text}]}, **chain}
            for text in texts
        ),
        {"type": "summary", "summary": HOSTILE, "leafUuid": "x"},
    )


class Tab:
    """One page of the browser, with what went wrong in it."""

    def __init__(self, page: Page, served: Served) -> None:
        self.page, self.served = page, served
        self.wrong: list[str] = []
        self.asked: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, place: str = "") -> None:
        """The address that was printed, then a place in it."""
        self.page.goto(f"{self.served.url}/#token={TOKEN}")
        self.page.wait_for_selector("progress[hidden]", state="attached")
        if place:
            self.page.goto(f"{self.served.url}/#/{place}")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()


@pytest.fixture
def tab(browser: Browser, people: Served) -> Iterator[Tab]:
    """A fresh one, in which nothing may go wrong, and that asks nobody but us."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    tab = Tab(page, people)
    yield tab
    assert tab.wrong == []
    assert all(url.startswith((people.url, "blob:")) for url in tab.asked)
    context.close()


def test_the_sessions_are_listed_and_filtered(tab: Tab) -> None:
    tab.open()
    assert TOKEN not in tab.page.url
    assert not any(TOKEN in url for url in tab.asked)
    assert tab.page.locator(".rows li").count() == 4
    tab.page.get_by_label("Agent", exact=True).select_option("codex")
    assert tab.page.locator(".rows .agent").all_inner_texts() == ["codex"]
    tab.page.get_by_label("Agent", exact=True).select_option("")
    tab.page.get_by_label("Directory", exact=True).select_option("/work/edits")
    assert tab.page.locator(".rows .title").all_inner_texts() == ["edit the file"]
    tab.page.get_by_label("Directory", exact=True).select_option("")
    tab.page.get_by_role("searchbox").fill("PARSER")
    assert tab.page.locator(".rows .title").all_inner_texts() == [ASKED, ASKED]


def test_what_was_said_is_searched_and_opened(tab: Tab) -> None:
    tab.open()
    tab.page.get_by_role("searchbox").fill("step 449")
    tab.page.keyboard.press("Enter")
    tab.page.locator(".excerpt").first.click()
    tab.page.wait_for_selector(".events li")
    assert tab.text("h1") == "edit the file"


def test_what_separates_lines_elsewhere_is_a_text_s_own(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".rows li", has_text="onerror").wait_for()
    tab.page.get_by_role("searchbox").fill("three")
    tab.page.get_by_role("button", name="Search").click()
    tab.page.locator(".rows .excerpt", has_text="three").wait_for()


def test_a_long_session_is_shown_to_its_end_with_its_edits_as_diffs(tab: Tab) -> None:
    tab.open("transcripts/claude-code/edited")
    tab.page.wait_for_selector(".diff")
    assert tab.text(".diff .gone").strip() == "-old"
    assert tab.text(".diff .add").strip() == "+new"
    assert "$0.25" not in tab.text(".prompt")
    more = tab.page.locator(".more")
    # Playwright's own way to scroll waits for what may be hidden by then.
    wait_until(
        lambda: more.evaluate("more => { more.scrollIntoView(); return more.hidden; }"), "the end of the session"
    )
    tab.page.get_by_text("step 449", exact=True).wait_for()
    assert tab.page.locator(".events li").count() == 452


def test_usage_has_costs(tab: Tab) -> None:
    tab.open("usage?by=agent")
    tab.page.wait_for_selector("table")
    assert "$0.25" in tab.text("tbody")
    assert "claude-code" in tab.text("tbody")


def test_it_is_used_without_a_mouse(tab: Tab) -> None:
    tab.open()
    keyboard = tab.page.keyboard
    keyboard.press("/")
    assert tab.page.get_by_role("searchbox").evaluate("each => each === document.activeElement")
    keyboard.type("edit the")
    tab.page.locator(".rows a").first.focus()
    keyboard.press("Enter")
    tab.page.wait_for_selector(".events summary")
    keyboard.press("Tab")
    tab.page.locator(".events summary").first.focus()
    keyboard.press("Enter")
    assert tab.page.locator(".events details").first.get_attribute("open") is None
    tab.page.go_back()
    tab.page.wait_for_selector(".rows a")


def test_who_skips_to_the_content_stays_where_they_are(tab: Tab) -> None:
    tab.open("usage")
    tab.page.wait_for_selector("tbody")
    tab.page.locator(".skip").focus()
    tab.page.keyboard.press("Enter")
    assert tab.page.locator("main").evaluate("each => each === document.activeElement")
    tab.page.reload()
    tab.page.wait_for_selector("tbody")


@pytest.mark.parametrize("place", ["transcripts/claude-code/%", "transcripts/claude-code/c1%2", "own/%zz?workspace=/"])
def test_an_address_that_was_cut_off_is_answered_with_words(tab: Tab, place: str) -> None:
    tab.open(place)
    assert tab.page.get_by_role("alert").inner_text()
    # That it's no session's, which the console says, too.
    tab.wrong.clear()


@pytest.mark.parametrize("place", ["", "transcripts/claude-code/hostile", "usage?by=model", "usage?by=project"])
def test_nothing_of_a_session_runs_or_is_markup(tab: Tab, place: str) -> None:
    tab.open(place)
    tab.page.wait_for_selector(".rows li, .events li, table")
    tab.page.get_by_text("onerror=", exact=False).first.wait_for(state="attached")
    for summary in tab.page.locator("summary:visible").all():
        summary.click()
    assert tab.page.locator("main img, main script, main iframe, main a[href^=javascript]").count() == 0
    assert all(
        href.startswith("#/")
        for href in tab.page.locator("main a").evaluate_all("x => x.map(a => a.getAttribute('href'))")
    )
    assert tab.page.title() != "taken"


def test_what_deceives_is_made_visible_and_what_is_endless_is_cut(tab: Tab) -> None:
    tab.open("transcripts/claude-code/hostile")
    tab.page.wait_for_selector(".events .rest")
    shown = tab.page.locator("main").inner_text()
    assert "\u241b[31mred" in shown
    assert "\\u{202e}gnp.exe" in shown
    assert not any(character in shown for character in "\x1b\x00\x07\u202e\u2066\u2069")
    assert len(shown) < 200_000
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    for width in (320, 360, 1280):
        tab.page.set_viewport_size({"width": width, "height": 800})
        assert not tab.page.evaluate(wide)


def test_the_policy_holds_against_the_page_s_own_mistakes(tab: Tab) -> None:
    tab.open()
    inserted = tab.page.evaluate(
        """() => {
            try { document.body.innerHTML = "<img src=x onerror=alert(1)>"; return "inserted"; }
            catch (error) { return error.name; }
        }"""
    )
    assert inserted == "TypeError"
    # Which the console says, on purpose.
    tab.wrong.clear()


class _Breaking(LocalPlatform):
    """A platform with a defect: a stream that has begun ends with an error."""

    def __init__(self, home: Path) -> None:
        super().__init__(env={}, home=str(home))
        self.fs = self  # type: ignore[assignment]

    async def stat(self, path: str) -> SessionStat:
        raise ZeroDivisionError


@pytest.mark.parametrize("place", ["", "usage"])
def test_what_was_cut_short_is_said_and_isn_t_waited_for_any_more(browser: Browser, tmp_path: Path, place: str) -> None:
    with serving(_Breaking(tmp_path)) as served:
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{served.url}/#token={TOKEN}")
        page.get_by_role("alert").wait_for()
        page.goto(f"{served.url}/#/{place}")
        page.get_by_role("alert").wait_for()
        assert page.locator("progress").count() == 1
        assert page.locator("progress:visible").count() == 0
        page.close()


def test_who_has_no_token_is_asked_for_it(browser: Browser, people: Served) -> None:
    page = browser.new_page()
    page.goto(people.url)
    page.get_by_role("alert").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector(".rows li")
    page.close()


def test_a_session_is_exported(tab: Tab) -> None:
    tab.open("transcripts/claude-code/c1")
    for button, name in (("Export Markdown", "session.md"), ("Export HTML", "session.html")):
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name=button).click()
        assert download.value.suggested_filename == name
        assert ASKED in Path(download.value.path()).read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Browser, people: Served, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{people.url}/#token={TOKEN}")
    page.wait_for_selector(".rows li")
    colours = page.evaluate(
        """() => ["--text", "--faint", "--accent", "--good", "--bad", "--warn", "--card", "--ground"].map((name) => {
            return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        })"""
    )
    *inks, card, ground = map(_luminance, colours)
    for ink in inks:
        for behind in (card, ground):
            assert (max(ink, behind) + 0.05) / (min(ink, behind) + 0.05) >= 4.5
    context.close()


def _luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(each * 2 for each in digits) if len(digits) == 3 else digits
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
