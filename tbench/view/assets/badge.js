
// On served pages: marks running runs beside their links, and offers a reload when the pages have been written again.
(() => {
  const EVERY_MS = 5000;
  const base = new URL("../", document.currentScript.src);
  let version;

  const badge = (words) => {
    const link = TB.element("a", "chip running", words);
    link.dataset.live = "";
    link.href = new URL("live", base).href;
    return link;
  };
  const show = ({ runs, version: current }) => {
    for (const old of document.querySelectorAll("[data-live]")) old.remove();
    const tools = document.querySelector(".top .tools");
    if (version !== undefined && current !== version && tools) {
      const again = badge("↻ new results");
      again.href = location.href;
      tools.prepend(again);
    }
    version ??= current;
    if (location.pathname.startsWith("/live")) return;
    if (runs.length && tools) tools.prepend(badge(`● ${runs.length > 1 ? `${runs.length} runs` : "live"}`));
    for (const run of runs) {
      if (!run.page) continue;
      const target = new URL(run.page, base).href;
      for (const link of document.querySelectorAll("main a[href]"))
        if (link.href === target) link.after(" ", badge(`● live ${run.ended}/${run.planned}`));
    }
  };
  const ask = () => {
    if (document.hidden) return;
    TB.load(new URL("live/state.js", base).href).then(
      () => show(TB.live),
      () => {}, // the server is down
    );
  };
  const begin = () => {
    ask();
    setInterval(ask, EVERY_MS);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
