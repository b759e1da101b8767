"use strict";
// The live page: follows the event stream, and updates the cards of runs and the tiles of terminals.
// Texts from models and tasks are only ever inserted as text.
(() => {
  const SIGNS = { pass: "✓", partial: "◐", fail: "✗", error: "!" };
  const STATES = { running: ["● running", "running"], ended: ["✓ ended", "missing"], killed: ["! cut off", "alarm"] };
  const MAX_PER_FRAME = 48;
  const known = { runs: new Map(), trials: new Map() };
  const tiles = new Map();
  const cards = new Map();
  const outdated = new Set(); // visible tiles whose screen has to be redrawn
  let skew = 0;
  let frame = 0;
  let size = "middle";

  const at = (root, name) => root.querySelector(`[data-at="${name}"]`);
  const setText = (root, name, text) => {
    const node = at(root, name);
    if (node && node.textContent !== text) node.textContent = text;
  };
  const { element } = window.TB;
  const now = () => Date.now() / 1000 + skew;
  const span = (seconds) => {
    const sec = Math.max(0, Math.round(seconds));
    if (sec < 60) return `${sec} s`;
    if (sec < 3600) return `${Math.floor(sec / 60)}:${String(sec % 60).padStart(2, "0")}`;
    return `${Math.floor(sec / 3600)} h ${String(Math.floor((sec % 3600) / 60)).padStart(2, "0")}`;
  };
  const about = (seconds) => {
    if (seconds < 60) return "in less than a minute";
    const minutes = Math.round(seconds / 60);
    return minutes < 100 ? `in about ${minutes} min` : `in about ${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };

  // Cards of runs

  const card = (key) => {
    let made = cards.get(key);
    if (!made) {
      made = document.getElementById("run-parts").content.firstElementChild.cloneNode(true);
      made.dataset.run = key;
      cards.set(key, made);
    }
    return made;
  };
  const placeCard = (node, run) => {
    if (node.isConnected && node.dataset.state === run.state) return;
    node.dataset.state = run.state;
    document.querySelector(run.state === "running" ? "[data-runs]" : "[data-past]").append(node);
  };
  const drawBar = (node, run) => {
    const planned = run.planned || 1;
    const atWork = working(run);
    const rects = node.querySelectorAll("rect");
    let x = 0;
    [...Object.keys(SIGNS).map((mark) => run.marks[mark]), atWork].forEach((count, index) => {
      rects[index + 1].setAttribute("x", ((1000 * x) / planned).toFixed(2));
      rects[index + 1].setAttribute("width", ((1000 * count) / planned).toFixed(2));
      x += count;
    });
    node.setAttribute("aria-label", `${run.ended} of ${run.planned} trials ended`);
  };
  const working = (run) => Object.values(run.phases).reduce((sum, count) => sum + count, 0) - run.phases.queued;
  const drawLists = (node, run) => {
    const verdicts = run.verdicts.map((each) => {
      const line = element("li");
      line.append(element("span", `chip ${each.mark}`, `${SIGNS[each.mark]} ${each.words}`), " ");
      const name = element(each.page ? "a" : "span", "wrap", `${each.task} · ${each.seed}`);
      if (each.page) name.setAttribute("href", each.page);
      line.append(name);
      return line;
    });
    at(node, "verdicts").replaceChildren(...(verdicts.length ? verdicts : [element("li", "soft", "none yet")]));
    const notes = run.notes.toReversed().slice(0, 4).map((note) => element("li", "wrap", note));
    at(node, "notes").replaceChildren(...(notes.length ? notes : [element("li", "soft", "none")]));
  };
  const drawRun = (key, run) => {
    const node = card(key);
    const [words, kind] = STATES[run.state];
    placeCard(node, run);
    node.setAttribute("aria-label", `Run ${run.name}`);
    setText(node, "name", run.name);
    if (run.page) at(node, "name").setAttribute("href", run.page);
    setText(node, "state", words);
    at(node, "state").className = `chip ${kind}`;
    setText(node, "about", [run.model, run.dataset].filter(Boolean).join(" · "));
    const alarm = at(node, "alarm");
    alarm.hidden = !(run.away || run.state === "killed");
    const killed = `The process of this run is gone. Continue it with: tbench resume ${run.path}`;
    alarm.textContent = run.state === "killed" ? killed : run.endpoint;
    for (const name of ["ended", "planned"]) setText(node, name, String(run[name]));
    const score = run.score === null ? "" : `so far ${run.score_text} over ${run.scored} scored`;
    setText(node, "score", score);
    drawBar(at(node, "bar"), run);
    for (const mark of Object.keys(SIGNS)) setText(node, `mark-${mark}`, String(run.marks[mark]));
    setText(node, "at-work", String(working(run)));
    setText(node, "to-come", String(run.to_come + run.phases.queued));
    for (const [phase, count] of Object.entries(run.phases)) setText(node, `phase-${phase}`, String(count));
    setText(node, "endpoint", run.away ? "! away" : run.endpoint || "✓ no problems");
    setText(node, "begun", run.begun ? `${run.begun.slice(0, 16).replace("T", " ")} UTC` : "–");
    setText(node, "eta", run.eta === null ? "–" : about(run.eta - now()));
    const unread = at(node, "unread");
    unread.hidden = !run.unread;
    unread.textContent = `${run.unread} lines of its journal are from another version and are not shown.`;
    drawLists(node, run);
  };

  // Tiles of trials

  const screenInto = (node, rows) => {
    if (rows.every((row) => typeof row === "string")) {
      node.textContent = rows.join("\n");
      return;
    }
    const parts = document.createDocumentFragment();
    rows.forEach((row, index) => {
      if (index) parts.append("\n");
      if (typeof row === "string") parts.append(row);
      else
        for (let cell = 0; cell < row.length; cell += 2)
          parts.append(row[cell + 1] ? element("span", row[cell + 1], row[cell]) : row[cell]);
    });
    node.replaceChildren(parts);
  };
  const sight = new IntersectionObserver(
    (seen) => {
      for (const each of seen) {
        const made = tiles.get(each.target.dataset.trial);
        if (!made) continue;
        made.isSeen = each.isIntersecting;
        if (made.isSeen && made.isBehind) outdated.add(made);
      }
      if (outdated.size) schedule();
    },
    { rootMargin: "100% 0px" },
  );
  const tile = (key) => {
    let made = tiles.get(key);
    if (!made) {
      const node = document.getElementById("tile-parts").content.firstElementChild.cloneNode(true);
      node.dataset.trial = key;
      made = { key, node, name: at(node, "name"), state: at(node, "state"), screen: at(node, "screen"), isSeen: false };
      made.name.addEventListener("click", () => window.TbenchLarge.open(key));
      tiles.set(key, made);
    }
    return made;
  };
  const stateOf = (trial) => {
    if (trial.mark) return `${SIGNS[trial.mark]} ${trial.words}`;
    const step = trial.step ? ` · step ${trial.step}` : "";
    const part = trial.part ? ` ${trial.part}` : "";
    const since = trial.since ? ` · ${span(now() - trial.since)}` : "";
    return `${trial.phase}${part}${step}${since}`;
  };
  const setState = (made) => {
    const words = stateOf(made.trial);
    if (made.words !== words) made.state.textContent = made.words = words;
  };
  const drawTile = (made) => {
    made.isBehind = false;
    const trial = made.trial;
    if (made.drawn !== trial.rows) screenInto(made.screen, (made.drawn = trial.rows));
    setState(made);
  };
  const placeTile = (made) => {
    const trial = made.trial;
    made.node.dataset.phase = trial.phase;
    if (trial.mark) made.node.dataset.mark = trial.mark;
    else delete made.node.dataset.mark;
    const name = `${trial.task} · ${trial.seed}`;
    if (made.shown !== name) {
      made.name.textContent = made.shown = name;
      made.node.hidden = !isWanted(trial);
    }
    if (made.order === trial.order) return;
    made.order = trial.order;
    const list = document.querySelector("[data-tiles]");
    let after = list.lastElementChild;
    while (after && (tiles.get(after.dataset.trial)?.order ?? Infinity) > trial.order) after = after.previousElementSibling;
    if (after) after.after(made.node);
    else list.prepend(made.node);
    sight.observe(made.node);
  };
  const setTrial = (key, trial) => {
    known.trials.set(key, trial);
    const made = tile(key);
    made.trial = trial;
    placeTile(made);
    made.isBehind = true;
    if (made.isSeen) outdated.add(made);
  };
  const dropTrial = (key) => {
    known.trials.delete(key);
    const made = tiles.get(key);
    if (!made) return;
    sight.unobserve(made.node);
    outdated.delete(made);
    made.node.remove();
    tiles.delete(key);
  };
  const drawOutdated = () => {
    frame = 0;
    let left = MAX_PER_FRAME;
    for (const made of outdated) {
      if (left-- <= 0) break;
      outdated.delete(made);
      if (made.isSeen) drawTile(made);
    }
    if (outdated.size) schedule();
  };
  const schedule = () => {
    if (!frame) frame = requestAnimationFrame(drawOutdated);
  };

  // The stream

  const forgetAll = () => {
    for (const key of [...tiles.keys()]) dropTrial(key);
    cards.clear();
    known.runs.clear();
    for (const list of ["[data-runs]", "[data-past]"]) document.querySelector(list).replaceChildren();
    document.querySelector("[data-tiles]").replaceChildren();
  };
  const take = (news) => {
    skew = news.clock + 0.5 - Date.now() / 1000;
    if (Math.abs(skew) < 1.5) skew = 0;
    if (news.anew) forgetAll();
    for (const [name, value] of Object.entries(news.set)) {
      const [kind, key] = [name.slice(0, name.indexOf(" ")), name.slice(name.indexOf(" ") + 1)];
      if (kind === "run") {
        known.runs.set(key, value);
        drawRun(key, value);
      } else if (kind === "trial") setTrial(key, value);
    }
    for (const name of news.gone) {
      const key = name.slice(name.indexOf(" ") + 1);
      if (name.startsWith("trial ")) dropTrial(key);
      else if (name.startsWith("run ")) {
        cards.get(key)?.remove();
        cards.delete(key);
        known.runs.delete(key);
      }
    }
    settle();
    schedule();
    document.dispatchEvent(new CustomEvent("tbench-news", { detail: news }));
  };
  const settle = () => {
    document.querySelector("[data-nothing]").hidden = cards.size > 0;
    document.querySelector("[data-wall]").hidden = tiles.size === 0;
    const shown = [...tiles.values()].filter((made) => !made.node.hidden).length;
    const words = shown === tiles.size ? `${shown} running` : `${shown} of ${tiles.size} running`;
    const count = document.querySelector("[data-wall-count]");
    if (count.textContent !== words) count.textContent = words;
    const running = [...known.runs.values()].filter((run) => run.state === "running");
    const title = running.map((run) => `${run.ended}/${run.planned}`).join(" ");
    document.title = title ? `${title} · Live · tbench` : "Live · tbench";
  };
  const connection = (words, isGood) => {
    const node = document.querySelector("[data-connection]");
    if (node.textContent !== words) node.textContent = words;
    node.classList.toggle("is-lost", !isGood);
  };
  const follow = () => {
    const stream = new EventSource("/live/events");
    stream.addEventListener("open", () => connection("● live", true));
    stream.addEventListener("news", (event) => take(JSON.parse(event.data)));
    stream.addEventListener("error", () => {
      connection("! the server does not respond; reconnecting", false);
      if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
    });
    window.addEventListener("pagehide", () => stream.close(), { once: true });
  };

  // Filter and size of tiles

  const isWanted = (trial) => {
    const wanted = document.querySelector("[data-filter]").value.trim().toLowerCase();
    return !wanted || `${trial.task} · ${trial.seed}`.toLowerCase().includes(wanted);
  };
  const begin = () => {
    document.querySelector("[data-filter]").addEventListener("input", () => {
      for (const made of tiles.values()) made.node.hidden = !isWanted(made.trial);
      settle();
    });
    for (const button of document.querySelectorAll("[data-size]"))
      button.addEventListener("click", () => {
        size = button.dataset.size;
        document.querySelector("[data-tiles]").dataset.size = size;
        for (const each of document.querySelectorAll("[data-size].button"))
          each.setAttribute("aria-pressed", String(each.dataset.size === size));
      });
    setInterval(() => {
      if (document.hidden) return;
      for (const made of tiles.values()) if (made.isSeen) setState(made);
      for (const [key, run] of known.runs) setText(cards.get(key), "eta", run.eta === null ? "–" : about(run.eta - now()));
    }, 1000);
    follow();
  };
  window.TbenchLive = {
    trial: (key) => known.trials.get(key),
    words: stateOf,
    screenInto,
    order: () => [...document.querySelectorAll("[data-tiles] > .tile:not([hidden])")].map((node) => node.dataset.trial),
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
