#!/usr/bin/env python3
"""The report in a real browser: headless Chromium (Debian's chromium), light and dark, 1280 and 390
pixels wide; of a recorded run, and of one in which every experiment of the catalogue has figures.

Asks the browser where it put things: nothing wider than the window, no two texts of a chart on each
other, figures and charts there and visible; and looks at a screenshot: not empty, and dark when
dark was asked for. Skips, and says so, where there is no chromium; with SLUICE_REQUIRE=browser that
is a failure.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from html import escape, unescape

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "benchmarks")]

import experiments as catalogue  # noqa: E402
import made_up  # noqa: E402
import page  # noqa: E402

WIDTHS, HEIGHT = (1280, 390), 900
SCHEMES = {"light": 1, "dark": 0}  # Blink's numbers for prefers-color-scheme
LIMIT_SECONDS = 90

# Runs in the page, in a copy of it whose policy lets it; the page itself has no script.
PROBE = """
const boxes = (root, selector) => [...root.querySelectorAll(selector)].map(
  each => [each.getBoundingClientRect(), each.textContent]);
const overlapping = [];
for (const chart of document.querySelectorAll('svg.chart')) {
  const texts = boxes(chart, 'text'), around = chart.getBoundingClientRect();
  for (const [a, name] of texts) {
    if (a.left < around.left - 1 || a.right > around.right + 1 || a.bottom > around.bottom + 1)
      overlapping.push([name, 'outside']);
  }
  for (let i = 0; i < texts.length; ++i) for (let j = i + 1; j < texts.length; ++j) {
    const [a, first] = texts[i], [b, second] = texts[j];
    if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
      overlapping.push([first, second]);
  }
}
const page = document.documentElement;
const wide = [...document.querySelectorAll('body *')]
  .filter(each => each.getBoundingClientRect().right > page.clientWidth + 1)
  .filter(each => !each.closest('thead'))
  .map(each => each.tagName + ' ' + each.textContent.slice(0, 40));
const crossing = [];
for (const row of document.querySelectorAll('tbody tr')) {
  const cells = [...row.children].map(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return [range.getBoundingClientRect(), cell.textContent];
  }).filter(each => each[0].width > 0);
  for (let i = 0; i < cells.length; ++i) for (let j = i + 1; j < cells.length; ++j) {
    const [a, first] = cells[i], [b, second] = cells[j];
    if (a.left < b.right - 1 && b.left < a.right - 1 &&
        a.top < b.bottom - 1 && b.top < a.bottom - 1) crossing.push([first, second]);
  }
}
const colour = element => getComputedStyle(element);
const report = {width: window.innerWidth, scroll: page.scrollWidth - page.clientWidth, overlapping,
  wide, crossing,
  charts: boxes(document, 'svg.chart').map(each => [each[0].width, each[0].height]),
  bars: boxes(document, 'svg.bar rect').filter(each => each[0].width > 1).length,
  ground: colour(document.body).backgroundColor, ink: colour(document.body).color,
  small: Math.min(...boxes(document, 'svg.chart text').map(each => each[0].height)),
  strokes: [...new Set([...document.querySelectorAll('svg.chart polyline')]
    .map(each => colour(each).stroke))]};
