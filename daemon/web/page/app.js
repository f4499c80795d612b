// The status page: it shows what the daemon sends over /api/stream. Whatever a plugin said becomes text, never markup.

const perPage = 100;
const keptEvents = 500;
const keptRecords = 500;
const good = new Set(["registered", "running", "serving", "ok", "ready"]);
const bad = new Set(["unreachable", "failed", "refused", "unknown", "backoff", "unresponsive", "not-serving"]);

const known = new Map(); // what was sent, by key
let events = [];         // newest first
let connected = false;
let page = 0;
let sort = { key: "name", down: false };

const $ = (id) => document.getElementById(id);

// visible returns a text in which nothing is hidden or turns the direction of what follows.
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}\u2028\u2029]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

// make returns an element with text, or other nodes, in it.
function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== "") element.setAttribute(name, value);
  }
  element.append(...content.filter((c) => c !== undefined && c !== "").map((c) => (typeof c === "string" ? visible(c) : c)));
  return element;
}

// decode reads a part of the address, which anybody may have written.
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// redraw has a node show something, unless it shows that already: so it keeps the focus and what the reader has marked.
const shown = new WeakMap();
function redraw(node, what, draw) {
  const now = JSON.stringify(what);
  if (shown.get(node) === now) return;
  shown.set(node, now);
  node.replaceChildren(...draw());
}

const all = (kind) => [...known].filter(([key]) => key.startsWith(kind + " ")).map(([key, value]) => ({ key, ...value }));
const idOf = (p) => (p.type || p.name ? `${p.type ?? ""}/${p.name ?? ""}` : "");
const hashOf = (type, name) => `#/plugin/${encodeURIComponent(type)}/${encodeURIComponent(name)}`;

function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

function moment(time) {
  if (!time) return undefined;
  const ms = Date.now() - Date.parse(time);
  return make("time", { datetime: time, title: time }, ms >= 0 ? `${span(ms)} ago` : `in ${span(-ms)}`);
}

function stateOf(state) {
  const tone = good.has(state) ? "good" : bad.has(state) ? "bad" : "busy";
  return make("span", { class: `state ${tone}` }, state);
}

// ---- the list

const columns = [
  { key: "type", title: "Type", value: (p) => p.type ?? "" },
  { key: "name", title: "Name", value: (p) => p.name ?? "" },
  { key: "version", title: "Version", value: (p) => p.version ?? "" },
  { key: "state", title: "State", value: (p) => p.state ?? "" },
  { key: "endpoint", title: "Endpoint", value: (p) => p.endpoint || p.socketPath || "" },
  { key: "age", title: "Age", value: (p) => p.registeredAt || p.firstSeen || "" },
];

function buildHead() {
  const row = document.querySelector("#list thead tr");
  for (const column of columns) {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      sort = { key: column.key, down: sort.key === column.key && !sort.down };
      show();
    });
    row.append(make("th", { scope: "col", "data-key": column.key }, button));
  }
}

function matching() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = $("state").value;
  const column = columns.find((c) => c.key === sort.key);
  const plugins = all("plugin").filter((p) => {
    if (state && p.state !== state) return false;
    if (!words.length) return true;
    const text = [p.type, p.name, p.version, p.state, p.endpoint, p.socketPath, p.instance, p.lastError, ...(p.roles ?? [])].join(" ").toLowerCase();
    return words.every((w) => text.includes(w));
  });
  const rank = (p) => [column.value(p), p.type ?? "", p.name ?? "", p.current ? 0 : 1, p.key];
  const keyed = plugins.map((p) => [rank(p), p]);
  keyed.sort(([a], [b]) => {
    for (let i = 0; i < a.length; i++) {
      if (a[i] !== b[i]) return (a[i] < b[i] ? -1 : 1) * (sort.down && i === 0 ? -1 : 1);
    }
    return 0;
  });
  return keyed.map(([, p]) => p);
}

