// Shows a slider's number while it is moved, and asks again once it is let go.
// The answer is the server's own escaped markup, and the page's policy forbids any other script.
let asked = 0;

async function ask(form) {
  const mine = ++asked;
  const address = new URL(form.action);
  address.search = new URLSearchParams(new FormData(form)).toString();
  const old = document.getElementById("answer");
  old.setAttribute("aria-busy", "true");
  let answer;
  try {
    answer = await fetch(address, { cache: "no-store", redirect: "error" });
  } catch {
    return; // the server is gone: what is shown stays marked as old
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (mine !== asked) return; // somebody has moved on
  const next = page.getElementById("answer");
  if (next === null) return location.assign(address); // it says why not
  old.replaceWith(document.adoptNode(next));
  history.replaceState(null, "", address);
}

document.addEventListener("input", ({ target }) => {
  const output = target.parentElement?.querySelector("output");
  if (target.type === "range" && output) output.value = target.value;
});
document.addEventListener("change", ({ target }) => {
  if (target.type === "range") ask(target.form);
});
