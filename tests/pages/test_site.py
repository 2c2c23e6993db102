"""The site has every page and every key, its links lead somewhere, and nothing in it comes from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docs.site.reference import commands_page, config_page, sections

from headgate import __version__
from headgate.__main__ import app
from headgate.config.gateway import GatewayConfig, ObserveConfig
from headgate.export.prometheus_rules import rules
from headgate.model.lane import LANES
from headgate.policy.promises.slo import Slo
from tests.pages.blocks import ROOT

DOCS = ROOT / "docs"
MADE = ("config.md", "cli.md", "example.md")
"""Pages that only the site has: made from the code."""
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
SLUG = re.compile(r"[^\w\- ]")


def anchors_in(path: Path) -> set[str]:
    return anchors_of(re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL))


def test_every_link_of_a_document_leads_to_a_file_and_a_heading() -> None:
    """Among the files of the repository; `make docs` checks the site's own."""
    lost, seen = [], 0
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md"]:
        text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link, picture in LINK.findall(text):
            target, _, anchor = (link or picture).partition("#")
            if re.match(r"\w+:", target):
                continue
            seen += 1
            file = path if not target else (path.parent / target).resolve()
            if file.parent == DOCS and file.name in MADE:
                continue
            if not file.exists() or (anchor and anchor not in anchors_in(file)):
                lost.append(f"{path.relative_to(ROOT)}: {link or picture}")
    assert seen > 180
    assert lost == []


def test_every_document_is_in_the_menu() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    names = {path.name for path in DOCS.glob("*.md")} | set(MADE)
    assert sorted(name for name in names if not re.search(rf"^ +- {re.escape(name)}$", nav, re.MULTILINE)) == []


def test_the_config_page_has_every_key_with_its_meaning() -> None:
    page, found = config_page(), {path: keys for path, _, keys in sections()}
    assert {key.name for key in found[""]} >= {"listen", "lanes", "tenants", "replicas", "models", "observe"}
    assert {key.name for key in found["lanes.NAME"]} >= {"ttft_target_s", "when_late"}
    assert len(found) > 30
    assert [f"{path}.{key.name}" for path, keys in found.items() for key in keys if not key.meaning] == []
    in_example = re.findall(r"^ +(\w+): ", (ROOT / "headgate.example.yaml").read_text(), re.MULTILINE)
    names = {key.name for keys in found.values() for key in keys}
    assert len(names & set(in_example)) > 120
    assert all(f"| `{name}` |" in page for name in names)
    targets = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert targets <= anchors_of(page)


def anchors_of(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", SLUG.sub("", head.replace("`", "")).strip().lower()) for head in heads}


def test_the_commands_page_has_every_command() -> None:
    page = commands_page()
    names = [name for name in app if not name.startswith("-")]
    assert len(names) > 12
    assert [name for name in names if f"\n## headgate {name}\n" not in page] == []
    assert "--replica" in page


def test_the_alert_page_has_every_alert_and_no_other() -> None:
    text = (DOCS / "alerts.md").read_text(encoding="utf-8")
    state = Slo(LANES, ObserveConfig()).state(0.0)
    raised = {known.alert for _, known in state.promises} | {known.alert for known in state.alerts}
    ruled = set(re.findall(r"^ *- alert: (\w+)$", rules(GatewayConfig()), re.MULTILINE))
    assert len(raised) > 15
    assert len(ruled) > 15
    heads = set(re.findall(r"^### `(\w+)`$", text, re.MULTILINE))
    assert heads == raised | {"HeadgateGatewayGone"}
    assert {name for name in ruled if f"`{name}`" not in text} == set()
    assert set(re.findall(r"`(Headgate[A-Z]\w+)`", text)) == ruled


def test_the_version_has_its_part_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(__version__)}\b", text, re.MULTILINE)


def test_each_picture_of_the_site_follows_the_readers_colours() -> None:
    pictures = [path for path in (DOCS / "images").glob("*.svg") if path.name not in ("tail.svg", "gap.svg")]
    assert len(pictures) >= 6
    for path in pictures:
        text = path.read_text()
        assert "prefers-color-scheme: dark" in text, path.name
        assert re.search(r"<title>[^<]{40,}</title>", text), path.name


def test_the_menu_and_the_extensions_name_nothing_to_be_fetched() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["strict"] is True
    assert config["theme"]["font"] is False
    assert "extra_javascript" not in config
    assert "extra_css" not in config


@pytest.mark.timeout(120)
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("the site's tools are not here: make docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("index.html"))
    assert len(pages) > 60
    assert (tmp_path / "config" / "index.html").is_file()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)\"", text)
        assert fetched == [], page
