"use strict";
// JavaScript of every page: the choice of light or dark, and showing the buttons that need JavaScript.
window.TB = window.TB || {};
/** Create an element with a class and children; strings become text, never markup. */
TB.element = (tag, className = "", ...children) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
};
/** Load a script, which works for pages opened as files, too; `fetch` does not. */
TB.load = (url, name = url) => {
  const script = Object.assign(document.createElement("script"), { src: url });
  return new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${name} is not in this site`));
    document.head.append(script);
  }).finally(() => script.remove());
};
/** Unpack a text that was packed by gzip and written in base64. */
TB.unpack = (packed) => {
  if (!window.DecompressionStream) return Promise.reject(new Error("this browser cannot unpack it"));
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
/** Show the parts that need JavaScript. */
TB.reveal = (place = document) => {
  for (const part of place.querySelectorAll("[data-needs-script]")) part.hidden = false;
};
document.addEventListener("click", async ({ target }) => {
  const pressed = target.closest("[data-copy]");
  if (!pressed) return;
  const source = document.getElementById(pressed.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    pressed.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(source);
    pressed.textContent = "selected: press Ctrl-C";
  }
});
(() => {
  const root = document.documentElement;
  const order = ["auto", "light", "dark"];
  const remembered = () => {
    try {
      return localStorage.getItem("tbench-theme") || "auto";
    } catch {
      return "auto"; // a browser that has no storage for pages opened as files
    }
  };
  const show = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-button]")) {
      button.textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[theme];
      button.setAttribute("aria-label", `colours: ${theme}`);
    }
  };
  let theme = order.includes(remembered()) ? remembered() : "auto";
  show(theme);
  const begin = () => {
    TB.reveal();
    show(theme);
    for (const button of document.querySelectorAll("[data-theme-button]"))
      button.addEventListener("click", () => {
        theme = order[(order.indexOf(theme) + 1) % order.length];
        try {
          localStorage.setItem("tbench-theme", theme);
        } catch {
          // the choice lasts for this page only
        }
        show(theme);
      });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
