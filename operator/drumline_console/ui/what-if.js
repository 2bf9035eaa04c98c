// Shows a slider's number while it is moved, and asks again once it is let go.
// The answer is the server's own escaped markup, and the page's policy forbids any other script.
let wanted = null; // the form to ask next
let busy = false;

async function ask(form) {
  wanted = form;
  document.getElementById("answer").setAttribute("aria-busy", "true");
  if (busy) return; // the server answers one question at a time: this one follows, moved on or not
  busy = true;
  while (wanted !== null) {
    const address = new URL(wanted.action);
    address.search = new URLSearchParams(new FormData(wanted)).toString();
    wanted = null;
    let text;
    try {
      text = await (await fetch(address, { cache: "no-store", redirect: "error" })).text();
    } catch {
      break; // the server is gone: what is shown stays marked as old
    }
    if (wanted !== null) continue; // somebody has moved on
    const next = new DOMParser().parseFromString(text, "text/html").getElementById("answer");
    if (next === null) return location.assign(address); // it says why not
    document.getElementById("answer").replaceWith(document.adoptNode(next));
    history.replaceState(null, "", address);
  }
  busy = false;
}

document.addEventListener("input", ({ target }) => {
  const output = target.parentElement?.querySelector("output");
  if (target.type === "range" && output) output.value = target.value;
});
document.addEventListener("change", ({ target }) => {
  if (target.type === "range") ask(target.form);
});