function row(p) {
  const id = idOf(p);
  const name = id ? make("a", { href: hashOf(p.type ?? "", p.name ?? "") }, p.name ?? "") : make("span", { class: "why" }, "not known yet");
  const why = p.lastError || p.reason;
  const cells = {
    type: [p.type ?? ""],
    name: [name],
    version: [p.version ?? ""],
    state: [stateOf(p.state), p.current || p.state !== "registered" ? "" : " ", why ? make("div", { class: "why" }, why) : ""],
    endpoint: [p.endpoint || p.socketPath || ""],
    age: [moment(p.registeredAt || p.firstSeen)],
  };
  const tr = make("tr", { "data-key": p.key });
  for (const column of columns) {
    const kind = { endpoint: "path", age: "age" }[column.key];
    tr.append(make("td", { class: kind, "data-label": column.title }, make("div", { class: "clamp" }, ...cells[column.key])));
  }
  return tr;
}

function showList() {
  const plugins = matching();
  const total = all("plugin").length;
  const pages = Math.max(1, Math.ceil(plugins.length / perPage));
  page = Math.min(page, pages - 1);
  $("count").textContent = plugins.length === total ? `${total} instances` : `${plugins.length} of ${total} instances`;
  $("page").textContent = `Page ${page + 1} of ${pages}`;
  $("previous").disabled = page === 0;
  $("next").disabled = page + 1 >= pages;
  $("pager").hidden = pages === 1;
  for (const th of document.querySelectorAll("#list th")) {
    if (th.dataset.key === sort.key) th.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  }
  keepFocus($("list").tBodies[0], plugins.slice(page * perPage, (page + 1) * perPage).map(row));
  showStates();
}

// keepFocus replaces the rows of a table and leaves the focus on the row of the same key.
function keepFocus(body, rows) {
  const focused = document.activeElement?.closest?.("tr")?.dataset.key;
  body.replaceChildren(...rows);
  if (focused) {
    [...body.rows].find((r) => r.dataset.key === focused)?.querySelector("a")?.focus({ preventScroll: true });
  }
}

