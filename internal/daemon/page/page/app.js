// The status page: it shows what the daemon sends over /api/stream. Whatever a plugin said becomes text, never markup.

const perPage = matchMedia("(max-width: 45em)").matches ? 50 : 100; // as much as one scrolls through
const keptEvents = 500;
const keptRecords = 500;
const good = new Set(["registered", "running", "serving", "ok", "ready", "idle"]);
const bad = new Set(["unreachable", "failed", "blocked", "refused", "unknown", "backoff", "unresponsive", "not-serving", "unlinked", "degraded"]);

const known = new Map(); // what was sent, by key
let events = [];         // newest first
let connected = false;

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

// at is what the address says: the view, what it is of, and how the reader wants to see it. So whatever is shown can be sent to somebody.
const at = { view: "", type: "", name: "", query: new URLSearchParams() };

function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", type = "", ...name] = path.split("/");
  Object.assign(at, { view, type: decode(type), name: decode(name.join("/")), query: new URLSearchParams(query) });
}

// want changes how the reader wants to see it; what is empty is the usual. It begins at the first page again, unless that is what changes.
function want(change) {
  at.query.delete("page");
  for (const [key, value] of Object.entries(change)) {
    if (value) at.query.set(key, value);
    else at.query.delete(key);
  }
  const query = at.query.toString();
  const path = location.hash.replace(/^#\/?/, "").split("?", 1)[0];
  history.replaceState(null, "", `#/${path}${query ? `?${query}` : ""}`);
  show();
}

const wanted = (key) => at.query.get(key) ?? "";
const wantedPage = () => Math.max(0, Math.floor(Number(wanted("page")) || 1) - 1);

// paged returns what is on the page of a list that the reader wants to see, and has a navigation lead to the others.
function paged(pager, list) {
  const pages = Math.max(1, Math.ceil(list.length / perPage));
  const page = Math.min(wantedPage(), pages - 1);
  const [previous, next] = pager.querySelectorAll("button");
  pager.querySelector("span").textContent = `Page ${page + 1} of ${pages}`;
  previous.disabled = page === 0;
  next.disabled = page + 1 >= pages;
  pager.hidden = pages === 1;
  return list.slice(page * perPage, (page + 1) * perPage);
}

// matches says whether all words that the reader searches for are in a text, and none of those with an exclamation mark before them.
function matches(text) {
  const lower = text.toLowerCase();
  return wanted("q").toLowerCase().split(/\s+/).every((word) => word === "!" || (word[0] === "!" ? !lower.includes(word.slice(1)) : lower.includes(word)));
}

// redraw has a node show something, unless it shows that already: so it keeps the focus and what the reader has marked.
const shown = new WeakMap();
function redraw(node, what, draw) {
  const now = JSON.stringify(what);
  if (shown.get(node) === now) return;
  shown.set(node, now);
  node.replaceChildren(...draw());
}

// goesBy says whether a type is that of a plugin, or one of its roles.
const goesBy = (p, type) => (p.type ?? "") === type || (p.roles ?? []).includes(type);

const all = (kind) => [...known].filter(([key]) => key.startsWith(kind + " ")).map(([key, value]) => ({ key, ...value }));
const idOf = (p) => (p.type ? `${p.type}/${p.name ?? ""}` : p.name ?? ""); // one that is launched and did not register has no type
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

// pathOf returns a path that is wrapped behind its slashes, and within a name only if that alone is too long.
const pathOf = (text) => make("span", {}, ...(text ?? "").split(/(?<=[^/]\/)(?=.)/).flatMap((part, i) => (i ? [make("wbr"), part] : [part])));

// stateOf returns a state in the colour of the health, or of the state itself if what has it has no health.
function stateOf(state, health) {
  return make("span", { class: `state ${["bad", "busy", "good"][rankOf(state, health)]}` }, state);
}

const needsAttention = (health) => health?.state === "attention";

// whyOf returns why something needs attention and what to do about it; otherwise a reason, if there is one.
function whyOf(health, reason) {
  if (!needsAttention(health)) return reason ? [make("div", { class: "why" }, reason)] : [];
  return [make("div", { class: "why" }, health.reason), make("div", { class: "why" }, "→ ", health.remedy)];
}

// healthLines returns the lines about the health in the description of something.
const healthLines = (health) => [["Health", health?.state],
  ...(needsAttention(health) ? [["Failing since", moment(health.since)], ["Failure", health.reason], ["Remedy", health.remedy], ["Healthy from", moment(health.healthyFrom)]] : [])];

// ---- the list

const columns = [
  { key: "type", title: "Type", value: (p) => p.type ?? "" },
  { key: "name", title: "Name", value: (p) => p.name ?? "" },
  { key: "version", title: "Version", value: (p) => p.version ?? "" },
  { key: "state", title: "State", value: (p) => `${rankOf(p.state, p.health)} ${p.state ?? ""}` },
  { key: "endpoint", title: "Endpoint", value: (p) => p.endpoint || p.socketPath || "" },
  { key: "age", title: "Age", value: (p) => p.registeredAt || p.firstSeen || "" },
];

function buildHead() {
  const row = document.querySelector("#list thead tr");
  for (const column of columns) {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const sort = sorted();
      want({ sort: (sort.key === column.key && !sort.down ? "-" : "") + column.key });
    });
    row.append(make("th", { scope: "col", "data-key": column.key }, button));
  }
}

