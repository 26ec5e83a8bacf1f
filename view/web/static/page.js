// Keeps the page up to date. All markup is rendered by the server and comes as a parsed document
// (XMLHttpRequest), whose scripts do not run. Nothing here turns text into markup, and the
// Content-Security-Policy (Trusted Types) forbids it.
"use strict";

const root = document.body.dataset.root;
const kind = document.body.dataset.kind;
const live = document.getElementById("live");
const PAUSE = 1000; // ms between two requests for changes
const POLL = 10000; // ms, while the server has no free stream
const STALE = 15; // s without contact, after which the data counts as stale

let edition = Number(document.body.dataset.edition);
let newest = edition;
let stream = null;
let busy = false;
let timer = null;
let polls = null;
let since = null; // performance.now() when the data was current
let stale = "";

// Set the age of the data, and why it is stale ("" if it is not).
function setAge(age, why) {
  since = age === null || age === "" ? null : performance.now() - 1000 * Number(age);
  stale = why;
  tick();
}

// The age keeps counting, also without a connection.
function tick() {
  if (since === null) return;
  const seconds = Math.max(0, Math.round((performance.now() - since) / 1000));
  const at = new Date(Date.now() - 1000 * seconds).toTimeString().slice(0, 8);
  document.getElementById("age").textContent = `data from ${at} (${seconds}s ago)`;
  if (stale || seconds > STALE) setStatus(`Stale: ${stale || "no connection to the server of the page"}`, "stale");
  else if (live.dataset.state === "stale") setStatus(stream ? "Live" : "Connection lost, retrying:", stream ? "on" : "off");
}

// Update ages, in the format of the server.
function updateAges() {
  for (const each of document.querySelectorAll("time.ago")) {
    const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(each.dateTime)) / 1000));
    const [unit, name] = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]].find(
      ([size, letter]) => seconds >= { d: 2, h: 3, m: 2, s: 0 }[letter] * size,
    ) || [1, "s"];
    const text = `${Math.floor(seconds / unit)}${name}`;
    if (!Number.isNaN(seconds) && each.textContent !== text) each.textContent = text;
  }
}

function setStatus(text, state) {
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
    request.onerror = request.ontimeout = () => reject(new Error("no response"));
    request.send();
  });
}

const CAN_FOCUS = "a,summary,button,[tabindex]";

// Replace an element, but keep its focus and which details are open.
function replace(before, after) {
  after = document.adoptNode(after);
  showCopyButtons(after);
  for (const each of before.querySelectorAll("details[id]")) {
    const same = after.querySelector(`details[id="${CSS.escape(each.id)}"]`);
    if (same) same.open = each.open;
  }
  const focused = before.contains(document.activeElement) ? document.activeElement : null;
  const position = focused ? [...before.querySelectorAll(CAN_FOCUS)].indexOf(focused) : -1;
  if (before.isEqualNode(after)) return before;
  before.replaceWith(after);
  if (!focused) return after;
  const all = [...after.querySelectorAll(CAN_FOCUS)];
  const href = focused.getAttribute("href");
  const target = (href && all.find((each) => each.getAttribute("href") === href)) || all[position];
  if (target) target.focus({ preventScroll: true });
  return after;
}

function updateSection(id, from) {
  const before = document.getElementById(id);
  const after = from.getElementById(id);
  if (before && after) replace(before, after);
}

// Update the changed items of a list and its order; false if an item is missing.
function updateList(id, from) {
  const list = document.getElementById(id);
  const changes = from.getElementById(id);
  const byKey = (each) => [each.dataset.key, each];
  const have = new Map([...list.children].map(byKey));
  const changed = new Map([...changes.children].map(byKey));
  const order = changes.dataset.order ? changes.dataset.order.split(" ") : [];
  if (!order.length || !have.size) return order.length === have.size;
  if (order.some((key) => !have.has(key) && !changed.has(key))) return false;
  const wanted = new Set(order);
  for (const [key, each] of have) if (!wanted.has(key)) each.remove();
  let at = list.firstElementChild;
  for (const key of order) {
    const before = have.get(key);
    if (before && before !== at && at && at.nextElementSibling === before) {
      const later = at; // only this one moved
      at = before;
      later.remove();
    }
    const here = before === at;
    const after = changed.get(key);
    const item = !after ? before : before ? replace(before, after) : document.adoptNode(after);
    if (here && before) at = item.nextElementSibling;
    else list.insertBefore(item, at);
  }
  updateTabStop();
  return true;
}

// Update the options of a select, and keep its value.
function updateOptions(id, from) {
  const before = document.getElementById(id);
  const after = from.getElementById(id);
  if (!before || !after || before.textContent === after.textContent) return;
  const chosen = before.value;
  before.replaceChildren(...[...after.children].map((each) => document.adoptNode(each)));
  before.value = chosen;
}

function applyRows(changes) {
  updateOptions("namespaces", changes);
  updateOptions("models", changes);
  updateSection("summary", changes);
  updateSection("attention", changes);
  return updateList("map", changes) && updateList("nodes", changes);
}

