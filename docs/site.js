// What is wider than the page can be scrolled by keys, too. The theme wraps tables after the page has been loaded.
addEventListener("load", () =>
  setTimeout(() => {
    for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img)")) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    }
  }, 200),
);
