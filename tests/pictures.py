"""The two pictures of the README, of the pages of a tiny run: python tests/pictures.py out/tiny docs

By hand, after python tiny.py; needs what tests/requirements-browser.txt says.
"""
import os
import shutil
import sys

from PIL import Image
from playwright.sync_api import sync_playwright

# What is open: a problem that the memory solves at its second call, and the token on which the teacher insists most.
PICTURES = {"run": ("run.html", "sort=first&problem=arithmetic/680%2B465&step=2"), "tokens": ("tokens.html", "item=3")}


def main(run, folder):
    os.makedirs(folder, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (page, fragment) in PICTURES.items():
            tab = browser.new_page(viewport={"width": 1200, "height": 850})
            tab.goto(f"file://{os.path.abspath(os.path.join(run, page))}#{fragment}")
            tab.wait_for_selector("body[data-ready]")
            path = os.path.join(folder, f"{name}.png")
            tab.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
