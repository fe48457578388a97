"""MkDocs hooks: pages of notebooks and of linked source files, formulas as MathML, and fences around doctests."""

import html
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension
from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()((?:\.\./)+[^)#\s]+)(?=[)#])")
UNLISTED = "---\nsearch:\n  exclude: true\n---\n"
MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def notebook_page(path: Path) -> str:
    """Convert an executed notebook into Markdown, with its outputs."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"~~~python\n{source}\n~~~")
        parts += map(output_page, cell.get("outputs", ()))
    return "\n\n".join(parts) + "\n"


def output_page(output: dict[str, Any]) -> str:
    data = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return f'<img src="data:{kind};base64,{data[kind].strip()}" alt="output of the cell above">'
    if "<img" in data.get("text/html", ""):
        return data["text/html"]
    text = data.get("text/plain", "".join(output.get("text", ())))
    return "~~~text\n" + re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip() + "\n~~~" if text.strip() else ""


def outside(uri: str, target: str) -> str:
    """Return the repository path of a link that leaves docs/ for a file, or an empty string."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
    return "" if path.startswith("docs/") or not (ROOT / path).is_file() else path


def on_files(files: Any, config: Any) -> Any:
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook)))
    linked = {
        outside(page.src_uri, to) for page in files.documentation_pages() for to in LINK.findall(page.content_string)
    }
    for path in sorted(linked - {""}):
        text = (ROOT / path).read_text()
        text = text.replace("](docs/", "](../") if path.endswith(".md") else f"# {path}\n\n~~~python\n{text}\n~~~\n"
        files.append(File.generated(config, f"source/{path}.md", content=f"{UNLISTED}{text}"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    up, uri = "../" * page.file.src_uri.count("/"), page.file.src_uri
    markdown = re.sub(r"(?<=\]\()((?:\.\./)*notebooks/\w+)\.ipynb(?=\))", r"\1.md", markdown)
    return LINK.sub(lambda link: f"{up}source/{path}.md" if (path := outside(uri, link[1])) else link[1], markdown)


def on_page_content(content: str, **_: Any) -> str:
    return MATH.sub(lambda m: convert(html.unescape(m[3]), display="inline" if m[1] == "span" else "block"), content)


class Doctests(Extension):
    """Fence the ``>>>`` lines of docstrings, which Markdown would render as quotations."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring and "Examples:" not in obj.docstring.value and "```" not in obj.docstring.value:
            lines = r"((?:^[ \t]*(?:>>>|\.\.\. ).*\n?)+)"
            obj.docstring.value = re.sub(lines, r"```pycon\n\1\n```\n", obj.docstring.value, flags=re.MULTILINE)
