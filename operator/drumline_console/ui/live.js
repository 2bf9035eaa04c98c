// Reads the page again every few seconds while somebody looks, and puts the new content in place.
// The content is the server's own escaped markup, and the page's policy forbids any other script.
const SECONDS = 5;

async function refresh() {
  if (document.hidden || !getSelection().isCollapsed) return;
  if (document.activeElement?.tagName === "INPUT") return; // somebody types a filter
  const old = document.getElementById("live");
  let answer;
  try {
    answer = await fetch(location.href, { cache: "no-store", redirect: "error" });
  } catch {
    old.setAttribute("aria-busy", "true"); // the server is gone: what is shown is old
    return;
  }
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const next = page.getElementById("live");
  if (next === null) return;
  const focused = document.activeElement?.getAttribute("href");
  const boxes = ".wide, .pane";
  const scrolled = [...old.querySelectorAll(boxes)].map((box) => [box.scrollLeft, box.scrollTop]);
  old.replaceWith(document.adoptNode(next));
  [...next.querySelectorAll(boxes)].forEach((box, at) => { [box.scrollLeft, box.scrollTop] = scrolled[at] ?? [0, 0]; });
  if (focused) [...next.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
  document.title = page.title;
}

setInterval(refresh, SECONDS * 1000);
document.addEventListener("visibilitychange", refresh);
