"""The picture of the step in a browser: size of the page, first paint, frames while it moves.

    python -m benchmarks.step_picture                     # 64 and 1,024 generated ranks
    python -m benchmarks.step_picture --page report.html  # a page of your own
    python -m benchmarks.step_picture --page report.html --shot page.png --run "…"

Chromium is driven through its DevTools protocol over a pipe, so that nothing is installed. Frames
are those between calls of ``requestAnimationFrame`` while the picture is dragged and zoomed with
all ranks unfolded. A machine without a GPU, or a busy one, drops frames that a script made in time:
CPU time of the script per frame, and of all the page's main thread, is in columns of their own.
Expected: a page of 64 ranks takes at most 2 MB and one of 1,024 ranks 4 MB, first paint comes
within 0.5 s, half of the frames come within 17 ms, and a frame costs the script at most 6 ms.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measuring import machine, print_table  # noqa: E402

MOVES = """
new Promise((done) => {
  const canvas = document.querySelector(".step-picture canvas");
  const lists = [...document.querySelectorAll(".step-picture select")];
  const all = lists.find((list) => [...list.options].some((one) => one.value === "all"));
  all.value = "all";
  all.dispatchEvent(new Event("change"));
  canvas.focus();
  const gaps = [];
  let last = 0;
  const wheel = (shiftKey, deltaY) => canvas.dispatchEvent(
    new WheelEvent("wheel", { deltaY, shiftKey, cancelable: true, bubbles: true }));
  const frame = (now) => {
    if (last) gaps.push(now - last);
    last = now;
    if (gaps.length === 180) { done(JSON.stringify(gaps.sort((a, b) => a - b))); return; }
    wheel(gaps.length % 3 > 0, gaps.length % 60 < 30 ? -60 : 60);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})
"""
PAINT = """
new Promise((done) => {
  const seen = () => {
    const one = performance.getEntriesByName("first-contentful-paint")[0];
    if (one) done(one.startTime);
    else if (performance.now() > 10_000) done(null); else setTimeout(seen, 20);
  };
  seen();
})
"""

LOGGED = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
PATIENCE_S = 120


class Browser:
    """A headless Chromium with one page.

    Attributes:
        logged: What the page wrote to the console, what it raised and what its policy refused,
            in JSON; of domains that were enabled (``Log.enable``, ``Runtime.enable``).
    """

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            raise SystemExit("no Chromium: apt-get install chromium")
        there, self._out = os.pipe()
        self._in, here = os.pipe()
        command = (
            f"exec {chromium} --headless --no-sandbox --remote-debugging-pipe --disable-gpu "
            f"--window-size={size[0]},{size[1]} --user-data-dir={folder} 3<&{there} 4>&{here}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(there, here), stderr=subprocess.DEVNULL
        )
        os.close(there)
        os.close(here)
        self._number, self._rest = 0, b""
        self.logged: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda one: one.get("id") == self._number)
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path) -> None:
        """Load a page and wait until it has loaded."""
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda one: one.get("method") == "Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **given)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2_000])
        return answer["result"].get("value")

    def spent_ms(self) -> dict[str, float]:
        """CPU time of the main thread so far, by what it did; what else runs does not count."""
        found = self.call("Performance.getMetrics")["metrics"]
        return {one["name"]: 1_000 * one["value"] for one in found}

    def shot(self, file: Path) -> None:
        """Write what is seen as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self.call("Browser.close")
        self._process.wait()

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            while b"\0" not in self._rest:
                self._rest += self._received()
            text, _, self._rest = self._rest.partition(b"\0")
            one: dict[str, Any] = json.loads(text)
            if one.get("method") in LOGGED:
                self.logged.append(json.dumps(one["params"]))
            if wanted(one):
                return one

    def _received(self) -> bytes:
        readable, _, _ = select.select([self._in], [], [], PATIENCE_S)
        received = os.read(self._in, 1 << 20) if readable else b""
        if not received:
            raise RuntimeError("Chromium ended" if readable else f"no answer in {PATIENCE_S} s")
        return received


def generated(num_ranks: int, folder: Path) -> Path:
    """The page of a generated job (:mod:`benchmarks.large_jobs`)."""
    from benchmarks.large_jobs import Job, run_of
    from distprof import analyze
    from distprof.documents.html.report import report_html
    from distprof.formats import RenderOptions

    report = analyze(run_of(Job(num_ranks=num_ranks, num_steps=4, seed=0)))
    file = folder / f"{num_ranks}.html"
    file.write_text(report_html(report, RenderOptions()), encoding="utf-8")
    return file


def measured(page: Path, folder: Path) -> tuple[str, ...]:
    """A row of the table."""
    browser = Browser(folder / f"profile-{page.stem}", (1280, 900))
    try:
        browser.open(page)
        paint = browser.run(PAINT)
        if paint is None or not browser.run("!!document.getElementById('picture')"):
            raise SystemExit(f"{page}: no page with a picture of the step")
        before = browser.spent_ms()
        gaps = json.loads(browser.run(MOVES))
        after = browser.spent_ms()
    finally:
        browser.close()
    script, main_thread = (
        (after[name] - before[name]) / len(gaps) for name in ("ScriptDuration", "TaskDuration")
    )
    rate = 1_000 * len(gaps) / sum(gaps)
    return (
        page.stem,
        f"{page.stat().st_size / 1e6:.2f}",
        f"{paint:.0f}",
        f"{rate:.0f}",
        f"{gaps[len(gaps) // 2]:.1f}",
        f"{gaps[int(len(gaps) * 0.95)]:.1f}",
        f"{script:.1f}",
        f"{main_thread:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--page", type=Path, help="measure this page instead")
    parser.add_argument("--shot", type=Path, help="write a picture of the page, measure nothing")
    parser.add_argument("--run", default="", help="script to run before that picture")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if options.page and options.shot:
            browser = Browser(folder / "profile", (options.width, options.height))
            browser.open(options.page)
            if options.run:
                print(browser.run(options.run))
            browser.run("new Promise((done) => setTimeout(done, 200))")
            browser.shot(options.shot)
            browser.close()
            return
        print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
        pages = [options.page] if options.page else [generated(n, folder) for n in options.ranks]
        rows = [measured(page, folder) for page in pages]
        times = ("median ms", "95 % ms", "script ms", "main thread ms")
        titles = ("page", "MB", "first paint ms", "frames/s", *times)
        print_table(titles, rows)


if __name__ == "__main__":
    main()
