"use strict";
// Tables: sorted by any column, filtered, with chosen columns, as CSV and JSON. The address keeps all choices.
(() => {
  const { element } = TB;
  const address = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const keep = (key, value) => {
    if (value) address.set(key, value);
    else address.delete(key);
    history.replaceState(null, "", `#${address}`);
  };
  const textOf = (cell) => (cell ? (cell.dataset.value ?? cell.textContent).replace(/\s+/g, " ").trim() : "");
  const numberOf = (cell) => {
    const text = textOf(cell).replace(/,/g, "").replace("−", "-");
    const [, first, unit, second] = /^(\d+) (h|min) (\d+)/.exec(text) || [];
    return unit ? (unit === "h" ? 3600 : 60) * first + (unit === "h" ? 60 : 1) * second : parseFloat(text);
  };

  class Table {
    constructor(table) {
      this.table = table;
      this.name = table.dataset.table || "";
      this.heads = [...table.tHead.rows[0].cells];
      this.columns = this.heads.map((head) => head.dataset.name || textOf(head));
      this.bodies = [...table.tBodies].map((body) => {
        const rows = [...body.rows].filter((row) => !row.matches(".group, .total"));
        return { body, rows, total: body.querySelector(".total"), head: body.querySelector(".group"), open: !("folded" in body.dataset) };
      });
      this.rows = this.bodies.flatMap((each) => each.rows);
      this.matching = new Set(this.rows);
      this.kinds = [];
      if (this.rows.length > 1) this.heads.forEach((head, at) => this.addSort(head, at));
      if (this.name && this.rows.length > 1) this.addTools();
      for (const each of this.bodies) if ("folded" in each.body.dataset) this.addFold(each);
      this.restore();
    }

    key(at) {
      return this.columns[at].toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
    }

    addSort(head, at) {
      if (head.dataset.sort === "none" || !this.columns[at]) return;
      const button = element("button", "sort", ...head.childNodes);
      button.type = "button";
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
        this.sort(at, next === undefined ? "ascending" : next);
      });
      head.append(button);
    }

    /** Sort by a column; without a direction, as the page was written. What has no value comes last. */
    sort(at, direction) {
      const head = this.heads[at];
      const sign = direction === "descending" ? -1 : 1;
      const isNumber = head.classList.contains("num") || head.dataset.sort === "number";
      const compare = (one, other) => {
        const [a, b] = [one.cells[at], other.cells[at]];
        if (!isNumber) return sign * textOf(a).localeCompare(textOf(b), "en", { numeric: true });
        const [x, y] = [numberOf(a), numberOf(b)];
        return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) : sign * (x - y);
      };
      for (const other of this.heads) other.removeAttribute("aria-sort");
      if (direction) head.setAttribute("aria-sort", direction);
      for (const { body, rows, total } of this.bodies) body.append(...(direction ? [...rows].sort(compare) : rows), ...(total ? [total] : []));
      if (this.name) keep(`${this.name}.sort`, direction && (sign < 0 ? "-" : "") + this.key(at));
    }

    addTools() {
      const title = this.table.caption?.textContent.trim() || this.name;
      this.field = Object.assign(element("input", "field"), { type: "search", placeholder: "filter", autocomplete: "off" });
      this.field.setAttribute("aria-label", `Filter: ${title}`);
      this.field.addEventListener("input", () => this.show());
      this.kinds = JSON.parse(this.table.dataset.choices || "[]").map(([all, options]) => {
        const select = element("select", "field", new Option(all, ""), ...options.map(([value, words]) => new Option(words, value)));
        select.setAttribute("aria-label", all);
        select.addEventListener("change", () => this.show());
        return select;
      });
      this.count = element("output", "small soft");
      const save = ["csv", "json"].map((kind) => {
        const button = Object.assign(element("button", "button", kind.toUpperCase()), { type: "button", title: `Download as ${kind}` });
        button.addEventListener("click", () => this.save(kind));
        return button;
      });
      const tools = element("div", "table-tools", this.field, ...this.kinds, this.chooser(), ...save, this.count);
      (this.table.closest(".scroll") || this.table).before(tools);
    }

    /** The choice of columns. The first always stays. */
    chooser() {
      this.boxes = this.columns.map((name, at) => {
        const box = Object.assign(element("input"), { type: "checkbox", checked: !("hidden" in this.heads[at].dataset) });
        box.addEventListener("change", () => this.showColumns());
        return at && name ? box : null;
      });
      const labels = this.boxes.map((box, at) => box && element("label", "", box, ` ${this.columns[at]}`));
      return element("details", "chooser", element("summary", "button", "columns"), element("div", "", ...labels.filter(Boolean)));
    }

    showColumns() {
      this.boxes.forEach((box, at) => {
        if (box) for (const row of [this.heads[at].parentElement, ...this.rows]) if (row.cells[at]) row.cells[at].hidden = !box.checked;
      });
      const changed = this.boxes.map((box, at) => box && box.checked === "hidden" in this.heads[at].dataset && this.key(at));
      keep(`${this.name}.columns`, changed.filter(Boolean).join(","));
    }

    /** Show the rows that match, and all of a folded part if there is a filter. */
    show() {
      const words = this.field?.value.trim().toLowerCase() || "";
      const kinds = this.kinds.map((select) => select.value).filter(Boolean);
      const fits = (row) => {
        const own = (row.dataset.kinds || "").split("|");
        return kinds.every((kind) => own.includes(kind)) && (!words || row.textContent.toLowerCase().includes(words));
      };
      this.matching = new Set(this.rows.filter(fits));
      for (const { rows, head, open } of this.bodies) {
        for (const row of rows) row.hidden = !this.matching.has(row) || !(open || words || kinds.length);
        if (head) head.hidden = !rows.some((row) => this.matching.has(row));
      }
      if (!this.field) return;
      const { size } = this.matching;
      this.count.textContent = size === this.rows.length ? "" : `${size} of ${this.rows.length}`;
      keep(`${this.name}.find`, words);
      keep(`${this.name}.kinds`, kinds.join("|"));
    }

    addFold(part) {
      const head = part.head.cells[0];
      const button = Object.assign(element("button", "fold-button", ...head.childNodes), { type: "button" });
      const press = () => button.setAttribute("aria-expanded", String(part.open));
      button.addEventListener("click", () => {
        part.open = !part.open;
        press();
        this.show();
      });
      press();
      head.append(button);
    }

    /** Bring back what the address says. */
    restore() {
      const asked = (name) => address.get(`${this.name}.${name}`) || "";
      if (this.field) {
        const [sorted, kinds, columns] = [asked("sort"), asked("kinds").split("|"), asked("columns").split(",")];
        const fold = this.table.closest("details");
        if (fold && ["sort", "find", "kinds", "columns"].some(asked)) fold.open = true;
        this.field.value = asked("find");
        for (const select of this.kinds) select.value = kinds.find((kind) => [...select.options].some((option) => option.value === kind)) || "";
        this.boxes.forEach((box, at) => box && columns.includes(this.key(at)) && (box.checked = !box.checked));
        if (this.boxes.some((box) => box && !box.checked)) this.showColumns();
        const at = this.columns.findIndex((_, column) => this.key(column) === sorted.replace(/^-/, ""));
        if (sorted && at >= 0) this.sort(at, sorted.startsWith("-") ? "descending" : "ascending");
      }
      if (this.field?.value || this.kinds.some((select) => select.value) || this.bodies.some((each) => !each.open)) this.show();
    }

    /** Download the rows that match, with all columns. */
    save(kind) {
      const used = this.columns.map((name, at) => [name, at]).filter(([name]) => name);
      const isNumber = (at) => this.heads[at].classList.contains("num");
      const value = (cell, at) => (isNumber(at) && /^[+−-]?[\d,.]+$/.test(textOf(cell)) ? numberOf(cell) : textOf(cell));
      const rows = this.bodies.flatMap(({ body }) => [...body.rows]).filter((row) => this.matching.has(row));
      const records = rows.map((row) => used.map(([, at]) => value(row.cells[at], at)));
      const names = used.map(([name]) => name);
      // A spreadsheet would run a text that begins with one of these signs.
      const quoted = (each) => (typeof each === "number" ? each : `"${each.replace(/^(?=[=+\-@\t])/, "'").replace(/"/g, '""')}"`);
      const text =
        kind === "csv"
          ? [names, ...records].map((row) => row.map(quoted).join(",")).join("\r\n")
          : JSON.stringify(records.map((row) => Object.fromEntries(row.map((each, at) => [names[at], each]))), null, 1);
      const link = Object.assign(element("a"), { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: `${this.name}.${kind}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    }
  }

  // A bar for each row of a run's grid, instead of the seconds that the page lists.
  const drawSplits = (head) => {
    const names = head.dataset.parts.split(" ");
    const cells = [...head.closest("table").querySelectorAll("[data-split]")];
    const all = cells.map((cell) => textOf(cell).split(" ").map(Number));
    const full = Math.max(...all.map((parts) => parts.reduce((sum, sec) => sum + sec, 0)));
    const draw = (tag, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      return made;
    };
    cells.forEach((cell, at) => {
      const words = names.map((name, part) => `${name} ${all[at][part]} s`).filter((_, part) => all[at][part] > 0);
      if (!words.length) return cell.replaceChildren("–");
      const bar = draw("svg", { class: "chart bar", role: "img", "aria-label": words.join(", ") });
      bar.append(draw("title", {}));
      bar.firstChild.textContent = words.join(", ");
      let x = 0;
      names.forEach((name, part) => {
        const width = full ? (100 * all[at][part]) / full : 0;
        if (width) bar.append(draw("rect", { class: `part ${name}`, x: `${x}%`, width: `${width}%`, height: "100%" }));
        x += width;
      });
      cell.replaceChildren(bar);
    });
  };
  document.querySelectorAll("[data-parts]").forEach(drawSplits);
  TB.tables = (place) => {
    for (const table of place.querySelectorAll("table.list, table.grid")) if (table.tHead) new Table(table);
  };
  TB.tables(document);
})();
