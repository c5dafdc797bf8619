"""A hook of mkdocs: links from pages to files of the repository that are no pages.

On the site there is nothing behind them, so they become the name of the file; in the repository they stay links.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    docs, folder = Path(config.docs_dir).resolve(), Path(page.file.abs_src_path).parent

    def shown(link: re.Match[str]) -> str:
        target = (folder / link["target"].split("#")[0]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        name = target.relative_to(docs.parent).as_posix()
        return link["text"] if Path(link["text"]).name == target.name else f"{link['text']} (`{name}`)"

    return _LINK.sub(shown, markdown)
