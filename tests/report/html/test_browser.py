"""The page in a real browser: it renders, its controls work, it fits a phone, and no text of the user's is executed.

All tests share one browser, and are skipped if there is none.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.records import Session
from slipstream.report.html.page import to_page

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not BROWSER or not DRIVER, reason="there is no chromium with its chromedriver here")

Browser = webdriver.Chrome


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def show(browser: Browser, folder: Path, html: str, width: int = 1280) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    browser.get(path.as_uri())


def point_at(browser: Browser, element: Any) -> None:
    """Scrolls the element into view and waits for the next frame, because scrolling hides tooltips."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    webdriver.ActionChains(browser).move_to_element(element).perform()


def errors(browser: Browser) -> list[Any]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def too_wide(browser: Browser) -> list[str]:
    """Returns the elements that reach beyond the screen. Elements inside a box that scrolls do not count."""
    found: list[str] = browser.execute_script(
        """const width = document.documentElement.clientWidth;
        const boxes = ".scroll, pre, svg, .hidden, .skip";
        return [...document.body.querySelectorAll("*")]
          .filter(e => !e.parentElement.closest(boxes) && !e.matches(".hidden, .skip"))
          .filter(e => { const b = e.getBoundingClientRect(); return b.right > width + 0.5 || b.left < -0.5; })
          .map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`);"""
    )
    return found


def test_it_renders_without_a_word_in_the_console(browser: Browser, folder: Path, long_page: str) -> None:
    show(browser, folder, long_page)
    assert errors(browser) == []
    took_ms = browser.execute_script(
        "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime"
    )
    print(f"2,000 steps: {len(long_page) / 1e6:.2f} MB, loaded in {took_ms:.0f} ms")
    heights = [picture.size["height"] for picture in browser.find_elements(By.CSS_SELECTOR, "[role=img]")]
    assert len(heights) == 18 and min(heights) > 20


def test_pictures_have_names(browser: Browser, folder: Path, full: Session) -> None:
    show(browser, folder, to_page(full))
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [node.get("name", {}).get("value", "") for node in nodes if node.get("role", {}).get("value") == "image"]
    assert len(named) >= 18 and all(named)
    landmarks = {node.get("role", {}).get("value") for node in nodes}
    assert {"banner", "navigation", "main", "contentinfo"} <= landmarks


def test_light_and_dark(browser: Browser, folder: Path, full: Session) -> None:
    def ground() -> str:
        return browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")

    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    show(browser, folder, to_page(full))
    before = ground()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    assert ground() != before
    toggle = browser.find_element(By.ID, "theme")
    toggle.click()
    assert ground() == before and toggle.text == "Dark"
    toggle.click()
    assert ground() != before
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.execute_script("try { localStorage.clear() } catch {}")


def test_tables_sort(browser: Browser, folder: Path, full: Session) -> None:
    show(browser, folder, to_page(full))
    table = browser.find_element(By.CSS_SELECTOR, "#tried table")

    def column(number: int) -> list[str]:
        rows: list[str] = browser.execute_script(
            "return [...arguments[0].tBodies[0].rows].map(row => row.cells[arguments[1]].textContent)", table, number
        )
        return rows

    heading = table.find_elements(By.TAG_NAME, "th")[3]
    assert heading.text == "step ms"
    button = heading.find_element(By.TAG_NAME, "button")
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    steps = [float(text.replace(",", "")) for text in column(3) if text]
    assert steps == sorted(steps, reverse=True) and column(3)[-1] == "", "what has no number comes last"
    button.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(text.replace(",", "")) for text in column(3) if text] == sorted(steps)
    table.find_elements(By.TAG_NAME, "th")[0].find_element(By.TAG_NAME, "button").click()
    assert column(0) == sorted(column(0), key=str.casefold) or column(0)[0] < column(0)[-1]
    assert heading.get_attribute("aria-sort") is None


def test_numbers_unfold_and_hints_show(browser: Browser, folder: Path, full: Session) -> None:
    show(browser, folder, to_page(full))
    details = browser.find_element(By.CSS_SELECTOR, "#phases details")
    assert not details.find_element(By.TAG_NAME, "table").is_displayed()
    details.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert details.find_element(By.TAG_NAME, "table").is_displayed()
    bar = browser.find_element(By.CSS_SELECTOR, "#phases .rows rect.phase-input")
    tip = browser.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    point_at(browser, bar)
    assert tip.is_displayed() and tip.text.startswith("input 41 ms")
    webdriver.ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_the_pointer_shows_the_memory_of_a_step(browser: Browser, folder: Path, memory: Session) -> None:
    show(browser, folder, to_page(memory))
    areas = browser.find_elements(By.CSS_SELECTOR, "#live-bytes path.area")
    colours = [area.value_of_css_property("fill") for area in areas]
    assert len(areas) == 4 and len(set(colours)) == 4, "a colour for each kind that is there"
    stretches = browser.find_elements(By.CSS_SELECTOR, "#live-bytes .hit")
    point_at(browser, stretches[2])
    assert browser.find_element(By.ID, "tip").text.startswith("3.0 ms, backward: 76 MB; parameters 4 MB")
    assert errors(browser) == []


def test_the_keyboard_finds_its_way(browser: Browser, folder: Path, full: Session) -> None:
    show(browser, folder, to_page(full))
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the report" and skip.rect["x"] >= 0
    assert browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("width", [360, 768])
def test_it_fits_a_phone(browser: Browser, folder: Path, full: Session, width: int) -> None:
    show(browser, folder, to_page(full), width)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert too_wide(browser) == []


def test_no_text_of_the_user_runs(browser: Browser, folder: Path, attack: Session) -> None:
    show(browser, folder, to_page(attack), 360)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    shape = browser.find_element(By.CSS_SELECTOR, "#blocks circle.mark-kept")
    point_at(browser, shape)
    assert browser.execute_script("return window.pwned") is None
    assert "<script>" in browser.find_element(By.TAG_NAME, "h1").text
    assert "<img" in browser.find_element(By.ID, "tip").text
    assert errors(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    assert too_wide(browser) == []


def test_it_prints(browser: Browser, folder: Path, full: Session) -> None:
    show(browser, folder, to_page(full))
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    body, toggle = browser.find_element(By.TAG_NAME, "body"), browser.find_element(By.ID, "theme")
    assert body.value_of_css_property("background-color") == "rgba(255, 255, 255, 1)", "paper is light"
    assert not toggle.is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