// sorted says by which column the list is sorted. The usual is by state, those first that are not well.
function sorted() {
  const text = wanted("sort") || "state";
  const key = text.replace(/^-/, "");
  return { key: columns.some((c) => c.key === key) ? key : "state", down: text.startsWith("-") };
}

function matching(plugins) {
  const sort = sorted();
  const state = wanted("state");
  const type = wanted("type");
  const column = columns.find((c) => c.key === sort.key);
  plugins = plugins.filter((p) => {
    if (state && p.state !== state) return false;
    if (wanted("health") && p.health?.state !== wanted("health")) return false;
    if (type && !goesBy(p, type)) return false;
    return matches([p.type, p.name, p.version, p.state, p.endpoint, p.socketPath, p.instance, p.lastError, p.launchedAs, p.health?.reason, ...(p.roles ?? [])].join(" "));
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
  const alias = p.launchedAs && p.launchedAs !== p.name ? make("div", { class: "why" }, `launched as ${p.launchedAs}`) : "";
  const cells = {
    type: [p.type ?? ""],
    name: [name, alias],
    version: [p.version ?? ""],
    state: [stateOf(p.state, p.health), ...whyOf(p.health, p.lastError || p.reason)],
    endpoint: [pathOf(p.endpoint || p.socketPath)],
    age: [moment(p.registeredAt || p.firstSeen)],
  };
  const tr = make("tr", { "data-key": p.key });
  for (const column of columns) {
    const kind = { endpoint: "path", age: "age" }[column.key];
    tr.append(make("td", { class: kind, "data-label": column.title }, make("div", { class: "clamp" }, ...cells[column.key])));
  }
  return tr;
}

function showList(whole) {
  const sort = sorted();
  const plugins = matching(whole);
  const total = whole.length;
  keep($("search"), wanted("q"));
  showEmpty(total, plugins.length);
  $("count").textContent = plugins.length === total ? `${total} instances` : `${plugins.length} of ${total} instances`;
  $("list").hidden = plugins.length === 0;
  for (const th of document.querySelectorAll("#list th")) {
    if (th.dataset.key === sort.key) th.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  }
  keepFocus($("list").tBodies[0], paged($("pager"), plugins).map(row));
  showStates(whole);
  choices($("type"), [...new Set(whole.flatMap((p) => [p.type, ...(p.roles ?? [])]).filter(Boolean))].sort(), wanted("type"));
}

// showAbout says whose plugins these are.
function showAbout() {
  const { node, version, startTime } = known.get("daemon version") ?? {};
  const parts = [node, version && `patchbay ${version}`, startTime && `up ${span(Date.now() - Date.parse(startTime))}`].filter(Boolean);
  $("about").textContent = visible(parts.join(" · "));
}

// ---- launched plugins

function describeProcess(l) {
  const unlessReason = (error) => (error === l.overallHealth?.reason ? "" : error);
  return describe([
    ["Launched as", l.name], ["Process", make("span", {}, stateOf(l.state, l.overallHealth), l.pid && l.pid !== "0" ? `, pid ${l.pid}` : "")], ["Serving status", l.health],
    ...healthLines(l.overallHealth),
    ["Restarts", l.restarts ? String(l.restarts) : ""], ["Next start", moment(l.nextStart)], ["Process error", unlessReason(l.lastError)], ["Replacement error", unlessReason(l.replacementError)],
    ["Labels", Object.entries(l.metadata ?? {}).sort().map(([k, v]) => `${k}=${v}`).join(", ")],
  ]);
}

function showLaunched() {
  const processes = all("launched").sort((a, b) => rankOf(a.state, a.overallHealth) - rankOf(b.state, b.overallHealth) || (a.name < b.name ? -1 : 1));
  document.querySelector('nav a[data-view="launched"]').hidden = !processes.length;
  if ($("launched").hidden) return;
  redraw($("launched-title"), processes.length, () => [`Launched plugins (${processes.length})`]);
  keepFocus($("processes").tBodies[0], paged($("process-pager"), processes).map((l) => make("tr", { "data-key": l.key },
    make("td", { "data-label": "Name" }, make("a", { href: hashOf("", l.name ?? "") }, l.name ?? "")),
    make("td", { "data-label": "State" }, stateOf(l.state, l.overallHealth), ...whyOf(l.overallHealth)),
    make("td", { "data-label": "Serving" }, l.health ?? ""), make("td", { "data-label": "PID" }, l.pid && l.pid !== "0" ? String(l.pid) : ""),
    make("td", { "data-label": "Restarts" }, l.restarts ? String(l.restarts) : ""),
    make("td", { "data-label": "Since", class: "age" }, moment(l.since)))));
}

// ---- the daemon

function showDaemon() {
  const version = known.get("daemon version") ?? {};
  const configuration = known.get("daemon configuration") ?? {};
  const path = (text) => (text ? make("code", {}, text) : undefined);
  $("daemon-about").replaceChildren(describe([
    ["Node", version.node], ["Version", version.version], ["Commit", version.commit], ["Started", moment(version.startTime)],
    ["PID", version.pid], ["Plugin directories", path((configuration.pluginDirs ?? []).join(", "))],
    ["Deprecated directory", path(configuration.deprecatedPluginDir)], ["State file", path(configuration.state)],
    ["Control socket", path(configuration.controlSocket)], ["Handled types", (configuration.handlers ?? []).join(", ") || "none"],
  ]));
  $("health").tBodies[0].replaceChildren(...all("condition").sort((a, b) => rankOf(a.status) - rankOf(b.status) || (a.name < b.name ? -1 : 1))
    .map((c) => make("tr", {}, make("td", { "data-label": "Condition" }, c.name ?? ""),
      make("td", { "data-label": "Status" }, stateOf(c.status), c.message ? make("div", { class: "why" }, c.message) : ""),
      make("td", { "data-label": "Since", class: "age" }, moment(c.since)))));
}

// keep has a field show what the address says, unless the reader is in it.
function keep(field, text) {
  if (document.activeElement !== field) field.value = text;
}

// showEmpty says what to do where there is nothing to see.
function showEmpty(total, shown) {
  $("empty").hidden = shown > 0 || !connected;
  const dirs = (known.get("daemon configuration")?.pluginDirs ?? []).join(", ");
  redraw($("empty"), [total > 0, dirs], () => (total ? [make("p", {}, "No plugin matches. "), make("a", { href: "#/" }, "Show all")] : [
    make("p", {}, "No plugin is here yet. A plugin appears when its socket does", dirs ? ` in ${dirs}` : "", "."),
    make("p", {}, "To see one, run ", make("code", {}, "patchbay demo"), " in a terminal. To write one, start with ",
      make("code", {}, "patchbay init"), ". If one does not appear, ", make("code", {}, "patchbay doctor"), " says why."),
  ]));
}

// keepFocus replaces the rows of a table and leaves the focus on the row of the same key.
function keepFocus(body, rows) {
  const focused = document.activeElement?.closest?.("tr")?.dataset.key;
  body.replaceChildren(...rows);
  if (focused) {
    [...body.rows].find((r) => r.dataset.key === focused)?.querySelector("a")?.focus({ preventScroll: true });
  }
}

// rankOf puts first what needs attention, last what is healthy.
const rankOf = (state, health) => ({ attention: 0, progressing: 1, healthy: 2 }[health?.state] ?? (bad.has(state) ? 0 : good.has(state) ? 2 : 1));

// showStates shows how many need attention and how many are in which state, each a link to those.
function showStates(plugins) {
  const counts = new Map();
  for (const p of plugins) counts.set(p.state, (counts.get(p.state) ?? 0) + 1);
  const states = [...counts].sort(([a], [b]) => rankOf(a) - rankOf(b) || (a < b ? -1 : 1));
  const sick = plugins.filter((p) => needsAttention(p.health)).length;
  const tile = (query, isCurrent, count, ...content) => make("li", {},
    make("a", { href: `#/${query}`, ...(isCurrent ? { "aria-current": "true" } : {}) }, make("strong", {}, String(count)), " ", ...content));
  redraw($("states"), [states, sick, wanted("state"), wanted("health")], () => [
    ...(sick ? [tile("?health=attention", wanted("health") === "attention", sick, make("span", { class: "state bad" }, "attention"))] : []),
    tile("", !wanted("state") && !wanted("health"), plugins.length, "all"),
    ...states.map(([state, count]) => tile(`?state=${encodeURIComponent(state)}`, wanted("state") === state, count, stateOf(state))),
  ]);
}

// choices has a select offer values, and the one that is chosen in any case.
function choices(select, values, chosen) {
  const options = ["", ...values, ...(chosen && !values.includes(chosen) ? [chosen] : [])];
  if (options.join("\n") !== [...select.options].map((o) => o.value).join("\n")) {
    select.replaceChildren(...options.map((v) => make("option", { value: v }, v || "all")));
    select.options[0].value = "";
  }
  if (document.activeElement !== select) select.value = chosen;
}

// ---- events

// exactly writes a time with its zone.
const exactly = (time) => new Date(time).toLocaleString(undefined, { dateStyle: "short", timeStyle: "long" });

function eventItem(e) {
  const plugin = e.type || e.name ? make("a", { href: hashOf(e.type ?? "", e.name ?? "") }, idOf(e)) : make("span", {}, e.socketPath ?? "");
  const tone = bad.has(e.kind) ? "bad" : good.has(e.kind) ? "good" : "busy";
  return make("li", {},
    make("time", { datetime: e.time, title: e.time }, exactly(e.time)),
    make("span", { class: `state ${tone}` }, e.kind ?? ""), plugin, make("span", { class: "why" }, e.message ?? ""));
}

function addEvents(list) {
  for (const e of list) {
    if (events.length && Number(e.seq) <= Number(events[0].seq)) continue;
    events.unshift(e);
  }
  events.length = Math.min(events.length, keptEvents);
}

function showEvents() {
  const kind = wanted("kind");
  const matching = events.filter((e) => (!kind || e.kind === kind) &&
    matches(`${e.type} ${e.name} ${e.kind} ${e.socketPath} ${e.instance} ${e.message}`));
  keep($("event-search"), wanted("q"));
  choices($("kind"), [...new Set(events.map((e) => e.kind))].sort(), kind);
  $("event-count").textContent = `${matching.length} of the last ${events.length} events`;
  const now = paged($("event-pager"), matching);
  redraw($("timeline"), now, () => now.map(eventItem));
}

// ---- one plugin

let past = { of: "", events: [] }; // what happened to the plugin that is shown, as far as the daemon keeps it, newest first

// historyOf returns what happened to a plugin: what the daemon keeps, which is asked for once, and what came since. The types are those by
// which it goes.
function historyOf(type, name, types) {
  const of = `${type}/${name}`;
  if (past.of !== of) {
    past = { of, events: [] };
    fetch(`/api/events?type=${encodeURIComponent(type)}&name=${encodeURIComponent(name)}`)
      .then((answer) => (answer.ok ? answer.json() : []))
      .then((list) => {
        if (past.of !== of) return;
        past.events = list.reverse();
        show();
      })
      .catch(() => { past.of = ""; }); // the next look asks again
  }
  const newest = Number(past.events[0]?.seq ?? 0);
  return [...events.filter((e) => Number(e.seq) > newest && types.has(e.type ?? "") && (e.name ?? "") === name), ...past.events];
}

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
  const instances = all("plugin").filter((p) => goesBy(p, type) && (p.name ?? "") === name)
    .sort((a, b) => (b.current ? 1 : 0) - (a.current ? 1 : 0) || (a.firstSeen < b.firstSeen ? 1 : -1));
  $("plugin-title").textContent = visible(instances.length ? idOf(instances[0]) : type ? `${type}/${name}` : name);
  const launched = all("launched");
  const byName = type ? undefined : launched.find((l) => l.name === name);
  redraw($("instances"), [type, name, instances, launched, Math.floor(Date.now() / 10_000)], () => (instances.length ? instances.map((p, i) => {
    const process = launched.find((l) => (l.socketPath ? l.socketPath === p.socketPath : !type && l.name === name));
    return make("article", { class: "instance" }, make("h3", {}, `Instance ${i + 1} of ${instances.length}`), describe([
      ["State", make("span", {}, stateOf(p.state, p.health), p.current ? " (current)" : "")], ["Since", moment(p.since)], ["Why", p.reason],
      ...healthLines(p.health),
      ["Last error", p.lastError], ["Failed attempts", p.attempts ? String(p.attempts) : ""], ["Next attempt", moment(p.nextRetry)],
      ["Version", p.version], ["Versions", (p.versions ?? []).join(", ")], ["Roles", (p.roles ?? []).join(", ")],
      ["Endpoint", p.endpoint], ["Socket", p.socketPath], ["Source", p.source], ["Instance ID", p.instance],
      ["First seen", moment(p.firstSeen)], ["Registered", moment(p.registeredAt)],
    ]), ...(process ? [describeProcess(process)] : []), ...(Object.keys(p.details ?? {}).length ? [make("h4", {}, "What its handler found out"), describe(Object.entries(p.details).sort())] : []));
  }) : [byName ? make("article", { class: "instance" }, describeProcess(byName)) : make("p", {}, "No instance of this plugin is known any more.")]));
  const sockets = new Set(instances.map((p) => p.socketPath));
  followLog(launched.find((l) => l.socketPath && sockets.has(l.socketPath))?.name ?? byName?.name ?? "");
  const history = paged($("history-pager"), historyOf(type, name, new Set([type, ...instances.map((p) => p.type ?? "")])));
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
      `${new Date(r.time).toLocaleTimeString(undefined, { timeStyle: "long" })} ${r.message ?? ""}${attributes}`));
    while (list.children.length > keptRecords) list.firstChild.remove();
    if (end) list.scrollTop = list.scrollHeight;
  });
}

