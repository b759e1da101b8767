"use strict";
// Compares a trial with another one of its task: step by step, and line by line in the step that is shown.
(() => {
  const { reader, element, shown: here } = window.TB;
  const box = document.getElementById("difference");
  const select = document.getElementById("other");
  const MAX_LINES = 400;
  const { visible } = reader;

  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  const settled = (text) => text.replace(/\s+/g, " ").trim();

  /** The state of each step: "same", "output-differs", "actions-differ", or "alone" if one trial has ended before. */
  function compareSteps(own, other) {
    const states = [];
    for (let at = 0; at < Math.max(own.length, other.length); at += 1) {
      if (at >= own.length || at >= other.length) states.push("alone");
      else if (!same(own[at].actions, other[at].actions)) states.push("actions-differ");
      else states.push(settled(own[at].observation) === settled(other[at].observation) ? "same" : "output-differs");
    }
    return states;
  }

  const WORDS = {
    same: "the same",
    "output-differs": "same input, different output",
    "actions-differ": "different actions",
    alone: "only in one of the trials",
  };
  const SYMBOLS = { same: "=", "output-differs": "≈", "actions-differ": "≠", alone: "·" };

  /** The lines of each text that the other does not have, by a longest common subsequence. */
  function ownLines(one, other) {
    const [a, b] = [one.split("\n").slice(0, MAX_LINES), other.split("\n").slice(0, MAX_LINES)];
    const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i -= 1)
      for (let j = b.length - 1; j >= 0; j -= 1)
        table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    const [inA, inB] = [new Set(), new Set()];
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) [i, j] = [i + 1, j + 1];
      else if (j >= b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) inA.add(i++);
      else inB.add(j++);
    }
    return [inA, inB];
  }

  function marked(text, own, kind) {
    const shown = element("pre", kind);
    const lines = visible(text).split("\n");
    lines.slice(0, MAX_LINES).forEach((line, at) => {
      if (at) shown.append("\n");
      shown.append(own.has(at) ? element("span", "own", line) : line);
    });
    if (lines.length > MAX_LINES) shown.append(`\n… ${lines.length - MAX_LINES} more lines`);
    return shown;
  }

  function sides(own, other, labels) {
    const shown = element("div", "sides");
    const texts = (step) => (step ? [step.said.join("\n\n"), step.actions.join(""), reader.seen(step.observation)] : ["", "", ""]);
    const [mine, theirs] = [texts(own), texts(other)];
    const lines = mine.map((text, at) => ownLines(text, theirs[at]));
    [own, other].forEach((step, side) => {
      const column = element("section");
      column.append(element("h3", "", labels[side]));
      if (!step) column.append(element("p", "empty", "This trial ended before this step."));
      else
        ["says", "types", "sees"].forEach((what, at) => {
          const text = [mine, theirs][side][at];
          if (!text) return;
          column.append(element("h4", "", what), marked(text, lines[at][side], ["prose", "keys", "term"][at]));
        });
      shown.append(column);
    });
    return shown;
  }

  function sentence(states) {
    const first = states.findIndex((state) => state === "actions-differ" || state === "alone");
    const output = states.indexOf("output-differs");
    if (first < 0 && output < 0) return ["All steps are the same.", 0];
    const count = states.filter((state) => state === "same").length;
    const many = `${count} of ${states.length} steps are the same`;
    if (first < 0) return [`Both typed the same throughout; the output first differs at step ${output + 1}. ${many}.`, output];
    const before = output >= 0 && output < first ? ` Their output already differs at step ${output + 1}.` : "";
    const how = states[first] === "alone" ? "One of them ends before" : "They diverge at";
    return [`${how} step ${first + 1}.${before} ${many}.`, first];
  }

  function show(own, other, label) {
    const states = compareSteps(own, other);
    const [summary, first] = sentence(states);
    const list = element("ol", "course");
    list.setAttribute("aria-label", "Steps of both");
    const place = element("div");
    const open = (at) => {
      [...list.querySelectorAll("button")].forEach((each, n) => each.setAttribute("aria-pressed", String(n === at)));
      place.replaceChildren(
        element("p", "hint", `Step ${at + 1}: ${WORDS[states[at]]}`),
        sides(own[at], other[at], ["this trial", label]),
      );
    };
    states.slice(0, 600).forEach((state, at) => {
      const pressed = element("button", state, `${at + 1}${SYMBOLS[state]}`);
      pressed.type = "button";
      pressed.title = `step ${at + 1}: ${WORDS[state]}`;
      pressed.addEventListener("click", () => open(at));
      const item = element("li");
      item.append(pressed);
      list.append(item);
    });
    box.replaceChildren(element("p", "", summary), list, place);
    if (states.length) open(first);
  }

  const stepsOf = (trial) => trial.sections.flatMap((section) => reader.textsOf(section).steps);

  async function compare() {
    const trial = trials[Number(select.value)];
    if (!select.value || !trial) return box.replaceChildren();
    box.replaceChildren(element("p", "hint", "loading …"));
    try {
      const other = stepsOf(await TB.trial(trial.run, trial.trial));
      if (!other.length) throw new Error("no steps are stored for that trial");
      show(stepsOf(here), other, labelOf(trial));
      const link = element("a", "", "open that trial");
      link.href = `${here.root}runs/${encodeURIComponent(trial.run)}/trial.html?${trial.trial}`;
      box.firstElementChild.append(" ", link);
    } catch (problem) {
      box.replaceChildren(element("p", "notice warn", `The trials cannot be compared: ${problem.message}.`));
    }
  }

  const STATES = { pass: "✓", partial: "◐", fail: "✗", error: "!", missing: "·" };
  const labelOf = (trial) =>
    visible(`${STATES[trial.status] || ""} ${trial.name || trial.run}, seed ${trial.seed}${trial.attempt > 1 ? `, attempt ${trial.attempt}` : ""}`);
  let trials = [];

  async function begin() {
    try {
      await TB.load(here.root + document.getElementById("trial").dataset.list);
    } catch {
      // the list of trials is missing from the site: there is nothing to choose from
    }
    const listed = Array.isArray(window.TB.trials) ? window.TB.trials : [];
    trials = listed.filter((trial) => trial.run !== here.run || trial.trial !== here.name);
    const groups = new Map();
    trials.forEach((trial, at) => {
      const name = trial.run === here.run ? "this run" : visible(trial.name || trial.run);
      if (!groups.has(name)) groups.set(name, Object.assign(document.createElement("optgroup"), { label: name }));
      const option = element("option", "", labelOf(trial));
      option.value = String(at);
      groups.get(name).append(option);
    });
    for (const group of [...groups.values()].sort((a, b) => (b.label === "this run") - (a.label === "this run"))) select.append(group);
    if (!trials.length) box.replaceChildren(element("p", "empty", "There is no other trial of this task to compare with."));
    select.disabled = !trials.length;
    select.addEventListener("change", compare);
  }
  begin();
})();
