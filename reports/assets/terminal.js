"use strict";
// The recording beside the steps: choosing a step seeks to its screen, and playing chooses the steps that it reaches.
(() => {
  const { reader } = window.TB;
  const data = window.TB.shown;
  const IDLE_SEC = 1.5; // longer pauses are shortened to this
  const MAX_STILLS = 6;
  const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g; // changes the reading direction
  const LEAST_COLUMNS = 80;
  const sessions = new Map();
  const stills = [];

  /** The events of a recording with pauses shortened, and a function that maps times of the recording accordingly. */
  function parse(texts) {
    const header = JSON.parse(texts.header);
    const events = [];
    const knots = [[0, 0]];
    let last = 0;
    let now = 0;
    for (const line of texts.cast) {
      const event = read(line);
      if (!event) continue;
      const at = Math.max(last, event[0]);
      now += Math.min(at - last, IDLE_SEC);
      if (at - last > IDLE_SEC) knots.push([last, now - IDLE_SEC], [at, now]);
      last = at;
      events.push([now, event[1], event[2]]);
    }
    if (!events.length) throw new Error("it contains no output");
    knots.push([last, now]);
    return { header, events, duration: now, place: (sec) => between(knots, sec) };
  }

  function read(line) {
    try {
      const [at, kind, text] = JSON.parse(line);
      return Number.isFinite(at) && (kind === "o" || kind === "r") && typeof text === "string"
        ? [at, kind, text.replace(TURNING, "\ufffd")]
        : null;
    } catch {
      return null;
    }
  }

  function between(knots, sec) {
    let at = 1;
    while (at < knots.length - 1 && knots[at][0] < sec) at += 1;
    const [[x1, y1], [x2, y2]] = [knots[at - 1], knots[at]];
    const share = x2 > x1 ? Math.min(1, Math.max(0, (sec - x1) / (x2 - x1))) : 1;
    return y1 + share * (y2 - y1);
  }

  /** The columns in use: fewer give larger letters. A program that positions its cursor may need all of them. */
  function columnsOf({ header, events }) {
    const all = Math.min(500, Math.max(1, Number(header.width) || LEAST_COLUMNS));
    const output = events.map((event) => event[2]).join("");
    if (output.length > 2000000 || /\x1b\[[0-9;?]*[HfGdrABCDFE@PLMSTX]|\x1b\[\?(?:47|1047|1049)|\x08{2}/.test(output)) return all;
    const plain = output.replace(/\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b./g, "");
    let longest = 0;
    for (const line of plain.split(/[\r\n]+/)) longest = Math.max(longest, widthOf(line));
    return Math.min(all, Math.max(LEAST_COLUMNS, longest + 1));
  }

  function widthOf(line) {
    let width = 0;
    for (const char of line) width += char === "\t" ? 8 - (width % 8) : char.codePointAt(0) >= 0x1100 ? 2 : 1;
    return width;
  }

  const rowsOf = ({ header }) => Math.min(200, header.height >= 1 ? Number(header.height) : 24);
  const sectionOf = (card) => Number(card.closest(".work").dataset.section);
  const timesOf = (card) => {
    const { times } = data.sections[sectionOf(card)];
    const at = Number(card.dataset.n) - 1;
    return times[at] || null;
  };

  function options(cast, more) {
    return {
      cols: cast.columns,
      rows: rowsOf(cast),
      preload: true,
      terminalFontFamily: '"DejaVu Sans Mono", Menlo, Consolas, ui-monospace, monospace',
      logger: { log() {}, debug() {}, info() {}, warn() {}, error() {} },
      ...more,
    };
  }

  const source = (cast) => ({ data: [{ version: 2, width: cast.columns, height: rowsOf(cast) }, ...cast.events] });

  class Session {
    constructor(section) {
      this.section = section;
      this.part = document.querySelector(`.work[data-section="${section}"]`);
      this.screen = this.part.querySelector(".session-screen");
      this.cards = [...this.part.querySelectorAll(".step")];
      this.player = null;
      this.polling = 0;
      this.wanted = null;
      this.seeking = null;
      this.opened = this.open();
    }

    async open() {
      this.cast = parse(reader.textsOf(data.sections[this.section]));
      this.cast.columns = columnsOf(this.cast);
      const { place } = this.cast;
      const known = data.sections[this.section].times;
      this.starts = known.map((times) => (times ? place(times[0]) : null));
      this.ends = known.map((times) => (times ? place(times[2]) : null));
      const typed = known.map((times, at) => times && [place(times[1]), `step ${at + 1}`]).filter(Boolean);
      const remarks = data.sections[this.section].remarks.map(([sec, text]) => [place(sec), reader.visible(text)]);
      this.markers = [...typed, ...remarks].sort((one, other) => one[0] - other[0]);
      this.create();
      // No poster, because the player drops it when it seeks: seek instead.
      this.wanted ??= this.ends[0] ?? this.cast.duration;
      this.seeking = this.seekWanted().finally(() => (this.seeking = null));
    }

    create(fit = "width") {
      this.player = AsciinemaPlayer.create(source(this.cast), this.screen, options(this.cast, { fit, controls: true, markers: this.markers }));
      this.player.addEventListener("play", () => this.follow(true));
      this.player.addEventListener("playing", () => this.follow(true));
      this.player.addEventListener("pause", () => this.follow(false));
      this.player.addEventListener("ended", () => this.follow(false));
      for (const kind of ["pointerup", "keyup"]) this.screen.addEventListener(kind, () => setTimeout(() => this.highlight(), 250));
    }

    follow(is) {
      clearInterval(this.polling);
      this.part.querySelector(".reader").classList.toggle("playing", is);
      this.isPlaying = is;
      if (is) this.polling = setInterval(() => this.highlight(), 150);
      else this.highlight();
    }

    /** Choose the step at the player's position. */
    async highlight() {
      if (this.seeking) return;
      const now = await this.player.getCurrentTime();
      const at = this.starts.findLastIndex((start) => start !== null && start <= now);
      const card = this.cardOf(Math.max(0, at));
      if (!card || card.classList.contains("now")) return;
      reader.choose(card, "player");
      if (this.isPlaying) card.scrollIntoView({ block: "nearest" });
    }

    cardOf(at) {
      return this.cards.find((card) => Number(card.dataset.n) === at + 1);
    }

    /** Seek, one at a time, as the player mixes up overlapping seeks. Of several waiting ones, the last one counts. */
    async seek(sec) {
      await this.opened;
      this.wanted = sec;
      this.seeking ??= this.seekWanted().finally(() => (this.seeking = null));
      return this.seeking;
    }

    async seekWanted() {
      while (this.wanted !== null) {
        const sec = this.wanted;
        this.wanted = null;
        await this.player.seek(sec);
      }
    }

    /** Show the screen at the end of a step. */
    async show(card) {
      await this.opened;
      const at = Number(card.dataset.n) - 1;
      if (this.ends[at] === null || this.ends[at] === undefined) return;
      if (this.isPlaying) await this.player.pause();
      await this.seek(Math.max(this.starts[at], this.ends[at] - 0.001));
    }

    async play(card) {
      await this.opened;
      if (this.isPlaying) return this.player.pause();
      const at = Number(card.dataset.n) - 1;
      reader.choose(card, "player");
      if (typeof this.starts[at] === "number") await this.seek(this.starts[at]);
      return this.player.play();
    }

    async refit(fit) {
      await this.opened;
      const now = await this.player.getCurrentTime();
      if (this.isPlaying) await this.player.pause();
      this.player.dispose();
      this.create(fit);
      await this.seek(now);
    }
  }

  function sessionAt(section) {
    if (!data?.sections[section]?.recorded || !window.AsciinemaPlayer) return null;
    if (!sessions.has(section)) sessions.set(section, new Session(section));
    return sessions.get(section);
  }

  /** Describe below the terminal what it shows, or say that the time of the step is unknown. */
  function describe(card, by) {
    const part = card.closest(".work");
    const place = part.querySelector("[data-session-place]");
    const note = part.querySelector("[data-session-note]");
    if (!place) return;
    const known = timesOf(card) !== null;
    place.textContent = by === "player" ? `step ${card.dataset.n}` : `at the end of step ${card.dataset.n}`;
    if (!note.dataset.failed) note.textContent = known ? "" : "The recording does not show when this step happened.";
  }

  /** Show or hide the screen at the end of a step within its card. */
  async function still(card) {
    const shown = card.querySelector(".still");
    reader.press(card, "screen", !shown);
    if (shown) return close(card);
    const session = sessionAt(sectionOf(card));
    if (!session) return;
    await session.opened;
    const end = session.ends[Number(card.dataset.n) - 1];
    if (typeof end !== "number") return describe(card, "reader");
    while (stills.length >= MAX_STILLS) close(stills[0].card);
    const box = TB.element("div", "still");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `screen at the end of step ${card.dataset.n}`);
    (card.querySelector('[data-field="observation"]') || card.lastElementChild).after(box);
    const poster = `npt:${Math.max(0, end - 0.001).toFixed(3)}`;
    // A fixed font size, if fitting all columns would make letters too small to read.
    const size = session.cast.columns > LEAST_COLUMNS * 1.25 ? { fit: false, terminalFontSize: "12px" } : { fit: "width" };
    const player = AsciinemaPlayer.create(source(session.cast), box, options(session.cast, { ...size, controls: false, poster }));
    stills.push({ card, box, player });
  }

  function close(card) {
    const at = stills.findIndex((each) => each.card === card);
    if (at < 0) return;
    const [{ box, player }] = stills.splice(at, 1);
    player.dispose();
    box.remove();
    reader.press(card, "screen", false);
  }

  reader.listeners.push((card, by) => {
    describe(card, by);
    if (by !== "player") attempt(sessionAt(sectionOf(card))?.show(card));
  });
  // If a recording cannot be shown, one note below the terminal says so.
  const attempt = (done) => done?.catch(() => {});
  reader.play = (card) => attempt(sessionAt(sectionOf(card))?.play(card));
  reader.screen = (card) => attempt(still(card));
  reader.sessionAt = sessionAt;

  for (const button of document.querySelectorAll('[data-act="wide"]'))
    button.addEventListener("click", () => {
      const layout = button.closest(".reader");
      const wide = layout.classList.toggle("wide");
      button.setAttribute("aria-pressed", String(wide));
      sessionAt(Number(button.closest(".work").dataset.section))?.refit(wide ? "both" : "width");
    });

  function explain() {
    for (const part of document.querySelectorAll(".work")) {
      const note = part.querySelector("[data-session-note]");
      const section = Number(part.dataset.section);
      if (note && sessionAt(section))
        sessionAt(section).opened.catch((problem) => {
          note.dataset.failed = "yes";
          note.textContent = `The recording cannot be shown: ${problem.message}`;
        });
    }
  }
  explain();
  reader.begin(); // only now can a step that the address names be shown in the terminal
})();
