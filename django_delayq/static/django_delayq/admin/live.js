// Refreshes an open page without a flash: fetches the same page, and changes in this one only what differs.
// What a person has done stays: the focus, ticked rows, what is typed and not sent, open details, the place on the page.
"use strict";
(() => {
  const bar = document.getElementById("delayq-live-bar");
  const region = document.getElementById("delayq-live");
  if (!bar || !region || !window.fetch || !window.AbortController) return;
  const [said, button] = [bar.querySelector(".said"), bar.querySelector("button")];
  const EVERY_MS = Number(bar.dataset.seconds) * 1000;
  const PATIENCE_MS = 10000;
  const LONGEST_MS = 60000;
  const KEPT = "delayq.live";
  let [waitMs, seenAt, timer, asking] = [EVERY_MS, new Date(), 0, null];
  let isPaused = recall() === "off";

  // Where a browser keeps nothing for a page, the choice lasts as long as the page.
  function recall() {
    try { return localStorage.getItem(KEPT); } catch { return null; }
  }

  function remember(choice) {
    try { localStorage.setItem(KEPT, choice); } catch { return; }
  }

  function show(text, state) {
    if (said.textContent !== text) said.textContent = text;
    bar.className = `delayq-live ${state}`;
    button.textContent = isPaused ? bar.dataset.resume : bar.dataset.pause;
    bar.hidden = false;
  }

  function plan() {
    clearTimeout(timer);
    if (!isPaused && !document.hidden) timer = setTimeout(refresh, waitMs);
  }

  function stop() {
    clearTimeout(timer);
    if (asking) asking.abort();
  }

  async function refresh() {
    stop();
    const mine = asking = new AbortController();
    const patience = setTimeout(() => mine.abort(), PATIENCE_MS);
    try {
      const reply = await fetch(location.href, { credentials: "same-origin", cache: "no-store", signal: mine.signal });
      if (new URL(reply.url).pathname !== location.pathname) {
        isPaused = true;
        show(bar.dataset.gone, "is-lost");
        return;
      }
      // 404: what the page was about has gone, which it says.
      if (!reply.ok && reply.status !== 404) throw new Error(String(reply.status));
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const fresh = page.getElementById("delayq-live");
      if (!fresh) throw new Error("another page");
      if (mine.signal.aborted) return;
      swap(fresh);
      [waitMs, seenAt] = [EVERY_MS, new Date()];
      show(bar.dataset.on, "is-on");
    } catch (error) {
      // Somebody has paused, or left the tab.
      if (mine !== asking || isPaused || document.hidden) return;
      waitMs = Math.min(waitMs * 2, LONGEST_MS);
      show(`${bar.dataset.lost} ${seenAt.toLocaleTimeString(document.documentElement.lang || undefined)}`, "is-lost");
    } finally {
      clearTimeout(patience);
      if (mine === asking) asking = null;
      plan();
    }
  }

  function swap(fresh) {
    const focused = document.activeElement;
    syncChildren(region, fresh);
    if (focused && focused !== document.activeElement && region.contains(focused)) focused.focus({ preventScroll: true });
  }

  // Nodes with a key are the same wherever they stand; others are the same in the same place.
  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset.key)) || "";
  const isSame = (old, fresh) => Boolean(old) && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);

  function sync(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) {
      // A person opens details; the server does not.
      if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
    }
    syncChildren(old, fresh);
  }

  function syncChildren(old, fresh) {
    const wanted = new Set([...fresh.childNodes].map(keyOf));
    const keyed = new Map();
    for (const child of [...old.childNodes]) {
      const key = keyOf(child);
      if (key && !wanted.has(key)) child.remove();
      else if (key) keyed.set(key, child);
    }
    let at = old.firstChild;
    for (const want of [...fresh.childNodes]) {
      const known = keyOf(want) ? keyed.get(keyOf(want)) : at;
      if (!isSame(known, want)) {
        old.insertBefore(document.importNode(want, true), at);
        continue;
      }
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      sync(known, want);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    remember(isPaused ? "off" : "on");
    if (isPaused) {
      stop();
      show(bar.dataset.off, "");
    } else refresh();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : isPaused || refresh()));
  show(isPaused ? bar.dataset.off : bar.dataset.on, isPaused ? "" : "is-on");
  plan();
})();
