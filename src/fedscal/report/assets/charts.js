"use strict";
// Where the charts stand: each is drawn as soon as it is to be seen, and again when its place, the chosen domain
// or its view changes.

const charts = (() => {
  const KINDS = { ...roundCharts, ...answerCharts };

  let data = {};
  let choice = null;
  const all = (root) => [...root.querySelectorAll(".chart")];

  /** One picture with one name: Plot's names of its parts mean nothing to a listener. */
  const describe = (picture, title) => {
    picture.querySelectorAll("[aria-label], [aria-description]").forEach((part) => {
      part.removeAttribute("aria-label");
      part.removeAttribute("aria-description");
    });
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", title);
  };

  const draw = (box) => {
    const width = Math.floor(box.clientWidth);
    const one = data[box.dataset.chart];
    if (!width || !one) return;
    const view = box.closest("figure").querySelector(".views input:checked")?.value;
    const place = { width, choice, view, small: box.closest(".small") != null };
    box.replaceChildren(...KINDS[one.kind](one, place));
    box.dataset.width = width;
    box.querySelectorAll(":scope > svg").forEach((picture) => describe(picture, box.dataset.title));
  };

  const drawAll = () => all(document).forEach(draw);

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (Math.abs(target.clientWidth - (target.dataset.width ?? 0)) > 1) draw(target);
    }
    performance.mark("drawn");
  });

  const start = (root) => {
    data = JSON.parse(document.getElementById("charts")?.textContent ?? "{}");
    const select = root.querySelector(".choice select");
    choice = select?.value ?? null;
    select?.closest(".choice").removeAttribute("hidden");
    select?.addEventListener("change", () => {
      choice = select.value;
      all(select.closest("section")).forEach(draw);
    });
    root.querySelectorAll(".views").forEach((views) => {
      views.addEventListener("change", () => draw(views.closest("figure").querySelector(".chart")));
    });
    all(root).forEach((box) => resized.observe(box)); // which draws what is to be seen, and in a fold when it opens
  };

  return { start, drawAll };
})();
