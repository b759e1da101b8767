// What reaches beyond the right edge of a page, unless it scrolls in a region of its own; or of its cell in a table.
() => {
  const wide = document.documentElement.clientWidth;
  const over = [...document.querySelectorAll("td, tbody th")]
    .filter((cell) => cell.clientWidth && cell.scrollWidth > cell.clientWidth + 1)
    .map((cell) => `beyond its cell: ${cell.outerHTML.slice(0, 160)}`);
  if (document.documentElement.scrollWidth <= wide) return over.slice(0, 5);
  const scrolls = (element) => {
    for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const out = [...document.body.querySelectorAll("*")].filter(
    (element) => element.getBoundingClientRect().right > wide + 1 && !scrolls(element));
  return [`the page is ${document.documentElement.scrollWidth} px wide`].concat(
    out.slice(0, 5).map((element) => element.outerHTML.slice(0, 160)));
}
