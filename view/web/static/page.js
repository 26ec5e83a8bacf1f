// Keeps a page as the server would write it now. All markup is the server's: it comes as a parsed
// document (XMLHttpRequest), whose scripts do not run. Nothing here turns text into markup, and the
// Content-Security-Policy (Trusted Types) would not let it.
"use strict";

const root = document.body.dataset.root;
const kind = document.body.dataset.kind;
const live = document.getElementById("live");
const PAUSE = 1000; // ms between two requests for changes
const POLL = 10000; // ms, while the server has no stream left for us
const STALE = 15; // s without a word, after which what is shown may not be so any more

let edition = Number(document.body.dataset.edition);
let newest = edition;
let stream = null;
let busy = false;
let timer = null;
let polls = null;
let since = null; // when what is shown is known to have been so, by performance.now()
let stale = "";

// Take in how old what the server knows is, and why it is not heard from the API server.
function fresh(age, why) {
  since = age === null || age === "" ? null : performance.now() - 1000 * Number(age);
  stale = why;
  tick();
}

// A time on the page goes on counting, whoever has stopped talking.
function tick() {
  if (since === null) return;
  const seconds = Math.max(0, Math.round((performance.now() - since) / 1000));
  const at = new Date(Date.now() - 1000 * seconds).toTimeString().slice(0, 8);
  document.getElementById("age").textContent = `as of ${at}, ${seconds} s ago`;
  if (stale || seconds > STALE) say(`Stale: ${stale || "the page's server is not heard"}`, "stale");
  else if (live.dataset.state === "stale") say(stream ? "Live" : "Connection lost: trying again", stream ? "on" : "off");
}

function say(text, state) {
  if (live.textContent !== text) live.textContent = text;
  live.dataset.state = state;
}

function load(url) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", url);
    request.responseType = "document";
    request.timeout = 30000;
    request.onload = () =>
      request.response ? resolve(request.response) : reject(new Error(String(request.status)));
    request.onerror = request.ontimeout = () => reject(new Error("no answer"));
    request.send();
  });
}

// Replace an element, and keep what the visitor does in it: where the focus is, what is unfolded.
function replace(before, after) {
  after = document.adoptNode(after);
  for (const each of before.querySelectorAll("details[id]")) {
    const same = after.querySelector(`details[id="${CSS.escape(each.id)}"]`);
    if (same) same.open = each.open;
  }
  const focused = before.contains(document.activeElement) ? document.activeElement : null;
  const place = focused ? [...before.querySelectorAll("a,summary,[tabindex]")].indexOf(focused) : -1;
  if (before.isEqualNode(after)) return;
  before.replaceWith(after);
  if (!focused) return;
  const all = [...after.querySelectorAll("a,summary,[tabindex]")];
  const href = focused.getAttribute("href");
  const again = (href && all.find((each) => each.getAttribute("href") === href)) || all[place];
  if (again) again.focus({ preventScroll: true });
}

function section(id, from) {
  const before = document.getElementById(id);
  const after = from.getElementById(id);
  if (before && after) replace(before, after);
}

function applyRows(changes) {
  section("summary", changes);
  const list = document.getElementById("nodes");
  const rows = new Map([...list.children].map((row) => [row.dataset.node, row]));
  for (const gone of changes.querySelectorAll("#gone > li")) {
    const row = rows.get(gone.dataset.node);
    if (row) row.remove();
    rows.delete(gone.dataset.node);
  }
  for (const row of [...changes.querySelectorAll("#nodes > li")]) {
    const before = rows.get(row.dataset.node);
    if (before) {
      replace(before, row);
    } else {
      const next = [...list.children].find((each) => each.dataset.node > row.dataset.node);
      list.insertBefore(document.adoptNode(row), next || null);
    }
  }
  return String(list.children.length) === changes.body.dataset.count && list.children.length > 0;
}

async function whole() {
  const page = await load(location.href);
  if (!page.body.dataset.kind || !page.getElementById("body")) {
    location.reload(); // the pod has gone, say
    return;
  }
  section("body", page);
  fresh(page.body.dataset.age, page.body.dataset.stale);
  edition = Number(page.body.dataset.edition);
}

async function refresh() {
  if (busy) return;
  busy = true;
  try {
    if (kind === "nodes") {
      const query = new URLSearchParams(location.search);
      query.set("since", String(edition));
      const changes = await load(`${root}rows?${query}`);
      if ("reload" in changes.body.dataset || !applyRows(changes)) await whole();
      else {
        edition = Number(changes.body.dataset.edition);
        fresh(changes.body.dataset.age, changes.body.dataset.stale);
      }
    } else {
      await whole();
    }
    document.body.dataset.edition = String(edition);
    if (stream && !stale) say("Live", "on");
  } catch {
    say("Connection lost: trying again", "off");
  } finally {
    busy = false;
    // Not for an edition that was made meanwhile by chance: only for one that is told.
    if (newest > edition) later();
  }
}

function later() {
  if (timer !== null) return;
  timer = setTimeout(() => {
    timer = null;
    refresh();
  }, PAUSE);
}

function connect() {
  if (stream || document.hidden) return;
  stream = new EventSource(`${root}events?since=${edition}`);
  stream.onopen = () => {
    clearInterval(polls);
    polls = null;
    if (!stale) say("Live", "on");
  };
  stream.addEventListener("contact", (event) => {
    const told = JSON.parse(event.data);
    fresh(told.age, told.stale);
  });
  stream.addEventListener("edition", (event) => {
    newest = Number(event.data);
    if (newest < edition) edition = 0; // another server, which counts anew
    if (newest !== edition) later();
  });
  stream.onerror = () => {
    say("Connection lost: trying again", "off");
    if (!stream || stream.readyState !== EventSource.CLOSED) return; // it tries again by itself
    disconnect();
    polls ??= setInterval(() => {
      if (document.hidden) return;
      refresh();
      connect();
    }, POLL);
  };
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

// A browser holds six connections to one server: a page that nobody sees gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else connect();
});

const form = document.querySelector("form.filter");
if (form) {
  let chosen = location.search;
  const choose = async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    for (const [key, value] of new FormData(form)) if (value) query.set(key, value);
    history.pushState(null, "", query.size ? `./?${query}` : "./");
    chosen = location.search;
    try {
      await whole();
    } catch {
      location.reload();
    }
  };
  form.addEventListener("submit", choose);
  form.addEventListener("change", choose);
  addEventListener("popstate", () => {
    if (location.search !== chosen) location.reload(); // back; not a jump within the page
  });
}

if (kind !== "text") {
  fresh(document.body.dataset.age, document.body.dataset.stale);
  setInterval(tick, 1000);
  connect();
} else {
  live.remove();
}