parent.document.getElementById('probe').textContent = JSON.stringify(report);
"""


def browser():
    return shutil.which("chromium")


def crowded(result):
    """The result with a chart of 24 sizes and figures of nine decades, and a name without a
    space."""
    answer = next(one for one in result["answers"] if one["question"] == "copy_or_not")
    like = next(row for row in answer["rows"] if row.get("series") and row["summary"])
    for power in range(24):
        figure = 3.0 ** (power + 1)
        summary = {
            "median": figure, "min": figure * 0.7, "max": figure * 1.4, "low": figure * 0.8,
            "high": figure * 1.3, "how": "order", "rounds": 9}
        answer["rows"].append(
            dict(
                like, name="crowded" * 12 + str(power), series="crowded" * 12, size=1 << power,
                summary=summary))
    return result


def probed(html, width):
    """The page with the probe, without the policy that would stop it, in a frame: a window is never
    narrower than 500 pixels."""
    text = re.sub(r"<meta http-equiv=[^>]*>", "", html).replace(
        "</body>", f"<script>{PROBE}</script></body>")
    return (
        '<!doctype html><html style="color-scheme: light dark"><body style="margin: 0"><pre'
        f' id="probe"></pre><iframe style="border: 0; width: {width}px; height: {HEIGHT}px"'
        f' srcdoc="{escape(text, quote=True)}"></iframe></body></html>')


def run_browser(folder, path, width, scheme, *what):
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--no-first-run", "--disable-extensions", f"--user-data-dir={folder}/profile",
        f"--window-size={width},{HEIGHT}",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *what, f"file://{path}"]
    environment = dict(os.environ, HOME=folder, XDG_CONFIG_HOME=folder, XDG_CACHE_HOME=folder)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment, check=True
    ).stdout


def unpack(png):
    """(width, height, rows of bytes, bytes per pixel) of an 8-bit PNG (RFC 2083)."""
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            step = {2: 3, 6: 4}[colour]
            assert depth == 8
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, rows, before = zlib.decompress(data), [], bytes(width * step)
    for line in range(height):
        start = line * (width * step + 1)
        before = unfilter(
            raw[start], bytearray(raw[start + 1 : start + 1 + width * step]), before, step)
        rows.append(before)
    return width, height, rows, step


def unfilter(kind, row, above, step):
    for at in range(len(row) if kind else 0):
        left, up, corner = (
            (row[at - step] if at >= step else 0), above[at],
            (above[at - step] if at >= step else 0))
        if kind == 4:
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
        else:
            nearest = (0, left, up, (left + up) // 2)[kind]
        row[at] = (row[at] + nearest) & 255
    return bytes(row)


class InTheBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        with open(os.path.join(HERE, "recorded.json"), encoding="utf-8") as file:
            recorded = json.load(file)
        pages = {
            "recorded": page.html(crowded(recorded)),
            "whole catalogue": page.html(made_up.run_of(catalogue.load(), recorded))}
        cls.paths = {}
        for which, html in pages.items():
            for width, text in [(None, html)] + [(width, probed(html, width)) for width in WIDTHS]:
                cls.paths[which, width] = os.path.join(cls.folder.name, f"{which}{width}.html")
                with open(cls.paths[which, width], "w", encoding="utf-8") as file:
                    file.write(text)
        cls.measured = {
            (which, width, scheme): cls.measure(which, width, scheme)
            for which in pages
            for width in WIDTHS
            for scheme in SCHEMES}

    @classmethod
    def measure(cls, which, width, scheme):
        shown = run_browser(cls.folder.name, cls.paths[which, width], 1400, scheme, "--dump-dom")
        return json.loads(
            unescape(re.search(r'<pre id="probe">(.*?)</pre>', shown, re.DOTALL).group(1)))

    def each(self, check):
        for (which, width, scheme), found in self.measured.items():
            with self.subTest(which=which, width=width, scheme=scheme):
                check(width, scheme, found)

    def test_has_the_width_of_the_window_and_no_horizontal_scroll(self):
        def check(width, _, found):
            self.assertEqual((found["width"], found["scroll"], found["wide"]), (width, 0, []))
        self.each(check)

    def test_draws_no_text_over_another_and_none_outside_of_its_chart(self):
        def check(_width, _, found):
            self.assertEqual((found["overlapping"], found["crossing"]), ([], []))
            self.assertGreaterEqual(found["small"], 8.0)
        self.each(check)

    def test_shows_charts_and_bars(self):
        def check(width, _, found):
            self.assertTrue(found["charts"])
            self.assertTrue(
                all(wide > 0.7 * min(width, 500) and high > 150 for wide, high in found["charts"]),
                found["charts"])
            self.assertGreater(found["bars"], 10)
        self.each(check)

    def test_is_light_or_dark_as_the_reader_prefers_with_other_colours_for_the_lines(self):
        def lightness(colour):
            return sum(int(each) for each in re.findall(r"\d+", colour)[:3]) / 3

        def check(_, scheme, found):
            self.assertEqual(
                (lightness(found["ground"]) < 60, lightness(found["ink"]) > 190),
                (scheme == "dark",) * 2)
        self.each(check)
        self.assertFalse(
            set(self.measured["recorded", 1280, "light"]["strokes"])
            & set(self.measured["recorded", 1280, "dark"]["strokes"]))

    def test_is_not_empty_in_a_screenshot(self):
        for width, scheme in ((1280, "light"), (390, "dark")):
            with self.subTest(width=width, scheme=scheme):
                picture = os.path.join(self.folder.name, "picture.png")
                run_browser(
                    self.folder.name, self.paths["recorded", None], width, scheme,
                    f"--screenshot={picture}")
                with open(picture, "rb") as file:
                    found_width, height, rows, step = unpack(file.read())
                self.assertEqual((found_width, height), (width, HEIGHT))
                pixels = [
                    row[at : at + 3] for row in rows[::3] for at in range(0, width * step, 2 * step)
                ]
                ground = rows[0][:3]
                self.assertEqual(ground[0] < 60, scheme == "dark")
                inked = sum(pixel != ground for pixel in pixels) / len(pixels)
                self.assertTrue(0.01 < inked < 0.6, inked)
                self.assertGreater(len(set(pixels)), 30)


if __name__ == "__main__":
    if browser() is None:
        print(
            "page_browser_test: chromium is not installed (Debian package chromium): nothing was"
            " tested",
            file=sys.stderr)
        print("sluice-skips 5")
        sys.exit(1 if os.environ.get("SLUICE_REQUIRE") == "browser" else 0)
    unittest.main()
