"use strict";
// The list of tasks: sorted by any column, filtered by name and by how often a task is solved.
(() => {
  const table = document.getElementById("task-table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const filter = document.getElementById("task-filter");
  const count = document.getElementById("task-count");
  const buttons = [...document.querySelectorAll("button[data-kind]")];
  let kind = "";

  const show = () => {
    const words = filter.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = (!kind || row.dataset.kind === kind) && row.cells[0].dataset.value.toLowerCase().includes(words);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = shown === rows.length ? "" : shown === 0 ? "no match" : `${shown} of ${rows.length}`;
  };

  const compare = (column, isNumber, direction) => (a, b) => {
    const [one, other] = [a.cells[column].dataset.value, b.cells[column].dataset.value];
    return direction * (isNumber ? Number(one) - Number(other) : one.localeCompare(other));
  };

  const sort = (head) => {
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    rows.sort(compare(head.cellIndex, head.dataset.sort === "number", direction));
    body.append(...rows);
  };

  for (const head of table.querySelectorAll("th[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head));
    head.replaceChildren(button);
  }
  for (const button of buttons)
    button.addEventListener("click", () => {
      kind = button.dataset.kind;
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      show();
    });
  filter.addEventListener("input", show);
})();
