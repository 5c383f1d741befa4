// Copies the id that stands before a button. Without a script there is no button, and the id is selected like any text.
"use strict";
(() => {
  const status = document.getElementById("delayq-copied");
  if (!status) return;
  const SHOWN_MS = 3000;
  document.documentElement.classList.add("delayq-scripted");

  function select(element) {
    getSelection().selectAllChildren(element);
  }

  async function copy(element) {
    // Only over HTTPS, and only where the browser permits it.
    try {
      await navigator.clipboard.writeText(element.textContent);
      return true;
    } catch {
      select(element);
      try { return document.execCommand("copy"); } catch { return false; }
    }
  }

  // A page that refreshes itself may exchange its buttons.
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest(".delayq-copy");
    if (!button) return;
    const isCopied = await copy(button.previousElementSibling);
    status.textContent = isCopied ? status.dataset.copied : status.dataset.selected;
    if (!isCopied) return;
    button.classList.add("is-done");
    setTimeout(() => {
      button.classList.remove("is-done");
      status.textContent = "";
    }, SHOWN_MS);
  });
})();
