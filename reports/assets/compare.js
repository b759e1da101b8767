"use strict";
// Compares any two runs. Their rewards come from one script each, so this works from files as well as from a server.
(() => {
  const button = document.getElementById("compare");
  if (!button) return;
  const [old, newer] = ["old", "new"].map((id) => document.getElementById(id));
  const place = document.getElementById("compared");
  const MAX_CELLS = 24;

  const make = TB.element;

  const load = async (slug) => {
    const key = `rewards ${slug}`;
    if (!TB[key]) await TB.load(`${encodeURIComponent(slug)}.js`).catch(() => {});
    if (!TB[key]) throw new Error(slug);
    return TB[key];
  };

  const mean = (numbers) => numbers.reduce((sum, each) => sum + each, 0) / numbers.length;
  const rewards = (trials, seeds) => seeds.map((seed) => (trials[seed] ? trials[seed][0] : null));
  const rate = (found) => mean(found.map((each) => each ?? 0));
  const points = (fraction) => (fraction > 0 ? "+" : "") + (100 * fraction).toFixed(1).replace("-", "−");
  // Never rounded to 0 or 100, as on all other pages.
  const percent = (fraction) => {
    const texts = [1, 2, 3, 4].map((digits) => (100 * fraction).toFixed(digits));
    return `${texts.find((text) => fraction === Number(text) / 100 || ![0, 100].includes(Number(text))) || texts[3]} %`;
  };

  const pair = (a, b) => {
    const common = a.seeds.filter((seed) => b.seeds.includes(seed));
    const count = common.length || Math.min(a.seeds.length, b.seeds.length);
    const [first, second] = common.length ? [common, common] : [a.seeds.slice(0, count), b.seeds.slice(0, count)];
    const others = new Map(b.tasks.map((each) => [each[0], each]));
    const both = a.tasks.filter(([task]) => others.has(task));
    const changed = both.filter(([task, , hash]) => hash && others.get(task)[2] && hash !== others.get(task)[2]);
    const tasks = both
      .filter((each) => !changed.includes(each))
      .map(([task, slug, , trials]) => {
        const later = others.get(task);
        const [one, two] = [rewards(trials, first), rewards(later[3], second)];
        const known = { task, slug, old: trials, new: later[3], before: rate(one), after: rate(two) };
        // Means of the same rewards in another order must be equal.
        const difference = Math.round((known.after - known.before) * 1e12) / 1e12;
        return { ...known, group: group(one, two, difference), difference };
      });
    const mine = new Set(a.tasks.map(([task]) => task));
    return {
      tasks,
      seeds: [first, second],
      byPosition: !common.length,
      leftOut: [
        ["content differs", changed.map(([task]) => task)],
        [`only in ${a.name}`, a.tasks.map(([task]) => task).filter((task) => !others.has(task))],
        [`only in ${b.name}`, b.tasks.map(([task]) => task).filter((task) => !mine.has(task))],
      ],
    };
  };

  const GROUPS = ["Newly failing", "Newly passing", "Changed", "Without a verdict", "Unchanged"];
  const group = (one, two, difference) => {
    const scored = (row) => row.some((each) => each !== null);
    const solved = (row) => row.some((each) => each !== null && each >= 1);
    if (!scored(one) || !scored(two)) return GROUPS[3];
    if (difference < 0 && solved(one) && !solved(two)) return GROUPS[0];
    if (difference > 0 && solved(two) && !solved(one)) return GROUPS[1];
    return difference ? GROUPS[2] : GROUPS[4];
  };

  const cell = (run, slug, seed, trial) => {
    const [, status, sign, attempt] = trial || [null, "missing", "·"];
    const words = `seed ${seed}: ${status === "missing" ? "no result" : status}`;
    const made = make(trial ? "a" : "span", `cell ${status}`, sign);
    if (trial) {
      const again = attempt > 1 ? `.${attempt}` : "";
      made.href = `../runs/${encodeURIComponent(run)}/trial.html?${slug}--${seed}${again}`;
    }
    made.title = words;
    return made;
  };

  const side = (label, run, slug, seeds, trials, score) => {
    const cells = make("span", "cells", ...seeds.slice(0, MAX_CELLS).map((seed) => cell(run, slug, seed, trials[seed])));
    if (seeds.length > MAX_CELLS) cells.append(make("span", "small soft", `+${seeds.length - MAX_CELLS} more`));
    const made = make("td", "side", make("span", "", cells, " ", make("span", "rate soft", percent(score))));
    made.dataset.side = label;
    return made;
  };

  const table = (name, tasks, found) => {
    const heads = ["task", "A, before", "B, after", "points"].map((words) => make("th", words === "points" ? "num" : "", words));
    for (const head of heads) head.scope = "col";
    const rows = tasks.map((each) => {
      const link = make("a", "", each.task.trim() ? each.task : "(no name)");
      link.href = `../tasks/${encodeURIComponent(each.slug)}.html`;
      const head = make("th", "", link);
      head.scope = "row";
      const direction = each.difference > 0 ? "up" : each.difference < 0 ? "down" : "";
      return make(
        "tr",
        "",
        head,
        side("before", old.value, each.slug, found.seeds[0], each.old, each.before),
        side("after", newer.value, each.slug, found.seeds[1], each.new, each.after),
        make("td", `num delta ${direction}`, each.difference ? points(each.difference) : "0"),
      );
    });
    const body = make("tbody", "", ...rows);
    const shown = make("table", "list pairs", make("caption", "unseen", name), make("thead", "", make("tr", "", ...heads)), body);
    shown.dataset.table = name.toLowerCase().replace(/ /g, "-");
    return shown;
  };

  const section = (name, found) => {
    const direction = name === GROUPS[1] ? -1 : 1;
    const tasks = found.tasks.filter((each) => each.group === name).sort((a, b) => direction * (a.difference - b.difference));
    if (!tasks.length) return [];
    const shown = table(name, tasks, found);
    if (name !== GROUPS[4]) return [make("h3", "", `${name} (${tasks.length})`), shown];
    return [make("details", "fold", make("summary", "", `${name} (${tasks.length})`), shown)];
  };

  const headline = (found) => {
    const differences = found.tasks.map((each) => each.difference);
    const middle = mean(differences);
    const count = differences.length;
    const spread = count > 1 ? Math.sqrt(differences.reduce((sum, d) => sum + (d - middle) ** 2, 0) / (count - 1) / count) : null;
    const figure = make("span", "figure", points(middle), make("small", "", " points"));
    const se = spread === null ? "" : `± ${(100 * spread).toFixed(1)} standard error`;
    const over = `over ${count} common task${count === 1 ? "" : "s"} and ${found.seeds[0].length} seed${found.seeds[0].length === 1 ? "" : "s"}`;
    return make("p", "lede", figure, make("span", "", se), make("span", "soft", over));
  };

  const show = (a, b) => {
    const found = pair(a, b);
    const command = make("pre", "code", `tbench compare ${a.path} ${b.path}`);
    const parts = [];
    if (!found.tasks.length) parts.push(make("p", "empty", "These runs have no task with the same content in common."));
    else {
      parts.push(headline(found));
      parts.push(make("p", "hint", "To see whether this is more than chance, run this command in the folder of the runs:"), command);
      if (found.byPosition) parts.push(make("p", "notice warn", "The runs share no seed, so trials are paired in order."));
      for (const name of GROUPS) parts.push(...section(name, found));
    }
    for (const [words, tasks] of found.leftOut)
      if (tasks.length) parts.push(make("p", "small soft wrap", `Left out, ${words} (${tasks.length}): ${tasks.slice(0, 50).join(", ")}`));
    place.replaceChildren(...parts);
    TB.tables(place);
  };

  const compare = async () => {
    const [one, two] = [old.value, newer.value];
    if (one === two) {
      place.replaceChildren(make("p", "empty", "Choose two different runs."));
      return;
    }
    if (newer.selectedOptions[0].dataset.before === one) {
      location.assign(`${encodeURIComponent(`${one}--${two}`)}.html`);
      return;
    }
    try {
      const [a, b] = await Promise.all([load(one), load(two)]);
      if (old.value === one && newer.value === two) show(a, b);
      history.replaceState(null, "", `#${encodeURIComponent(one)}/${encodeURIComponent(two)}`);
    } catch (problem) {
      place.replaceChildren(make("p", "notice warn", `The rewards of ${problem.message} are missing from this site; write the site again.`));
    }
  };

  button.addEventListener("click", compare);
  const [one, two] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const has = (select, value) => [...select.options].some((option) => option.value === value);
  if (two && has(old, one) && has(newer, two)) {
    old.value = one;
    newer.value = two;
    compare();
  }
})();
