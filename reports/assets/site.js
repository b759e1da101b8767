"use strict";
// What every page does with JavaScript: the choice of light or dark, and buttons that only work with it.
(() => {
  const root = document.documentElement;
  const order = ["auto", "light", "dark"];
  const remembered = () => {
    try {
      return localStorage.getItem("tbench-theme") || "auto";
    } catch {
      return "auto"; // a browser that keeps nothing for pages of files
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
    for (const part of document.querySelectorAll("[data-needs-script]")) part.hidden = false;
    show(theme);
    for (const button of document.querySelectorAll("[data-theme-button]"))
      button.addEventListener("click", () => {
        theme = order[(order.indexOf(theme) + 1) % order.length];
        try {
          localStorage.setItem("tbench-theme", theme);
        } catch {
          // it holds for this page alone
        }
        show(theme);
      });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
