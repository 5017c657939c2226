"""Texts that break or take over the program that shows them: one list for all tests."""

import re

from markdown_it import MarkdownIt

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)

HOSTILE = {
    "escape sequence": "\x1b[31mred\x1b[2J\x1b[1;1Hgone",
    "C1 escape": "\x9b31mred\x9dtitle\x9c",
    "window title": "\x1b]0;pwned\x07after",
    "terminal link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "NUL": "a\x00b",
    "backspaces": "safe\b\b\b\bevil",
    "carriage return": "real\rfake",
    "Windows lines": "one\r\ntwo",
    "delete": "a\x7fb",
    "right to left": "user\u202eevil\u2066 \u200fname",
    "line separators": "a\u2028# b\u2029c\x85d\x0b\x0ce",
    "lone surrogate": "a\ud800b\udcffc",
    "no characters": "a\ufffeb\uffffc\ufeffd",
    "tags": "a\U000e0041\U000e0042b",
    "closing tag of Rich": "[/think]",
    "crossed tags of Rich": "a[/b] x [b]y[/i]",
    "colour of Rich": "[red]x",
    "link of Rich": "[link=https://evil.example]x[/link] [@click=app.quit]y[/]",
    "emoji code": ":warning: :smile:",
    "heading": "x\n# owned\n## owned too",
    "underlined heading": "x\n===\ny\n---\nz",
    "heading at once": "# owned",
    "list": "- owned",
    "numbered list": "1. owned\n2) twice",
    "quotation": "> owned",
    "rule": "---",
    "indented code": "    owned",
    "table row": "a | b\n--- | ---\nc | d |",
    "cell": "a|b\\|c",
    "backslash at the end": "ends with \\",
    "emphasis": "*a* **b** _c_ __d__ ~~e~~",
    "link": "[x](https://evil.example) ![y](https://evil.example/z.png) <https://evil.example>",
    "script link": "[x](javascript:alert(1))",
    "reference": "[a]: https://evil.example\n[a][a]",
    "fence": "```\n# owned\n````\n~~~\n</pre>",
    "backticks": "`a` ``b``` c`",
    "entity": "&lt;b&gt; &#x1b; &copy;",
    "element": "<b>bold</b><h1>owned</h1>",
    "script": "<script>window.owned = true</script>",
    "image": '<img src=x onerror="window.owned = true">',
    "out of an attribute": "\"><script>window.owned = true</script>",
    "out of an attribute, single": "' onmouseover='window.owned = true",
    "out of a summary": "</summary></details><script>window.owned = true</script>",
    "out of a page": "</pre></body></html><script>window.owned = true</script>",
    "comment": "<!-- --><svg onload=window.owned=true><!--",
    "CDATA": "]]><script>window.owned = true</script><![CDATA[",
    "front matter": "---\ntags: [owned]\n---\n# owned",
    "YAML": "x: {y: [z\n- a: &b *b\n!!python/object:os.system",
    "mathematics": "$x_{$",
    "mathematics of GitHub": "$$\\frac{1}{$$ \\(x\\) `$a$`",
    "many letters": "arm" * 30,
    "one long word": "x" * 5000,
    "many combining marks": "e" + "\u0301" * 200,
    "percent and braces": "%s %(x)d {0} {x!r} ${HOME} $(id) `id`",
    "path": "../../etc/passwd",
    "nothing": "",
    "blanks": " \t ",
}  # fmt: skip
"""What it attacks -> the text. Written as escapes, so that this file itself is harmless to read."""

FEW = "heading", "fence", "out of a summary", "mathematics", "many letters", "escape sequence"
"""One of each kind, for tests that need a second per text."""


def kinds(markdown: str) -> list[str]:
    """The kinds of blocks in a Markdown text, in order."""
    return [token.type for token in MARKDOWN.parse(markdown)]