// ---- the whole

function showConditions() {
  const degraded = all("condition").filter((c) => c.status !== "ok");
  $("conditions").replaceChildren(...degraded.map((c) => make("li", {}, make("strong", {}, c.name), ": ", c.message ?? "")));
}

function showFleet() {
  const nodes = all("node");
  const rank = { unreachable: 0, unknown: 1, stopped: 2, ready: 3 };
  const matching = nodes.filter((n) => matches(`${n.name} ${n.state} ${n.version} ${n.address}`))
    .sort((a, b) => (rank[a.state] ?? 1) - (rank[b.state] ?? 1) || (a.name < b.name ? -1 : 1));
  document.querySelector('nav a[data-view="fleet"]').hidden = !nodes.length;
  const health = known.get("fleet health");
  const lost = Boolean(health && !health.current && nodes.length);
  $("fleet-health").hidden = !lost;
  $("fleet-health").replaceChildren(...(lost ? [`etcd is lost, and this is what was known last. ${visible(health.message ?? "")} Since `, moment(health.since)] : []));
  if ($("fleet").hidden) return;
  keep($("node-search"), wanted("q"));
  $("node-count").textContent = matching.length === nodes.length ? `${nodes.length} nodes` : `${matching.length} of ${nodes.length} nodes`;
  keepFocus($("nodes").tBodies[0], paged($("node-pager"), matching).map((n) => make("tr", { "data-key": n.key },
    make("td", { "data-label": "Node" }, make("a", { href: `#/node//${encodeURIComponent(n.name ?? "")}` }, n.name ?? "")),
    make("td", { "data-label": "State" }, stateOf(n.state), n.reason ? make("div", { class: "why" }, n.reason) : ""),
    make("td", { "data-label": "Version" }, n.version ?? ""), make("td", { "data-label": "Plugins" }, String(n.plugins ?? 0)),
    make("td", { "data-label": "Last seen", class: "age" }, moment(n.lastSeen)))));
}