// Show the buttons that only work with this script.
function showCopyButtons(within) {
  if (!navigator.clipboard) return; // not available over HTTP from another machine
  for (const each of within.querySelectorAll("button.copy")) each.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying not allowed";
  }
  setTimeout(() => (button.textContent = before), 2000);
});

// In the map, Tab reaches one node; arrow keys move to the others (roving tabindex).
let mark = "";

function updateTabStop() {
  const all = [...document.querySelectorAll("#map a")];
  const current = all.find((each) => each.parentElement.dataset.key === mark) || all[0];
  for (const each of all) each.tabIndex = each === current ? 0 : -1;
}

function neighbour(from, key) {
  const all = [...document.querySelectorAll("#map a")];
  const at = all.indexOf(from);
  if (key === "Home" || key === "End") return all.at(key === "Home" ? 0 : -1);
  if (key === "ArrowLeft" || key === "ArrowRight") return all[at + (key === "ArrowLeft" ? -1 : 1)];
  const here = from.getBoundingClientRect();
  const down = key === "ArrowDown";
  const rest = down ? all.slice(at + 1) : all.slice(0, at).reverse();
  const top = (each) => each.getBoundingClientRect().top;
  const row = rest.find((each) => (down ? top(each) > here.top : top(each) < here.top));
  if (!row) return null;
  const off = (each) => Math.abs(each.getBoundingClientRect().left - here.left);
  let best = row;
  for (const each of rest.slice(rest.indexOf(row))) {
    if (top(each) !== top(row)) break;
    if (off(each) < off(best)) best = each;
  }
  return best;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const on = event.target;
  if (event.key === "/" && !on.closest("input, select, textarea")) {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.select();
      search.focus();
    }
  }
  if (on.closest("#map") && /^(Arrow|Home$|End$)/.test(event.key)) {
    event.preventDefault();
    const next = neighbour(on, event.key);
    if (!next) return;
    mark = next.parentElement.dataset.key;
    updateTabStop();
    next.focus();
  }
});

const theme = document.getElementById("theme");
theme.value = document.documentElement.dataset.theme || "";
theme.parentElement.hidden = false;
theme.addEventListener("change", () => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("theme", theme.value);
  } catch {
    // for this page only
  }
});

async function reloadAll() {
  const page = await load(location.href);
  if (!page.body.dataset.kind || !page.getElementById("body")) {
    location.reload(); // for example because the pod was deleted
    return;
  }
  for (const each of ["namespaces", "models"]) updateOptions(each, page);
  for (const each of ["summary", "all", "csv", "body"]) updateSection(each, page);
  updateTabStop();
  setAge(page.body.dataset.age, page.body.dataset.stale);
  edition = Number(page.body.dataset.edition);
}

async function resetAge() {
  if (busy) return;
  busy = true;
  try {
    if (kind === "nodes") {
      const query = new URLSearchParams(location.search);
      query.set("since", String(edition));
      const changes = await load(`${root}rows?${query}`);
      if ("reload" in changes.body.dataset || !applyRows(changes)) await reloadAll();
      else {
        edition = Number(changes.body.dataset.edition);
        setAge(changes.body.dataset.age, changes.body.dataset.stale);
      }
    } else {
      await reloadAll();
    }
    document.body.dataset.edition = String(edition);
    if (stream && !stale) setStatus("Live", "on");
  } catch {
    setStatus("Connection lost, retrying:", "off");
  } finally {
    busy = false;
    // Only for an edition that was announced.
    if (newest > edition) later();
  }
}

function later() {
  if (timer !== null) return;
  timer = setTimeout(() => {
    timer = null;
    resetAge();
  }, PAUSE);
}

function connect() {
  if (stream || document.hidden) return;
  stream = new EventSource(`${root}events?since=${edition}`);
  stream.onopen = () => {
    clearInterval(polls);
    polls = null;
    if (!stale) setStatus("Live", "on");
  };
  stream.addEventListener("contact", (event) => {
    const contact = JSON.parse(event.data);
    setAge(contact.age, contact.stale);
  });
  stream.addEventListener("edition", (event) => {
    newest = Number(event.data);
    if (newest < edition) edition = 0; // the server was restarted, with other numbers
    if (newest !== edition) later();
  });
  stream.onerror = () => {
    setStatus("Connection lost, retrying:", "off");
    if (!stream || stream.readyState !== EventSource.CLOSED) return; // it retries by itself
    disconnect();
    polls ??= setInterval(() => {
      if (document.hidden) return;
      resetAge();
      connect();
    }, POLL);
  };
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

// Browsers open at most six connections to a server: a hidden page closes its stream.
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
    const path = form.getAttribute("action");
    history.pushState(null, "", query.size ? `${path}?${query}` : path);
    chosen = location.search;
    try {
      await reloadAll();
    } catch {
      location.reload();
    }
  };
  form.addEventListener("submit", choose);
  form.addEventListener("change", choose);
  addEventListener("popstate", () => {
    if (location.search !== chosen) location.reload(); // back or forward, not a jump within the page
  });
}

if (kind !== "text") {
  setAge(document.body.dataset.age, document.body.dataset.stale);
  showCopyButtons(document);
  updateTabStop();
  setInterval(tick, 1000);
  setInterval(updateAges, 5000);
  connect();
} else {
  live.remove();
}
