"use strict";
(() => {
  const here = document.documentElement;
  let outer = null;
  try { if (window.parent !== window && window.parent.document) outer = window.parent; } catch { outer = null; }
  if (outer === null) return;
  const theirs = outer.document.documentElement;
  const follow = () => {
    const scheme = ["dark", "light"].find((name) => theirs.classList.contains(name));
    if (scheme) here.dataset.theme = scheme;
  };
  follow();
  new outer.MutationObserver(follow).observe(theirs, { attributes: true, attributeFilter: ["class"] });
  // The sandbox keeps the frame from leaving its page, so Airflow's own router opens the link.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    const url = new URL(link.dataset.airflow, outer.document.baseURI);
    outer.history.pushState({}, "", url.pathname);
    outer.dispatchEvent(new outer.PopStateEvent("popstate", { state: {} }));
  });
})();