let nodePlugins = [];
let nodeShown = ""; // what of which node is shown, so that it is fetched again only when it changes

async function showNode(name) {
  const node = known.get(`node ${name}`);
  $("node-title").textContent = visible(name);
  $("node-about").replaceChildren(node ? describe([
    ["State", stateOf(node.state)], ["Why", node.reason], ["Version", node.version], ["Address", node.address],
    ["Started", moment(node.startedAt)], ["Last seen", moment(node.lastSeen)],
    ...(node.conditions ?? []).filter((c) => c.status !== "ok").map((c) => [c.name, c.message]),
  ]) : make("p", {}, "This node is not known any more."));
  showNodePlugins();
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
  nodePlugins = plugins.sort((a, b) => rankOf(a.state) - rankOf(b.state));
  showNodePlugins();
}

function showNodePlugins() {
  $("node-plugins").tBodies[0].replaceChildren(...paged($("node-plugin-pager"), nodePlugins).map((p) => make("tr", {},
    make("td", { "data-label": "Type" }, p.type ?? ""), make("td", { "data-label": "Name" }, p.name ?? ""),
    make("td", { "data-label": "Version" }, p.version ?? ""),
    make("td", { "data-label": "State" }, stateOf(p.state), p.reason ? make("div", { class: "why" }, p.reason) : ""),
    make("td", { "data-label": "Endpoint", class: "path" }, pathOf(p.endpoint)))));
}

