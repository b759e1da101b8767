"use strict";
// The grid of a run: which tasks it shows, and in which order.
(() => {
  const body = document.querySelector(".grid tbody");
  const find = (name) => document.querySelector(`[data-grid-${name}]`);
  const [filter, kind, order, count] = ["filter", "kind", "order", "count"].map(find);
  if (!body || !filter) return;
  const rows = [...body.rows]; // as written: worst first
  const nameOf = (row) => row.cells[0].textContent;
  const orders = {
    worst: () => rows,
    best: () => [...rows].reverse(),
    name: () => [...rows].sort((one, other) => nameOf(one).localeCompare(nameOf(other), "en", { numeric: true })),
    slow: () => [...rows].sort((one, other) => other.dataset.sec - one.dataset.sec),
  };
  const show = () => {
    const wanted = filter.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const isOfKind = kind.value === "" || row.dataset.kinds.split(" ").includes(kind.value);
      row.hidden = !isOfKind || !nameOf(row).toLowerCase().includes(wanted);
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} tasks`;
  };
  filter.addEventListener("input", show);
  kind.addEventListener("change", show);
  order.addEventListener("change", () => body.append(...orders[order.value]()));
  show(); // a browser may keep a filter when it reloads the page
  if (order.value !== "worst") body.append(...orders[order.value]());
})();
