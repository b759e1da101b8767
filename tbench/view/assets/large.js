"use strict";
// The large view of one trial: its terminal in a player that is fed with the recording, and its last steps.
(() => {
  const EVERY_MS = 500;
  const ASLEEP_MS = 2500;
  const PLAYER = "/assets/vendor/asciinema-player/asciinema-player";
  let dialog, key, player, feed, place, timer, hasNews, loading;

  const at = (name) => dialog.querySelector(`[data-at="${name}"]`);

  // A live driver for the player, without a time line. The player requests it only when it has loaded: earlier output
  // is kept.
  const newDriver = () => {
    const timing = () => ({ time: 0, rate: 0, sampledAt: performance.timeOrigin + performance.now() });
    const pending = [];
    let callbacks, isPlaying = false;
    feed = (kind, data) => {
      if (isPlaying) callbacks.dispatch(kind, data);
      else pending.push([kind, data]);
    };
    const driver = {
      init: () => {},
      play: () => {
        if (isPlaying) return true;
        isPlaying = true;
        callbacks.dispatch("play");
        callbacks.dispatch("playing");
        for (const [kind, data] of pending.splice(0)) callbacks.dispatch(kind, data);
        return true;
      },
      stop: () => {
        isPlaying = false;
        pending.length = 0;
      },
      getTiming: timing,
    };
    return (given) => {
      callbacks = given;
      return driver;
    };
  };
  const loaded = (name, attributes) =>
    new Promise((done, failed) => {
      const node = Object.assign(document.createElement(name), attributes);
      node.onload = done;
      node.onerror = () => failed(new Error("the player is missing"));
      document.head.append(node);
    });
  // The styles come first: the player reads its colours from them once.
  const load = () => (loading ??= loaded("link", { rel: "stylesheet", href: `${PLAYER}.css` }).then(() => loaded("script", { src: `${PLAYER}.min.js` })));
  const begin = async (answer) => {
    try {
      await load();
    } catch {
      return; // keep showing plain lines
    }
    if (!dialog.open || player) return;
    const options = {
      ...{ cols: answer.columns, rows: answer.rows, fit: "both", controls: false, autoPlay: true, cursorMode: "steady" },
      terminalFontFamily: '"DejaVu Sans Mono", Menlo, Consolas, ui-monospace, monospace',
    };
    player = window.AsciinemaPlayer.create(newDriver(), at("screen"), options);
    at("plain").hidden = true;
    at("screen").hidden = false;
  };
  const end = () => {
    player?.dispose();
    player = feed = undefined;
    at("screen").replaceChildren();
    at("screen").hidden = true;
    at("plain").hidden = false;
  };

  const ask = async () => {
    const asked = key;
    hasNews = false;
    const query = new URLSearchParams({ trial: asked, recording: place.recording, begin: place.end });
    let answer;
    try {
      const response = await fetch(`/live/terminal?${query}`);
      if (response.status === 404) return;
      answer = await response.json();
    } catch {
      return; // the server is unreachable, which the page shows already
    }
    if (asked !== key || !dialog.open) return;
    showSteps(answer.steps);
    if (!answer.recording) return;
    if (!player) await begin(answer);
    if (asked !== key || !feed) return; // the player is missing, or another trial is shown
    if (answer.anew) feed("reset", { size: { cols: answer.columns, rows: answer.rows } });
    if (answer.text) feed("output", answer.text);
    place = { recording: answer.recording, end: answer.end };
  };
  const again = () => {
    clearTimeout(timer);
    if (!dialog.open) return;
    const began = performance.now();
    ask().finally(() => {
      const wait = () => {
        if (!dialog.open) return;
        if (hasNews || performance.now() - began > ASLEEP_MS) again();
        else timer = setTimeout(wait, EVERY_MS);
      };
      timer = setTimeout(wait, EVERY_MS);
    });
  };
  const showSteps = (steps) => {
    const { element } = window.TB;
    const lines = steps.map((step) => {
      const line = element("li");
      line.append(element("span", "soft num", `${step.index}`), " ");
      line.append(element("code", "wrap", step.typed || (step.problem ? `! ${step.problem}` : "(nothing typed)")));
      const warned = step.warnings ? ` · ! ${step.warnings} warning${step.warnings > 1 ? "s" : ""}` : "";
      const code = step.code === null ? "" : ` · exit ${step.code}`;
      line.append(" ", element("span", "soft small", `model ${step.model} s · command ${step.command} s${code}${warned}`));
      return line;
    });
    at("steps").replaceChildren(...(lines.length ? lines : [element("li", "soft", "none has ended yet")]));
  };
  const show = () => {
    const trial = window.TbenchLive.trial(key);
    if (!trial) {
      at("state").textContent = "ended; its page will be written soon";
      return;
    }
    at("name").textContent = `${trial.task} · seed ${trial.seed}`;
    at("state").textContent = window.TbenchLive.words(trial);
    at("state").className = `chip ${trial.mark ?? "running"}`;
    if (!player) window.TbenchLive.screenInto(at("plain"), trial.rows);
  };
  const open = (wanted) => {
    key = wanted;
    place = { recording: "", end: 0 };
    end();
    at("steps").replaceChildren();
    show();
    if (!dialog.open) dialog.showModal();
    again();
  };
  const step = (by) => {
    const order = window.TbenchLive.order();
    if (!order.length) return;
    const index = order.indexOf(key);
    open(order[(Math.max(index, 0) + by + order.length) % order.length]);
  };
  const columns = () => {
    const list = document.querySelector("[data-tiles]");
    return getComputedStyle(list).gridTemplateColumns.split(" ").length;
  };

  document.addEventListener("DOMContentLoaded", () => {
    dialog = document.querySelector("[data-large]");
    end();
    dialog.addEventListener("close", () => {
      clearTimeout(timer);
      end();
      document.querySelector(`.tile[data-trial="${CSS.escape(key)}"] .tile-name`)?.focus();
    });
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
    for (const button of dialog.querySelectorAll("[data-step]"))
      button.addEventListener("click", () => step(Number(button.dataset.step)));
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(), ArrowDown: columns() }[event.key];
      if (by === undefined || event.target === at("plain")) return;
      event.preventDefault();
      step(by);
    });
    document.addEventListener("tbench-news", (event) => {
      if (!dialog.open) return;
      if (`trial ${key}` in event.detail.set) hasNews = true;
      show();
    });
    setInterval(() => dialog.open && show(), 1000);
  });
  window.TbenchLarge = { open };
})();
