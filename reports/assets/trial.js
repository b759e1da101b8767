"use strict";
// The reader of a trial's steps: choosing a step, search, texts that the page leaves out, keys.
// Everything from the trial is inserted as text, never as markup.
(() => {
  const root = document.getElementById("trial");
  const global = window.TB;
  const { element } = global;
  const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]/gu;
  const MAX_CHARS = 400000;
  const MAX_MARKS = 2000;
  const END_CHARS = 3000;
  const END_LINES = 60;
  const ESCAPES = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]/g;
  const visible = (text) => text.replace(UNSEEN, "\ufffd");
  /** A terminal's text without its escape sequences. */
  const seen = (text) => visible(text.replace(ESCAPES, "").replace(/\r+\n/g, "\n"));
  const readable = (place, text) => (place.dataset.field === "observation" ? seen(text) : visible(text));

  /** Separate the texts of a section from the lines of its recording. */
  function sorted(text) {
    const texts = { told: [], steps: [], cast: [] };
    for (const line of text.split("\n")) {
      if (line.startsWith("[")) texts.cast.push(line);
      else if (line.startsWith('{"told"')) Object.assign(texts, { told: JSON.parse(line).told, header: JSON.parse(line).cast });
      else if (line.startsWith("{")) texts.steps.push(JSON.parse(line));
    }
    return texts;
  }

  /** The texts of a section of a trial. */
  const textsOf = (section) => (section.texts ??= sorted(section.lines));

  function button(label, act, title) {
    const made = element("button", "button", label);
    made.type = "button";
    made.dataset.act = act;
    made.title = title;
    made.setAttribute("aria-label", title);
    return made;
  }

  const { sections } = global.shown;
  const cards = [...document.querySelectorAll(".step")];
  const sectionOf = (card) => Number(card.closest(".work").dataset.section);
  const listeners = [];
  let chosen = null;

  /** Make a step the current one, by the "reader" or by the "player", which then need not seek. */
  function choose(card, by = "reader") {
    if (chosen !== card) {
      if (chosen) {
        chosen.classList.remove("now");
        chosen.removeAttribute("aria-current");
        linkTo(chosen)?.classList.remove("now");
      }
      chosen = card;
      card.classList.add("now");
      card.setAttribute("aria-current", "step");
      linkTo(card)?.classList.add("now");
      history.replaceState(null, "", `#${card.id}`);
    }
    for (const listen of listeners) listen(card, by);
  }
  const linkTo = (card) => document.querySelector(`.timeline a[href="#${CSS.escape(card.id)}"]`);

  const stepTexts = (card) => textsOf(sections[sectionOf(card)]).steps.find((step) => step.n === Number(card.dataset.n));

  function pick(texts, field) {
    const [name, at] = field.split(".");
    return at === undefined ? texts[name] : texts[name][Number(at)];
  }

  function wholeOf(place) {
    const card = place.closest(".step");
    const texts = card ? stepTexts(card) : textsOf(sections[Number(place.closest(".work").dataset.section)]);
    return texts && pick(texts, place.dataset.field);
  }

  /** Replace the two ends of a text by the whole text. */
  function showAll(place) {
    const whole = wholeOf(place);
    if (typeof whole !== "string") return;
    const shown = element("pre", place.querySelector("pre").className, readable(place, whole.slice(0, MAX_CHARS)));
    shown.tabIndex = -1;
    place.replaceChildren(shown);
    if (whole.length > MAX_CHARS) place.append(element("p", "cut", `… ${whole.length - MAX_CHARS} characters more`));
    shown.focus({ preventScroll: true });
  }

  /** Show more or all of a text that comes into view: the page itself contains little of it. */
  function widen(place) {
    const whole = wholeOf(place);
    const [head, tail] = place.querySelectorAll("pre");
    if (typeof whole !== "string" || !tail) return;
    if (whole.length <= 2 * END_CHARS && whole.split("\n").length <= 2 * END_LINES) {
      head.textContent = readable(place, whole);
      return place.replaceChildren(head);
    }
    const first = whole.slice(0, END_CHARS).split("\n").slice(0, END_LINES).join("\n");
    const last = whole.slice(-END_CHARS / 2).split("\n").slice(-END_LINES / 2).join("\n");
    if (first.length <= head.textContent.length) return;
    head.textContent = readable(place, first);
    tail.textContent = readable(place, last);
    const between = whole.length - first.length - last.length;
    place.querySelector(".cut").firstChild.data = `… ${between.toLocaleString("en")} characters left out`;
  }

  function widenInView() {
    const watch = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries)
          if (isIntersecting) {
            watch.unobserve(target);
            widen(target);
          }
      },
      { rootMargin: "1200px" },
    );
    for (const cut of document.querySelectorAll(".text > .cut")) {
      const all = button("show all", "full", "show all of this text");
      cut.append(" ", all);
      watch.observe(cut.parentElement);
    }
  }

  /** Show or hide the reply as the model wrote it. */
  function toggleReply(card) {
    const shown = card.querySelector(".raw");
    press(card, "reply", !shown);
    if (shown) return shown.remove();
    const texts = stepTexts(card);
    const whole = (texts && texts.reply) || "(an empty reply)";
    const raw = element("pre", "code raw", visible(whole.slice(0, MAX_CHARS)));
    card.querySelector("header").after(raw);
  }

  function press(card, act, is) {
    card.querySelector(`[data-act="${act}"]`)?.setAttribute("aria-pressed", String(is));
  }

  function addTools(card) {
    const tools = element("div", "step-tools");
    const number = card.dataset.n;
    if (card.closest(".reader").querySelector(".session")) {
      tools.append(button("▶", "play", `play the recording from step ${number}`));
      tools.append(button("screen", "screen", `screen at the end of step ${number}`));
    }
    tools.append(button("reply", "reply", `whole reply of step ${number}`));
    for (const each of tools.children) if (each.dataset.act !== "play") each.setAttribute("aria-pressed", "false");
    card.querySelector("header").append(tools);
  }

  // -- finding ---------------------------------------------------------------------------------

  const field = document.getElementById("find");
  const onlyProblems = document.getElementById("only-problems");
  const found = document.getElementById("found");

  function filter() {
    const words = field.value.trim().toLowerCase();
    const holds = (words ? sections : []).map(
      (section) => new Map(textsOf(section).steps.map((step) => [step.n, JSON.stringify(step).toLowerCase().includes(asJson(words))])),
    );
    let shown = 0;
    for (const card of cards) {
      const fits = !words || holds[sectionOf(card)].get(Number(card.dataset.n)) || card.textContent.toLowerCase().includes(words);
      card.hidden = !fits || (onlyProblems.checked && !card.classList.contains("flawed"));
      shown += card.hidden ? 0 : 1;
    }
    const all = cards.length === 1 ? "1 step" : `${cards.length} steps`;
    found.textContent = words || onlyProblems.checked ? `${shown} of ${all}` : "";
    markWords(words);
  }
  const asJson = (words) => JSON.stringify(words).slice(1, -1);

  function markWords(words) {
    if (!window.CSS || !CSS.highlights) return;
    CSS.highlights.delete("found");
    if (words.length < 2) return;
    const ranges = [];
    for (const card of cards) {
      if (card.hidden) continue;
      const walker = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
      while (walker.nextNode() && ranges.length < MAX_MARKS) {
        const text = walker.currentNode.data.toLowerCase();
        for (let at = text.indexOf(words); at >= 0 && ranges.length < MAX_MARKS; at = text.indexOf(words, at + words.length)) {
          const range = new Range();
          range.setStart(walker.currentNode, at);
          range.setEnd(walker.currentNode, Math.min(at + words.length, walker.currentNode.data.length));
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }

  // -- keys ------------------------------------------------------------------------------------

  const help = document.getElementById("help");
  const move = (by) => {
    const open = cards.filter((card) => !card.hidden);
    const at = open.indexOf(chosen);
    const next = open[at < 0 ? (by > 0 ? 0 : open.length - 1) : Math.max(0, Math.min(open.length - 1, at + by))];
    if (!next) return;
    next.scrollIntoView({ block: "start" });
    choose(next);
  };
  const acts = {
    j: () => move(1),
    k: () => move(-1),
    p: () => global.reader.play?.(chosen || cards[0]),
    s: () => chosen && global.reader.screen?.(chosen),
    r: () => chosen && toggleReply(chosen),
    w: () => document.querySelector('[data-act="wide"]')?.click(),
    "/": () => field.focus(),
    "?": () => help.showModal(),
  };

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const target = event.target;
    if (event.key === "Escape" && target === field) {
      field.value = "";
      field.blur();
      filter();
      return;
    }
    if (target.closest("input, select, textarea, .ap-player") || !Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  }

  async function clicked(event) {
    const target = event.target;
    if (target.closest("[data-help]")) return help.showModal();
    const more = target.closest('[data-act="full"]');
    if (more) return showAll(more.closest(".text"));
    const link = target.closest(".timeline a, .step h3 a");
    const card = link ? document.getElementById(link.getAttribute("href").slice(1)) : target.closest(".step");
    const act = target.closest("[data-act]")?.dataset.act;
    if (!card || !card.classList.contains("step")) return;
    if (act === "reply") return toggleReply(card);
    if (act === "screen") return global.reader.screen?.(card);
    if (act === "play") return global.reader.play?.(card);
    if (!link && (target.closest("a, button, summary, input") || String(getSelection()))) return;
    choose(card);
  }

  global.reader = { cards, choose, visible, seen, textsOf, press, listeners };

  cards.forEach(addTools);
  widenInView();
  let soon = 0;
  field.addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(filter, 120);
  });
  onlyProblems.addEventListener("change", filter);
  document.addEventListener("keydown", pressed);
  root.addEventListener("click", clicked);
  document.querySelector("[data-help]").addEventListener("click", () => help.showModal());
  const atHash = () => {
    const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (card && card.classList.contains("step") && card !== chosen) choose(card);
  };
  addEventListener("hashchange", atHash);
  global.reader.begin = () => (chosen ? choose(chosen) : atHash());
})();
