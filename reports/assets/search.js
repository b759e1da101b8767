"use strict";
// Searches the texts of all trials, run by run. The address keeps what is searched.
(() => {
  const { element } = TB;
  const [form, words, within, progress, found] = ["search", "words", "within", "progress", "found"].map((id) => document.getElementById(id));
  const MOST = 200;
  const AROUND = 90; // characters of a text on either side of what was found
  let latest = 0;

  const address = (run, ...rest) => `${form.dataset.root}runs/${encodeURIComponent(run)}/${rest.join("")}`;

  /** The trials of a run with their texts. */
  async function trialsOf(run) {
    const key = `search ${run}`;
    await TB.load(address(run, "search.js"), key);
    const text = await TB.unpack(TB[key]);
    delete TB[key]; // years of nights would fill the memory
    return text ? text.split("\n").map((line) => JSON.parse(line)) : [];
  }

  function* matches(trial, wanted) {
    for (const [kind, anchor, text] of [["task", "", trial.task], ...trial.texts]) {
      const at = text.toLowerCase().indexOf(wanted);
      if (at >= 0) yield [kind, anchor, text.slice(Math.max(0, at - AROUND), at), text.slice(at, at + wanted.length), text.slice(at + wanted.length, at + wanted.length + AROUND)];
    }
  }

  function line([slug, name, model, day], trial, [kind, anchor, before, hit, after]) {
    const link = element("a", "", `${trial.task}, ${trial.trial.split("--").pop()}`);
    link.href = address(slug, "trial.html?", trial.trial, anchor && "#", anchor);
    const where = [name, model, name.includes(day) ? "" : day, kind, anchor.replace("-", " ")].filter(Boolean).join(" · ");
    return element("li", "", element("span", `chip ${trial.status}`, trial.status), " ", link, " ", element("span", "small soft", where), element("pre", "code wrap", before, element("mark", "", hit), after));
  }

  async function search() {
    const now = ++latest;
    const wanted = words.value.trim().toLowerCase();
    const place = within.value.trim().toLowerCase();
    history.replaceState(null, "", `#${new URLSearchParams({ q: words.value.trim(), ...(place && { in: within.value.trim() }) })}`);
    found.replaceChildren();
    if (!wanted) return;
    const runs = TB.runs.filter(([, ...known]) => known.join(" ").toLowerCase().includes(place));
    let [hits, trials, missing] = [0, 0, 0];
    for (const [at, run] of runs.entries()) {
      progress.textContent = `searching run ${at + 1} of ${runs.length}, ${hits} found`;
      const texts = await trialsOf(run[0]).catch(() => ((missing += 1), []));
      if (now !== latest) return; // another search has begun
      trials += texts.length;
      for (const trial of texts) for (const match of matches(trial, wanted)) if (hits++ < MOST) found.append(line(run, trial, match));
      if (hits >= MOST) break;
    }
    const more = hits >= MOST ? `the first ${MOST} places; name a run or a model to see others` : `${hits} ${hits === 1 ? "place" : "places"}`;
    progress.textContent = `${more}, in ${trials.toLocaleString("en")} trials${missing ? `; ${missing} runs have no texts` : ""}`;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  const asked = new URLSearchParams(location.hash.slice(1));
  words.value = asked.get("q") || "";
  within.value = asked.get("in") || "";
  if (words.value) search();
})();
