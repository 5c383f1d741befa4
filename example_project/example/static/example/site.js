// Keeps a page up to date: countdowns tick here, all else that is live comes anew from the server.
"use strict";

// Between two looks at the server; while something on the page is due, it changes any moment.
const PERIOD_MS = 1000;
const EAGER_MS = 200;
const EAGER_FOR_MS = 5000;
// How long what has just changed its state stands out.
const FLASH_MS = 1600;

// How far the server's clock is ahead of ours.
let aheadMs = 0;
let isLeaving = false;

const two = (number) => String(number).padStart(2, "0");

// As templatetags/live.py writes it.
function inWords(ms) {
  if (ms <= 0) return "now";
  const seconds = Math.ceil(ms / 1000);
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(seconds / unit));
  const [m, s] = [two(minutes % 60), two(seconds % 60)];
  if (days) return `${days} d ${two(hours % 24)}:${m}:${s}`;
  return hours ? `${hours}:${m}:${s}` : `${minutes}:${s}`;
}

const leftMs = (countdown) => Date.parse(countdown.dateTime) - Date.now() - aheadMs;

function tick(root) {
  for (const countdown of root.querySelectorAll("[data-countdown]")) {
    const text = inWords(leftMs(countdown));
    if (countdown.textContent !== text) countdown.textContent = text;
  }
}

function setClock(page) {
  aheadMs = Date.parse(page.querySelector("[data-clock]").dateTime) - Date.now();
}

// Replace what has changed, and leave the rest alone: a selection stays, and so does the focus.
function replace(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  // Not under the finger: a button that is replaced while it is pressed is never clicked.
  if (old.querySelector(":active")) return;
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const before = new Map([...old.querySelectorAll("[data-state]")].map((one) => [one.id, one.dataset.state]));
  old.replaceChildren(...fresh.childNodes);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const one of old.querySelectorAll("[data-state]")) {
    if (before.has(one.id) && before.get(one.id) !== one.dataset.state) {
      one.animate({ backgroundColor: ["var(--good-back)", "transparent"] }, FLASH_MS);
    }
  }
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || isLeaving) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  setClock(page);
  tick(page);
  tick(document);
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.querySelector(`[data-live="${old.dataset.live}"]`);
    if (fresh) replace(old, fresh);
  }
  // What is there only for a while goes.
  for (const old of document.querySelectorAll("[data-while]")) {
    if (!page.querySelector(`[data-while="${old.dataset.while}"]`)) old.remove();
  }
}

function nextLookMs() {
  const left = [...document.querySelectorAll("[data-countdown]")].map(leftMs);
  if (left.some((ms) => ms <= 0 && ms > -EAGER_FOR_MS)) return EAGER_MS;
  // A moment after the next countdown ends, if that comes first.
  return Math.min(PERIOD_MS, ...left.filter((ms) => ms > 0).map((ms) => ms + 30));
}

async function keepUpToDate() {
  if (!document.hidden) await refresh();
  setTimeout(keepUpToDate, nextLookMs());
}

setClock(document);
setInterval(() => tick(document), 100);
setTimeout(keepUpToDate, nextLookMs());
// The next page shows what comes of a form; a look of this one would take its message away.
addEventListener("submit", () => { isLeaving = true; });
