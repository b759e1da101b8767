// Whether the first terminals of a wall show so many letters each.
([tiles, letters]) => {
  const first = [...document.querySelectorAll("[data-tiles] > *")].slice(0, tiles);
  return first.length === tiles && first.every((tile) => tile.textContent.replace(/\s+/g, "").length > letters);
}