function showStates() {
  const states = [...new Set(all("plugin").map((p) => p.state))].sort();
  const select = $("state");
  const options = ["", ...states, ...(select.value && !states.includes(select.value) ? [select.value] : [])];
  if (options.join() === [...select.options].map((o) => o.value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...options.map((s) => make("option", { value: s }, s || "all")));
  select.options[0].value = "";
  select.value = chosen;
}

// ---- events

function eventItem(e) {
  const plugin = e.type || e.name ? make("a", { href: hashOf(e.type ?? "", e.name ?? "") }, `${e.type ?? ""}/${e.name ?? ""}`) : make("span", {}, e.socketPath ?? "");
  const tone = bad.has(e.kind) ? "bad" : good.has(e.kind) ? "good" : "busy";
  return make("li", {},
    make("time", { datetime: e.time, title: e.time }, new Date(e.time).toLocaleString()),
    make("span", { class: `state ${tone}` }, e.kind ?? ""), plugin, make("span", { class: "why" }, e.message ?? ""));
}

function addEvents(list) {
  for (const e of list) {
    if (events.length && Number(e.seq) <= Number(events[0].seq)) continue;
    events.unshift(e);
  }
  events.length = Math.min(events.length, keptEvents);
}

// ---- one plugin

let logStream;
let logOf = "";

function describe(fields) {
  const list = make("dl");
  for (const [label, value] of fields) {
    if (value === undefined || value === "" || value === null) continue;
    list.append(make("dt", {}, label), make("dd", {}, value));
  }
  return list;
}

function showPlugin(type, name) {
  const instances = all("plugin").filter((p) => (p.type ?? "") === type && (p.name ?? "") === name)
    .sort((a, b) => (b.current ? 1 : 0) - (a.current ? 1 : 0) || (a.firstSeen < b.firstSeen ? 1 : -1));
  $("plugin-title").textContent = visible(type ? `${type}/${name}` : name);
  const launched = all("launched");
  redraw($("instances"), [type, name, instances, launched, Math.floor(Date.now() / 10_000)], () => (instances.length ? instances.map((p, i) => {
    const process = launched.find((l) => l.socketPath && l.socketPath === p.socketPath);
    return make("article", { class: "instance" }, make("h3", {}, `Instance ${i + 1} of ${instances.length}`), describe([
      ["State", make("span", {}, stateOf(p.state), p.current ? " (current)" : "")], ["Since", moment(p.since)], ["Why", p.reason],
      ["Last error", p.lastError], ["Failed attempts", p.attempts ? String(p.attempts) : ""], ["Next attempt", moment(p.nextRetry)],
      ["Version", p.version], ["Versions", (p.versions ?? []).join(", ")], ["Roles", (p.roles ?? []).join(", ")],
      ["Endpoint", p.endpoint], ["Socket", p.socketPath], ["Source", p.source], ["Instance ID", p.instance],
      ["First seen", moment(p.firstSeen)], ["Registered", moment(p.registeredAt)],
      ...(process ? [["Launched as", process.name], ["Process", `${process.state}, pid ${process.pid}`], ["Health", process.health],
        ["Restarts", process.restarts ? String(process.restarts) : ""], ["Next start", moment(process.nextStart)],
        ["Process error", process.lastError]] : []),
    ]), ...(Object.keys(p.details ?? {}).length ? [make("h4", {}, "What its handler found out"), describe(Object.entries(p.details).sort())] : []));
  }) : [make("p", {}, "No instance of this plugin is known any more.")]));
  const sockets = new Set(instances.map((p) => p.socketPath));
  followLog(launched.find((l) => (l.socketPath && sockets.has(l.socketPath)) || (!type && l.name === name))?.name ?? "");
  const history = events.filter((e) => (e.type ?? "") === type && (e.name ?? "") === name);
  redraw($("history"), history, () => history.map(eventItem));
}

function followLog(name) {
  if (name === logOf) return;
  logOf = name;
  logStream?.close();
  logStream = undefined;
  $("log").hidden = !name;
  if (!name) return;
  const list = $("records");
  logStream = new EventSource(`/api/log?name=${encodeURIComponent(name)}`);
  logStream.addEventListener("begin", () => list.replaceChildren());
  logStream.addEventListener("record", (m) => {
    const r = JSON.parse(m.data);
    const level = Number(r.level ?? 0);
    const end = list.scrollTop + list.clientHeight >= list.scrollHeight - 4;
    const attributes = (r.attributes ?? []).map((a) => ` ${a.key ?? ""}=${a.value ?? ""}`).join("");
    list.append(make("li", { class: level >= 8 ? "error" : level >= 4 ? "warn" : "" },
      `${new Date(r.time).toLocaleTimeString()} ${r.message ?? ""}${attributes}`));
    while (list.children.length > keptRecords) list.firstChild.remove();
    if (end) list.scrollTop = list.scrollHeight;
  });
}

// ---- the whole

function showConditions() {
  const degraded = all("condition").filter((c) => c.status !== "ok");
  $("conditions").replaceChildren(...degraded.map((c) => make("li", {}, make("strong", {}, c.name), ": ", c.message ?? "")));
}

// The fleet may have thousands of nodes: the first that match are shown.
function showFleet() {
  const words = $("node-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const nodes = all("node");
  const rank = { unreachable: 0, unknown: 1, stopped: 2, ready: 3 };
  const matching = nodes.filter((n) => words.every((w) => `${n.name} ${n.state} ${n.version} ${n.address}`.toLowerCase().includes(w)))
    .sort((a, b) => (rank[a.state] ?? 1) - (rank[b.state] ?? 1) || (a.name < b.name ? -1 : 1));
  document.querySelector('nav a[data-view="fleet"]').hidden = !nodes.length;
  $("node-count").textContent = matching.length > perPage ? `the first ${perPage} of ${matching.length} nodes` : `${matching.length} of ${nodes.length} nodes`;
  keepFocus($("nodes").tBodies[0], matching.slice(0, perPage).map((n) => make("tr", { "data-key": n.key },
    make("td", { "data-label": "Node" }, make("a", { href: `#/node//${encodeURIComponent(n.name ?? "")}` }, n.name ?? "")),
    make("td", { "data-label": "State" }, stateOf(n.state), n.reason ? make("div", { class: "why" }, n.reason) : ""),
    make("td", { "data-label": "Version" }, n.version ?? ""), make("td", { "data-label": "Plugins" }, String(n.plugins ?? 0)),
    make("td", { "data-label": "Last seen", class: "age" }, moment(n.lastSeen)))));
}

let nodeShown = ""; // what of which node is shown, so that it is fetched again only when it changes

async function showNode(name) {
  const node = known.get(`node ${name}`);
  $("node-title").textContent = visible(name);
  $("node-about").replaceChildren(node ? describe([
    ["State", stateOf(node.state)], ["Why", node.reason], ["Version", node.version], ["Address", node.address],
    ["Started", moment(node.startedAt)], ["Last seen", moment(node.lastSeen)],
    ...(node.conditions ?? []).filter((c) => c.status !== "ok").map((c) => [c.name, c.message]),
  ]) : make("p", {}, "This node is not known any more."));
  const now = JSON.stringify(node ?? null);
  if (now === nodeShown) return;
  nodeShown = now;
  let plugins = [];
  try {
    const answer = await fetch(`/api/fleet?node=${encodeURIComponent(name)}`);
    plugins = answer.ok ? await answer.json() : [];
  } catch {
    nodeShown = "";
    return;
  }
  if (nodeShown !== now) return;
  $("node-plugins").tBodies[0].replaceChildren(...plugins.map((p) => make("tr", {},
    make("td", { "data-label": "Type" }, p.type ?? ""), make("td", { "data-label": "Name" }, p.name ?? ""),
    make("td", { "data-label": "Version" }, p.version ?? ""),
    make("td", { "data-label": "State" }, stateOf(p.state), p.reason ? make("div", { class: "why" }, p.reason) : ""),
    make("td", { "data-label": "Endpoint", class: "path" }, p.endpoint ?? ""))));
}

function show() {
  const [, view = "", type = "", name = ""] = location.hash.match(/^#\/(\w*)(?:\/([^/]*)\/(.*))?$/) ?? [];
  const current = { events: "events", plugin: "plugin", fleet: "fleet", node: "node" }[view] ?? "plugins";
  for (const id of ["plugins", "events", "plugin", "fleet", "node"]) $(id).hidden = id !== current;
  for (const a of document.querySelectorAll("nav a[data-view]")) {
    if (a.dataset.view === current) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  showConditions();
  showFleet();
  if (current !== "plugin") followLog("");
  if (current === "plugins") showList();
  if (current === "events") redraw($("timeline"), events, () => events.map(eventItem));
  if (current === "node") showNode(decode(name));
  else nodeShown = "";
  if (current === "plugin") showPlugin(decode(type), decode(name));
}

let drawing = false;
function showSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    show();
  });
}

function take(update) {
  for (const [key, value] of Object.entries(update.set)) {
    if (value === null) known.delete(key);
    else known.set(key, value);
  }
  addEvents(update.events);
  showSoon();
}

function connection(is) {
  connected = is;
  $("connection").textContent = is ? "Live" : "Not connected: trying again …";
  $("connection").className = is ? "" : "lost";
}

function connect() {
  const stream = new EventSource("/api/stream");
  stream.addEventListener("state", (m) => {
    known.clear();
    events = [];
    connection(true);
    take(JSON.parse(m.data));
  });
  stream.addEventListener("change", (m) => take(JSON.parse(m.data)));
  stream.addEventListener("error", () => {
    connection(false);
    if (stream.readyState === EventSource.CLOSED) {
      setTimeout(connect, 1000);
    }
  });
}

buildHead();
$("search").addEventListener("input", () => { page = 0; show(); });
$("state").addEventListener("change", () => { page = 0; show(); });
$("previous").addEventListener("click", () => { page--; show(); });
$("next").addEventListener("click", () => { page++; show(); });
$("node-search").addEventListener("input", show);
addEventListener("hashchange", () => {
  show();
  $("main").focus();
});
addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, select")) {
    if (e.key === "Escape" && e.target.id === "search") {
      e.target.value = "";
      page = 0;
      show();
    }
    return;
  }
  const rows = [...document.querySelectorAll("section:not([hidden]) tbody a")];
  const at = rows.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, j: at + 1, k: at - 1 }[e.key];
  if (e.key === "/") {
    e.preventDefault();
    location.hash = "#/";
    $("search").focus();
  } else if (to !== undefined && rows[to]) {
    e.preventDefault();
    rows[to].focus();
  }
});
setInterval(() => { if (connected && !document.hidden) show(); }, 10_000); // ages
show();
connect();
