"""Parse a page: its words, its tags, and whether every tag is closed."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "path", "use"}


class Page(HTMLParser):
    """The text and tags of a page; asserts that every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.tags = [], [], []
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))