const views = { launched: "Launched plugins", daemon: "Daemon", events: "Events", plugin: "", fleet: "Fleet", node: "" };

function show() {
  const current = Object.hasOwn(views, at.view) ? at.view : "plugins";
  for (const id of ["plugins", ...Object.keys(views)]) $(id).hidden = id !== current;
  for (const a of document.querySelectorAll("nav a[data-view]")) {
    if (a.dataset.view === current) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const plugins = all("plugin");
  const sick = plugins.filter((p) => needsAttention(p.health)).length;
  document.title = (sick ? `(${sick}) ` : "") + visible([{ plugin: at.type ? `${at.type}/${at.name}` : at.name, node: at.name }[current] ?? views[current] ?? "", "Patchbay"]
    .filter(Boolean).join(" · "));
  showConditions();
  showFleet();
  showAbout();
  showLaunched();
  if (current === "daemon") showDaemon();
  if (current !== "plugin") {
    followLog("");
    past.of = "";
  }
  if (current === "plugins") showList(plugins);
  if (current === "events") showEvents();
  if (current === "node") showNode(at.name);
  else [nodeShown, nodePlugins] = ["", []];
  if (current === "plugin") showPlugin(at.type, at.name);
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
$("search").addEventListener("input", (e) => want({ q: e.target.value }));
$("type").addEventListener("change", (e) => want({ type: e.target.value }));
$("event-search").addEventListener("input", (e) => want({ q: e.target.value }));
$("kind").addEventListener("change", (e) => want({ kind: e.target.value }));
for (const pager of document.querySelectorAll(".pager")) {
  pager.querySelectorAll("button").forEach((button, i) => button.addEventListener("click", () => want({ page: String(wantedPage() + 2 * i) })));
}
$("node-search").addEventListener("input", (e) => want({ q: e.target.value }));
addEventListener("hashchange", () => {
  readAddress();
  show();
  $("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
const searches = { "": "search", events: "event-search", fleet: "node-search" }; // by view

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, select")) {
    if (e.key === "Escape" && e.target.id.endsWith("search")) {
      e.target.value = "";
      want({ q: "" });
    }
    return;
  }
  const rows = [...document.querySelectorAll("section:not([hidden]) tbody a")];
  const now = rows.indexOf(document.activeElement);
  const to = { ArrowDown: now + 1, ArrowUp: now - 1, j: now + 1, k: now - 1 }[e.key];
  if (e.key === "/") {
    e.preventDefault();
    if (!Object.hasOwn(searches, at.view)) {
      history.pushState(null, "", "#/"); // which moves the focus nowhere
      readAddress();
      show();
    }
    $(searches[at.view]).focus();
  } else if (to !== undefined && rows[to]) {
    e.preventDefault();
    rows[to].focus();
  }
});
readAddress();
setInterval(() => { if (connected && !document.hidden) show(); }, 10_000); // ages
show();
connect();
