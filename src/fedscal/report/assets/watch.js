// Asks the watcher how the run stands, and turns the page when there is more to show.
const EVERY = 2000;
const COST = 5; // a page that took a second to make is shown for five: the machine has a model to train
const LANDMARKS = ":is(h2, h3, figure, tr, p, li, dt, summary)";
const FOCUSABLE = "a, button, input, select, summary, [tabindex]";
const LOST = `<p id="watch-headline"><span class="phase lost">lost</span> <strong>Not up to date</strong>:
fedscal watch has ended, cannot be reached, or cannot draw the page; its terminal says which.</p>`;
const strip = document.querySelector(".watch-top");
let shown = document.getElementById("fedscal-watch").dataset.page;
let title = document.title;
let due = COST * performance.now();
let looking = false;
let next = 0;

const parsed = (text) => new DOMParser().parseFromString(text, "text/html");

async function asked(where) {
  const answer = await fetch(where, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  return answer;
}

function tell(words) {
  for (const part of words.querySelectorAll("[id]")) {
    const old = document.getElementById(part.id);
    if (old.innerHTML !== part.innerHTML) old.innerHTML = part.innerHTML;
  }
  document.title = `${words.querySelector("strong").textContent} · ${title}`;
}

const topOf = (one) => one.getBoundingClientRect().top;
const landmarks = (section) => [...document.querySelectorAll(`section#${section} ${LANDMARKS}`)];

// Remembers the first thing in the window, by its section and its place in it, and returns how to go there.
function scrolled() {
  const all = [...document.querySelectorAll(`section[id] ${LANDMARKS}`)];
  const hidden = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) - 1; // below bars that stay
  const mark = all.find((one) => topOf(one) >= hidden) ?? all.at(-1);
  if (!window.scrollY || !mark) return () => {};
  const section = mark.closest("section[id]").id;
  const [place, height] = [landmarks(section).indexOf(mark), topOf(mark)];
  return () => {
    const now = landmarks(section)[place];
    if (now) window.scrollBy({ top: topOf(now) - height, behavior: "instant" });
  };
}

// Remembers what else a reader would miss, and returns how to bring it back.
function kept(main) {
  const all = (selector) => [...main.querySelectorAll(selector)];
  const scroll = scrolled();
  const opened = new Map(all("details").map((one) => [one.querySelector("summary")?.textContent, one.open]));
  const aside = all("div").map((one) => one.scrollLeft);
  const focus = all(FOCUSABLE).indexOf(document.activeElement);
  return () => {
    all("details").forEach((one) => {
      one.open = opened.get(one.querySelector("summary")?.textContent) ?? one.open;
    });
    all("div").forEach((one, place) => {
      if (aside[place]) one.scrollLeft = aside[place];
    });
    if (focus >= 0) all(FOCUSABLE)[focus]?.focus({ preventScroll: true });
    scroll();
  };
}

// How the page's own script sets up what is new; nothing without one. A script that has no such function can
// only be run again with the whole page.
const isData = (one) => one.type === "application/json";
const others = [...document.scripts].filter((one) => one.id !== "watch-script" && !isData(one));
const draw = window.fedscalDraw ?? (typeof fedscal === "undefined" ? null : fedscal.start);
const drawable = others.length === 0 || draw !== null;

async function turn(page) {
  const began = performance.now();
  const main = document.querySelector("main");
  if (!main || !drawable) return location.reload();
  const fresh = parsed(await (await asked(location.pathname)).text());
  if (fresh.scripts.length !== document.scripts.length) return location.reload(); // it draws for the first time
  const bringBack = kept(main);
  for (const part of ["body > header", "main"]) {
    const old = document.querySelector(part);
    if (part === "main" || !old?.querySelector("button, input, select")) {
      old?.replaceChildren(...fresh.querySelector(part).childNodes);
    }
  }
  for (const data of [...fresh.scripts].filter(isData)) {
    const old = document.getElementById(data.id);
    if (old) old.textContent = data.textContent;
  }
  title = fresh.title;
  draw?.(main);
  bringBack();
  shown = page;
  due = performance.now() + COST * (performance.now() - began);
}

async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(next);
  try {
    const state = await (await asked("state")).json();
    const words = parsed(state.strip).body;
    const changing = words.querySelector(".running, .preparing");
    const copying = document.hasFocus() && String(getSelection());
    if (state.page !== shown && !copying && (!changing || performance.now() > due)) await turn(state.page);
    tell(words);
  } catch {
    tell(parsed(LOST).body);
  }
  next = setTimeout(look, EVERY);
  looking = false;
}

new ResizeObserver(() => {
  document.documentElement.style.setProperty("--watch", `${strip.offsetHeight}px`);
}).observe(strip);
// In the background a browser lets time pass slowly: who comes back sees the present at once.
document.addEventListener("visibilitychange", look);
look();
