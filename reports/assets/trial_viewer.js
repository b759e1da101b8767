"use strict";
// Shows the trial that the address names: trial.html?TASK--SEED. Trials come packed, several in a script.
(() => {
  const place = document.getElementById("place");
  const state = document.getElementById("state");
  const { root, run } = place.dataset;

  /** The HTML of a trial and the texts of its sections, from any run of the site. */
  TB.trial = async (run, name) => {
    const key = `trials ${run}`;
    const files = `${root}runs/${encodeURIComponent(run)}/trials`;
    if (!TB[key]) await TB.load(`${files}.js`, `the list of trials of ${run}`);
    const chunk = TB[key].findIndex((names) => names.includes(name));
    if (chunk < 0) throw new Error(`${name} is not in this run`);
    const part = `${key} ${chunk}`;
    if (!TB[part]) await TB.load(`${files}-${chunk}.js`, `the part of ${run} with ${name}`);
    return JSON.parse((await TB.unpack(TB[part])).split("\n")[TB[key][chunk].indexOf(name)]);
  };

  async function show(name) {
    const trial = await TB.trial(run, name);
    TB.shown = { run, name, root, ...trial };
    place.innerHTML = trial.html; // rendered by tbench, which escapes everything in it
    TB.reveal(place);
    const { title } = document.getElementById("trial").dataset;
    document.title = `${title} – tbench`;
    const crumb = TB.element("span", "", title);
    crumb.setAttribute("aria-current", "page");
    document.querySelector(".crumbs").append(TB.element("li", "", crumb));
    const scripts = trial.sections.some((section) => section.recorded) ? ["vendor/asciinema-player/asciinema-player.min"] : [];
    for (const script of [...scripts, "trial", "terminal", "difference"]) await TB.load(`${root}assets/${script}.js`);
    place.dataset.ready = "";
  }

  const name = decodeURIComponent(location.search.slice(1).split("&")[0]);
  if (name) {
    state.textContent = "loading …";
    show(name).catch((problem) => (state.textContent = `The trial cannot be shown: ${problem.message}.`));
  }
})();
